"""Scripts that tell their samplers, or their data, the epoch. Prints, as JSON, the batches of each."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, SubsetRandomSampler

SIZE = 300


class Rows(Dataset[int]):
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, i: int) -> int:
        return i


class Budget:
    """A batch sampler by a budget of tokens, whose number of batches changes with the epoch."""

    def __init__(self) -> None:
        self.shuffle, self.epoch = True, 0
        self.lengths = [random.Random(i).randint(1, 29) for i in range(SIZE)]

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def batches(self) -> list[list[int]]:
        found: list[list[int]] = [[]]
        for i in random.Random(self.epoch).sample(range(SIZE), SIZE):
            if sum(self.lengths[j] for j in (*found[-1], i)) > 60:
                found.append([])
            found[-1].append(i)
        return found

    def __iter__(self) -> Any:
        return iter(self.batches())

    def __len__(self) -> int:
        return len(self.batches())


class Stages(SubsetRandomSampler):
    """Picks its 60 ids by the epoch."""

    def __init__(self) -> None:
        super().__init__(range(60))

    def set_epoch(self, epoch: int) -> None:
        self.indices = range(50 * epoch, 50 * epoch + 60)


class Grows(Stages):
    """Its length grows with the epoch, whatever it says."""

    def set_epoch(self, epoch: int) -> None:
        self.indices = range(20 + 10 * epoch)

    def __len__(self) -> int:
        return 60


class Uneven(Stages):
    """Shuffles 60 ids by the epoch, which make batches of 8 and a short one."""

    def set_epoch(self, epoch: int) -> None:
        self.indices = random.Random(epoch).sample(range(60), 60)

    def __iter__(self) -> Any:
        return iter(self.indices)


class Stream(IterableDataset[int]):
    """Shuffles by the epoch, as those of Hugging Face do."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        return iter(random.Random(self.epoch).sample(range(40), 40))


class Labels(Dataset[int]):
    """Gives labels that its script sets anew, as pseudo-labels are."""

    def __init__(self) -> None:
        self.labels = [0] * 60

    def __len__(self) -> int:
        return 60

    def __getitem__(self, i: int) -> int:
        return self.labels[i]


class Relabels:
    """Sets labels for an epoch, of one data set or of a new one with a new loader, or for some by turns."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.loader = DataLoader(Labels(), 8, shuffle=True)
        self._tasks = [Labels() for _ in range(3)]

    def set_epoch(self, epoch: int) -> None:
        if self._kind == "turns":
            self.loader = DataLoader(self._tasks[epoch % 3], 8, shuffle=True)
        if self._kind == "pairs":
            self.loader = DataLoader(Labels(), 8, shuffle=True)
        if self._kind == "anew":
            self.loader = DataLoader(Labels(), 8, shuffle=True)
        first = {"folds": epoch // 2, "turns": epoch % 3, "pairs": epoch % 2}.get(self._kind, epoch) * 100
        self.loader.dataset.labels = list(range(first, first + 60))  # type: ignore[attr-defined]


def loader_of(kind: str) -> tuple[Any, Any]:
    """Return a loader, and what is told the epoch."""
    match kind:
        case "budget":
            return DataLoader(Rows(), batch_sampler=(told := Budget())), told
        case "persistent":
            told = Budget()
            return DataLoader(Rows(), batch_sampler=told, num_workers=1, persistent_workers=True), told
        case "stages" | "grows":
            told = Stages() if kind == "stages" else Grows()
            return DataLoader(Rows(), 8, sampler=told), told
        case "drops":
            return DataLoader(Rows(), 8, sampler=(told := Uneven()), drop_last=True), told
        case "labels" | "anew" | "folds" | "turns" | "pairs":
            return (told := Relabels(kind)).loader, told
        case "stream":
            return DataLoader(told := Stream(), 8), told
        case _:
            return DataLoader(Rows(), 8, sampler=(told := DistributedSampler(Rows(), 1, 0))), told


def stay_until_all_have_read() -> None:
    """A run that has left its feed does not keep the beginning of an epoch for another one."""
    Path(f"read-{os.environ['PENSTOCK_RUN_INDEX']}").touch()
    while len(list(Path().glob("read-*"))) < int(os.environ["PENSTOCK_TOGETHER"]):
        time.sleep(0.01)


def main() -> None:
    kind, first, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.manual_seed(1)
    loader, told = loader_of(kind)
    seen: list[Any] = []
    for epoch in range(first, first + epochs):
        told.set_epoch(epoch)
        loader = getattr(told, "loader", loader)
        seen.append([batch.tolist() for batch in loader])
    stay_until_all_have_read()
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
