"""A training script as users write them; it knows nothing of Penstock. Writes what it saw as JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

N = 48


class Rows(Dataset[dict[str, Any]]):
    """Rows that can be told apart; each that is made is a line in a file of a folder."""

    def __init__(self, made: str, scale: float, width: int = 3) -> None:
        self.made, self.scale, self.width = made, scale, width

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> dict[str, Any]:
        os.makedirs(self.made, exist_ok=True)
        file = os.open(f"{self.made}/{os.getpid()}", os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        os.write(file, b"%d\n" % i)
        os.close(file)
        return {
            "id": i,
            "x": torch.full((self.width,), self.scale * i),
            "name": torch.tensor([i], dtype=torch.uint8),
        }


class Told(Rows):
    """Rows that differ from epoch to epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, i: int) -> dict[str, Any]:
        return super().__getitem__(i) | {"epoch": self.epoch}


class WorkerInit:
    """Seeds workers by their rank, which only a trainer has."""

    def __call__(self, worker: int) -> None:
        assert not os.environ.get("PENSTOCK_FEEDER"), "WorkerInit asks for the rank"


def pairs(samples: list[Any]) -> dict[str, Any]:
    """Collate a batch of which nobody knows how it could be cut."""
    return {"id": torch.tensor([sample["id"] for sample in samples]), "together": torch.tensor(len(samples))}


class OwnOrder:
    """A sampler of the script's own."""

    def __iter__(self) -> Any:
        return iter(torch.randperm(N).tolist())

    def __len__(self) -> int:
        return N


def ids(batches: Any, pause_s: float = 0.0) -> list[list[int]]:
    found = []
    for batch in batches:
        found.append(batch["id"].tolist())
        time.sleep(pause_s)
    return found


def loader_of(options: argparse.Namespace) -> DataLoader[Any]:
    kind = options.kind
    data = (Told if kind == "told" else Rows)("made", options.scale, options.width)
    given: dict[str, Any] = {"batch_size": options.batch_size, "drop_last": options.drop_last}
    if kind in ("workers", "spawn", "persistent"):
        given |= {"num_workers": 1 + (kind != "spawn"), "persistent_workers": kind == "persistent"}
        given |= {"multiprocessing_context": "spawn"} if kind == "spawn" else {}
    if kind == "rank":
        given |= {"num_workers": 1, "worker_init_fn": WorkerInit()}
    if kind == "collate":
        given |= {"collate_fn": pairs}
    if kind == "own":
        return DataLoader(data, sampler=OwnOrder(), **given)
    if kind == "lock":
        import threading

        data.lock = threading.Lock()  # type: ignore[attr-defined]
    return DataLoader(data, shuffle=True, **given)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--width", type=int, default=3)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--drop-last", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(7)
    train, validation = loader_of(options), DataLoader(Rows("validated", 1.0), batch_size=5)
    seen: dict[str, Any] = {"len": len(train), "epochs": [], "validated": []}
    if options.kind == "peek":
        seen["peeked"] = len(next(iter(train))["id"])
    if options.kind == "kept":
        seen["kept"] = iter(train)
        seen["peeked"] = len(next(seen["kept"])["id"])
    for epoch in range(options.epochs):
        if options.kind == "zip":
            both = [(one["id"].tolist(), other["id"].tolist()) for one, other in zip(train, train, strict=True)]
            seen["epochs"] += [[one for one, _ in both], [other for _, other in both]]
        elif options.kind == "break" and epoch == 0:
            for step, _ in enumerate(train):
                if step == 2:
                    break
        elif options.kind == "told":
            train.dataset.set_epoch(epoch)
            batches = [(batch["id"].tolist(), set(batch["epoch"].tolist())) for batch in train]
            seen["epochs"].append([rows for rows, _ in batches])
            seen.setdefault("told", []).append(sorted(set.union(*(told for _, told in batches))))
        else:
            seen["epochs"].append(ids(train, options.pause))
        with torch.no_grad() if epoch else torch.enable_grad():
            seen["validated"] = ids(validation)
    batch = next(iter(train))
    seen["types"] = {key: [str(value.dtype), list(value.shape)] for key, value in batch.items()}
    if "x" in batch:
        assert torch.equal(batch["x"][:, 0], options.scale * batch["id"])
    seen["random"] = torch.rand(2).tolist()
    seen.pop("kept", None)
    with open(f"seen-{os.environ.get('PENSTOCK_RUN_INDEX', 'alone')}.json", "w") as file:
        json.dump(seen, file)
    print("done", file=sys.stderr)


if __name__ == "__main__":
    main()
