"""What every script here keeps of itself: its arguments, its data sets' items, and each batch as it came."""

from __future__ import annotations

import argparse
import atexit
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

ROWS, ROWS_VALIDATED, WIDTH = 48, 12, 8


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0)
    return parser


def decoded(*ids: int) -> None:
    """Count items of the training set, in whatever process they are made."""
    with open(os.environ["FRAMEWORKS_DECODED"], "a") as file:
        file.write("".join(f"{id}\n" for id in ids))


class Numbers(Dataset[dict[str, Any]]):
    """Rows of numbers with their ids; what is to be learned is the sum of a row."""

    def __init__(self, rows: int, scale: float, counted: bool) -> None:
        self.scale = scale
        self.counted = counted
        self.rows = torch.rand(rows, WIDTH, generator=torch.Generator().manual_seed(rows))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, id: int) -> dict[str, Any]:
        if self.counted:
            decoded(id)
        x = self.rows[id] * self.scale
        return {"x": x, "y": self.rows[id].sum(), "id": id}


def numbers(scale: float) -> tuple[Numbers, Numbers]:
    """Return a training and a validation set."""
    return Numbers(ROWS, scale, counted=True), Numbers(ROWS_VALIDATED, scale, counted=False)


class Model(torch.nn.Module):
    """A line through the rows, from the same start in every run."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.line = torch.nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.line(x)[:, 0]


class Report:
    """Written line by line, so that it can be read while the script goes on, and of one that is killed.

    At the steps that ``FRAMEWORKS_HOLD`` names, the script waits until a file of that number is there.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", buffering=1)
        self._steps = 0
        self._holds = os.environ.get("FRAMEWORKS_HOLD", "").split()
        self._write("pid", os.getpid())

    def length(self, loader: Any) -> None:
        self._write("len", len(loader))

    def batch(self, epoch: int, ids: Any, values: Any, batch: Any) -> None:
        """Note a training step: the rows' ids, a number of each row's content, and the batch as it came."""
        self._steps += 1
        self._write("batch", {"epoch": epoch, "ids": listed(ids), "values": listed(values), "kind": kind(batch)})
        while str(self._steps) in self._holds and not Path(f"released-{self._steps}").exists():
            time.sleep(0.02)

    def validated(self, ids: Any) -> None:
        self._write("validated", listed(ids))

    def metric(self, value: float) -> None:
        """Note a loss in validation, at the start and after each epoch."""
        self._write("metric", float(value))

    def end(self) -> None:
        self._write("end", self._steps)

    def _write(self, what: str, value: Any) -> None:
        self._file.write(json.dumps([what, value]) + "\n")


def end_of_ranks() -> None:
    """End a rank's process after its exit handlers, and before Python ends.

    A thread of gloo's that still waits for the interpreter then aborts the process (PyTorch issue 190489), and a
    DistributedDataParallel keeps such threads alive when its process group is destroyed.
    """
    if "LOCAL_RANK" in os.environ:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(0)


def listed(rows: Any) -> list[Any]:
    return rows.tolist() if isinstance(rows, torch.Tensor) else [*rows]


def kind(batch: Any) -> Any:
    """Describe a batch's types and dtypes, without its sizes."""
    if isinstance(batch, torch.Tensor):
        return f"{type(batch).__name__} {batch.dtype} {batch.ndim}"
    if isinstance(batch, Mapping):
        return [type(batch).__name__, {key: kind(value) for key, value in batch.items()}]
    if isinstance(batch, (list, tuple)):
        return [type(batch).__name__, [kind(value) for value in batch[:3]]]
    return type(batch).__name__
