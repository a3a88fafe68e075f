"""How fast a feed of tables is, and other loaders, each in processes of their own."""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from benchmarks.children import ENVIRONMENT, ROOT, command
from benchmarks.measure.pool import ONE_THREAD, MemberFailed, ProcessPool

FRAMEWORKS = Path(sys.prefix) / "frameworks" / "bin" / "python"
PYTHONS = {
    "to_batches": Path(sys.executable),
    "datasets": FRAMEWORKS,
    "texts": FRAMEWORKS,
    "ray": ROOT / ".venv-ray" / "bin" / "python",
}
"""Where other loaders are installed, by arm of ``peers``."""
PEERS = Path(__file__).with_name("peers.py")
WINDOW_BYTES = 64 << 20
_LIMIT_S = 600.0
_LOOK_S = 0.05


class Fed(NamedTuple):
    """What trainers of one feed got."""

    first: float  # rows a second that all got together in their first epochs, from the feeder's beginning on
    later: float  # the same in the epochs after it; 0 if there were none
    memory: int  # the feeder's memory at most, in bytes, with the pages of its ring


def fed(data: str, *, batch_size: int, trainers: int = 1, epochs: int = 1, **options: Any) -> Fed:
    """Feed tables to trainers that only count."""
    words = {"data": data, "trainers": trainers, "batch_size": batch_size, "window": WINDOW_BYTES, **options}
    taken = json.dumps({"batch_size": batch_size, "epochs": epochs})
    with _pool() as pool:
        (feeder,) = pool.start(command("benchmarks.columns.ours", "feed", json.dumps(words)), 1, ENVIRONMENT)
        members = pool.start(command("benchmarks.columns.ours", "take", taken), trainers, ENVIRONMENT)
        for each in (feeder, *members):
            each.hear_of("ready", _deadline())
        with _watched(feeder.pid) as seen:
            for each in (*members, feeder):
                each.send("begin")
            began = feeder.hear_of("began", _deadline())["began"]
            ended = [member.hear_of("ends", _deadline()) for member in members]
    rows = sum(each["rows"] for each in ended) / epochs
    first, last = (max(each["ends"][i] for each in ended) for i in (0, -1))
    later = rows * (epochs - 1) / (last - first) if epochs > 1 else 0.0
    return Fed(rows / (first - began), later, *seen)


def into_ring(data: str, *, batch_size: int, **options: Any) -> float:
    """Rows a second of a cycle that is written into a ring."""
    words = {"data": data, "batch_size": batch_size, "window": WINDOW_BYTES, **options}
    with _pool() as pool:
        (one,) = pool.start(command("benchmarks.columns.ours", "ring", json.dumps(words)), 1, ENVIRONMENT)
        one.hear_of("ready", _deadline())
        one.send("begin")
        return one.hear_of("rows_per_s", _deadline())["rows_per_s"]


def peers(
    arm: str, data: str, scratch: Path, *, batch_size: int, workers: int, seconds: float, count: int = 1
) -> float:
    """Rows a second of another loader, or of several at once together."""
    words = [str(PEERS), arm, data, str(scratch), str(batch_size), str(workers)]
    with _pool() as pool:
        members = pool.start([str(PYTHONS[arm]), *words], count, ONE_THREAD)
        for member in members:
            member.hear_of("ready", _deadline())
        for member in members:
            member.send(seconds)
        rates = [member.hear_of("rows_per_s", _deadline())["rows_per_s"] for member in members]
        for member in members:
            member.send("end")
    return sum(rates)


def is_installed(arm: str) -> bool:
    return PYTHONS[arm].exists()


@contextmanager
def _pool() -> Generator[ProcessPool]:
    """Processes whose last words are told if one fails."""
    with tempfile.TemporaryDirectory() as folder, ProcessPool(Path(folder)) as pool:
        try:
            yield pool
        except MemberFailed as error:
            raise MemberFailed(f"{error}: {pool.errors()}") from None


def _deadline() -> float:
    return time.monotonic() + _LIMIT_S


@contextmanager
def _watched(pid: int) -> Generator[list[int]]:
    """Give the most memory of a process at the end; a feeder of tables has no children."""
    found, over = [0], threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_S):
            try:
                found[0] = max(found[0], psutil.Process(pid).memory_info().rss)
            except psutil.NoSuchProcess:
                continue

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()
