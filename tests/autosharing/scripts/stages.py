"""Epochs whose samples hang on memory that workers share. Prints, as JSON, what each epoch had."""

from __future__ import annotations

import json
import mmap
import multiprocessing
import sys
from multiprocessing import shared_memory
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

N = 12
ended: list[Any] = []


class Staged(Dataset[int]):
    def __init__(self, stage: Any) -> None:
        self.stage, self.label = stage, 0

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> int:
        return int(self.stage[0]) * 100 + self.label


class ByName(Staged):
    """Reads a block of memory that it holds by its name."""

    def __getitem__(self, i: int) -> int:
        return self.stage.buf[0] * 100


def tensor() -> Any:
    return torch.zeros(1, dtype=torch.int64).share_memory_()


def array() -> Any:
    return np.frombuffer(multiprocessing.RawArray("i", 1), np.int32)


def block() -> Any:
    made = shared_memory.SharedMemory(create=True, size=1)
    ended.extend([made.unlink, made.close])
    return made


def view() -> Any:
    return np.ndarray(1, np.uint8, block().buf)


def mapped(mode: Any = "r+") -> Any:
    np.zeros(4, np.int64).tofile("stage")
    return np.memmap("stage", np.int64, mode)


def read_only() -> Any:
    return mapped("r")


def anonymous() -> Any:
    return np.frombuffer(mmap.mmap(-1, 4096), np.uint8)


def set_to(data: Any, stage: int) -> None:
    (data.stage.buf if isinstance(data, ByName) else data.stage)[0] = stage


def run(kind: str, change: str) -> list[list[int]]:
    """Change the stage, or an attribute that workers do not see, from the third epoch on; or nothing."""
    data = (ByName if kind == "block" else Staged)(globals()[kind]())
    loader = DataLoader(data, 4, shuffle=True, num_workers=1, persistent_workers=True)
    seen = []
    for epoch in range(5):
        if epoch > 1 and change == "stage":
            set_to(data, epoch)
        if epoch > 1 and change == "label":
            data.label = epoch
        seen.append(sorted({int(x) for batch in loader for x in batch}))
    del loader
    return seen


torch.manual_seed(0)
print(json.dumps(run(*sys.argv[1:])))
for end in ended:
    end()
