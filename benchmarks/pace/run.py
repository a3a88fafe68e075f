"""A run that trains: ``python -m benchmarks.pace.run FILE``, where the file says how, and gets what it took."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec
from benchmarks.pace.source import WINDOW, maker

import penstock


class Run(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a run trains."""

    rows: int  # images of a batch
    step_s: float  # time that it trains on a batch
    starts_s: float = 0.0  # times are counted from the world's beginning
    ends_s: float = float("inf")
    then: tuple[float, float] | None = None  # from when its steps take how long
    burns: bool = False  # whether it computes while it trains
    pauses: tuple[float, float] | None = None  # how long, and how often: each so many seconds, 0 for each epoch


class Task(msgspec.Struct, frozen=True):
    """A run, and what it reads."""

    run: Run
    kind: str
    where: str
    samples: int
    name: str
    together: bool
    began_s: float  # as time.time() has it
    seconds: float


class Took(msgspec.Struct):
    """What a run took in each second."""

    images: list[int]
    longest_wait_s: list[float]
    feeds: list[str]
    cpu_s: float = 0.0
    batches: int = 0


def train(task: Task) -> Took:
    run, seconds = task.run, int(task.seconds)
    took = Took([0] * seconds, [0.0] * seconds, [""] * seconds)
    time.sleep(max(0.0, task.began_s + run.starts_s - time.time()))
    options = {"pace": "together"} if task.together else {}
    window = "256MiB" if task.kind == "images" else WINDOW if task.kind == "rationed" else "64MiB"
    made = maker(task.kind, task.where, task.samples)
    with penstock.share(made, task.name, run.rows, window=window, linger=1, **options) as loader:  # type: ignore[arg-type]
        batches, paused, started_cpu_s = iter(loader), time.time(), time.process_time()
        while (asked := time.time()) < task.began_s + min(seconds, run.ends_s):
            batch = next(batches, None)
            now = time.time()
            if (at := int(now - task.began_s)) >= seconds:
                break
            took.longest_wait_s[at] = max(took.longest_wait_s[at], now - asked)
            if batch is None:
                batches = iter(loader)
                if run.pauses and not run.pauses[1]:
                    time.sleep(run.pauses[0])
                continue
            took.images[at] += run.rows
            took.feeds[at] = loader.name
            took.batches += 1
            step_s = run.then[1] if run.then and now >= task.began_s + run.then[0] else run.step_s
            until = time.thread_time() + step_s
            while run.burns and time.thread_time() < until:
                sum(range(1_000))
            if not run.burns and step_s:
                time.sleep(max(0.0, step_s - (time.time() - now)))
            if run.pauses and run.pauses[1] and now > paused + run.pauses[1]:
                time.sleep(run.pauses[0])
                paused = time.time()
    took.cpu_s = time.process_time() - started_cpu_s
    return took


if __name__ == "__main__":
    file = Path(sys.argv[1])
    took = train(msgspec.json.decode(file.read_bytes(), type=Task))
    file.with_suffix(".took").write_bytes(msgspec.json.encode(took))
    os._exit(0)
