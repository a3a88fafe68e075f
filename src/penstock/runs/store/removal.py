"""Which runs are removed for good, when, and what that frees."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from penstock.runs.record import RunRecord

KEPT_DAYS = 7
"""For how long a deleted run can be brought back."""


class Removed(NamedTuple):
    """A run that was removed, and the bytes that it took on the disk."""

    run: RunRecord
    nbytes: int


def forgotten_s() -> float:
    """Return the moment before which deleted runs cannot be brought back, in seconds since 1970."""
    return time.time() - KEPT_DAYS * 86400


def disk_bytes(folder: Path) -> int:
    """Return what a folder's files take on the disk."""
    nbytes = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            nbytes += path.lstat().st_blocks * 512
    return nbytes


def pruned(
    runs: Sequence[Removed], ends: Mapping[str, float], keep_s: float | None, max_bytes: int | None
) -> list[Removed]:
    """Choose what is removed, the oldest first, until those left are young and small enough.

    ``ends`` says when those ended that may be removed, by their ids, in seconds since 1970. A run is kept for
    ``keep_s`` after its end, if the folders of all take ``max_bytes`` at most.
    """
    total = sum(nbytes for _, nbytes in runs)
    chosen: list[Removed] = []
    for each in sorted((each for each in runs if each.run.id in ends), key=lambda each: ends[each.run.id]):
        too_old = keep_s is not None and ends[each.run.id] < time.time() - keep_s
        if too_old or (max_bytes is not None and total > max_bytes):
            chosen.append(each)
            total -= each.nbytes
    return chosen
