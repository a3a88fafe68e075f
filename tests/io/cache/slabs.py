"""Slabs to test with."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np

from penstock.contracts import ByteArray
from penstock.io.cache.slab import Allowance, Item, Slab

ORIGIN = 7
OPENED: list[Slab] = []


def opened(folder: Path, limit: int = 1 << 30) -> Slab:
    """Open the slab of a folder."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    data, index, lock = (os.open(folder / name, flags) for name in ("data", "index", "lock"))
    return closed_later(Slab(data, index, lock, lambda _: Allowance(limit - os.fstat(data).st_size, "full")))


def closed_later(slab: Slab) -> Slab:
    """Close it after the test."""
    OPENED.append(slab)
    return slab


def close_all() -> None:
    while OPENED:
        OPENED.pop().close()


def content(key: int, nbytes: int = 5000) -> bytes:
    """Return bytes that tell which key they are of."""
    return np.random.default_rng(key).bytes(nbytes)


def items(*keys: int, nbytes: int = 5000) -> list[Item]:
    return [Item(key, ORIGIN, content(key, nbytes), key % 7, key % 11) for key in keys]


def read(slab: Slab, key: int) -> bytes | None:
    """Return what was kept of a key; None for nothing."""
    slab.refresh()
    (row,) = slab.find(np.array([key], np.uint64)).tolist()
    if row < 0:
        return None
    found: ByteArray | None = slab.read(row)
    return None if found is None else found.tobytes()


def forked(what: Callable[[], None]) -> int:
    """Do it in a child, which ends with status 0 unless it raises; return the child's pid."""
    if (pid := os.fork()) == 0:
        try:
            what()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(2)
    return pid


def ends_well(pid: int) -> bool:
    return os.waitpid(pid, 0)[1] == 0
