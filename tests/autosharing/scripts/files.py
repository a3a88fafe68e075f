"""A script whose data set names a file that is written to while it trains, and that makes its loader anew."""

from __future__ import annotations

import fcntl
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

N, FILE = 12, Path(sys.argv[2])


class Rows(Dataset[int]):
    def __init__(self) -> None:
        self.file = str(FILE)

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> int:
        return i


def locked() -> None:
    with FILE.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def appended() -> None:
    with FILE.open("a") as file:
        file.write("a line\n")


def written() -> None:
    FILE.write_text("the same\n")


def logged() -> Callable[[], None]:
    logger = logging.getLogger("train")
    logger.addHandler(logging.FileHandler(FILE))
    return lambda: logger.warning("a line")


write = {
    "lock": locked,
    "append": appended,
    "index": written,
    "log": logged() if sys.argv[1] == "log" else locked,
}[sys.argv[1]]
for _ in range(3):
    write()
    ids: list[int] = []
    for batch in DataLoader(Rows(), 4, shuffle=True):
        ids += batch.tolist()
        while sys.argv[3:] and not Path(sys.argv[3]).exists():
            time.sleep(0.01)
    assert sorted(ids) == list(range(N))
