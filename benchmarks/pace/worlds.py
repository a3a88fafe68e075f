"""Worlds of runs, and what each takes in them: by pace, together on one feed, or each with a feed of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from benchmarks.pace.run import Run, Task, Took
from benchmarks.pace.source import ration_of, write_ration

import penstock
from penstock.linux.process import descendants, pss_bytes

LEAD_S, EACH_S = 5.0, 0.6
"""Processes are there so long after they were started, and for each run."""


@dataclass(frozen=True)
class World:
    runs: Sequence[Run]
    kind: str = "rationed"
    samples: int = 20_000
    seconds: float = 600.0
    limits: Sequence[tuple[float, float]] = ()  # from a second on, samples/s that all feeds together get
    stopped: tuple[float, float] | None = None  # when the last run gets SIGSTOP, and SIGCONT
    arms: Sequence[str] = ("pace", "together")


@dataclass
class Trial:
    """A world in one arm, while it runs and when it has run."""

    world: World
    arm: str
    name: str
    where: str
    runs: list[subprocess.Popen[bytes]] = field(default_factory=list)
    tasks: list[Path] = field(default_factory=list)
    took: list[Took] = field(default_factory=list)
    pss_bytes: int = 0
    published: dict[str, tuple[int, int]] = field(
        default_factory=dict
    )  # of each feed, when counted first and last
    feeds_at_end: int = 0
    counts_from_s: float = 0.0  # from when ``published`` is counted: two thirds of the time
    counted_s: float = 0.0
    prepared: int = 0  # samples that all feeds have published in that time

    def start(self, folder: Path, began: float) -> None:
        world = self.world
        if world.kind == "rationed":
            self.where = self.name
            write_ration(self.name, began, [*world.limits])
        for i, run in enumerate(world.runs):
            name = f"{self.name}-{i}" if self.arm == "own" else self.name
            together = self.arm == "together"
            task = Task(run, world.kind, self.where, world.samples, name, together, began, world.seconds)
            self.tasks.append(folder / f"{self.name}-{i}.json")
            self.tasks[-1].write_bytes(msgspec.json.encode(task))
            words = [sys.executable, "-m", "benchmarks.pace.run", str(self.tasks[-1])]
            self.runs.append(subprocess.Popen(words, stderr=self.tasks[-1].with_suffix(".said").open("wb")))

    def look(self, second: float, feeds: Sequence[Any]) -> None:
        """Stop, let go on, and count, when it is time."""
        world, mine = self.world, [feed for feed in feeds if feed.name.startswith(self.name)]
        if world.stopped:
            is_stopped = world.stopped[0] <= second < world.stopped[1]
            self.runs[-1].send_signal(signal.SIGSTOP if is_stopped else signal.SIGCONT)
        if second >= 2 * world.seconds / 3:
            self.counts_from_s = self.counts_from_s or second
            for feed in mine:
                first, _ = self.published.get(feed.name, (0 if self.published else feed.samples, 0))
                self.published[feed.name] = first, feed.samples
        if second >= world.seconds - 5 and not self.pss_bytes:
            pids = {*(run.pid for run in self.runs), *(feed.pid for feed in mine)}
            self.pss_bytes = sum(map(pss_bytes, {*pids, *(each for pid in pids for each in descendants(pid))}))
            self.feeds_at_end, self.counted_s = len(mine), second - self.counts_from_s
            self.prepared = sum(last - first for first, last in self.published.values())

    def end(self) -> None:
        ration_of(self.name).unlink(missing_ok=True)
        for run, task in zip(self.runs, self.tasks, strict=True):
            if run.wait():
                raise SystemExit(f"a run failed:\n{task.with_suffix('.said').read_text()}")
        if not self.pss_bytes:
            raise SystemExit(f"{self.name}: nobody looked at its end")
        self.took = [msgspec.json.decode(each.with_suffix(".took").read_bytes(), type=Took) for each in self.tasks]

    def rates(self, from_s: float, to_s: float | None = None) -> list[float]:
        """Return the images that each run took per second, from one second to another."""
        to = int(to_s or self.world.seconds)
        return [sum(took.images[int(from_s) : to]) / (to - int(from_s)) for took in self.took]

    def splits(self) -> int:
        """Return how many feeds runs have parted to."""
        return len({name for took in self.took for name in took.feeds if "-pace-" in name})

    def as_json(self) -> dict[str, Any]:
        took = [
            {
                "images_per_10_s": [sum(each.images[i : i + 10]) for i in range(0, len(each.images), 10)],
                "longest_wait_s": [
                    round(max(each.longest_wait_s[i : i + 10]), 3) for i in range(0, len(each.images), 10)
                ],
                "feeds": counted(each.feeds),
            }
            for each in self.took
        ]
        seen = {"prepared": self.prepared, "counted_s": self.counted_s, "feeds_at_end": self.feeds_at_end}
        return {"took": took, "pss_bytes": self.pss_bytes, **seen}


def counted(names: Sequence[str]) -> list[tuple[str, int]]:
    """Return each feed that a run read, in its order, and for how many seconds."""
    found: list[tuple[str, int]] = []
    for name in filter(None, names):
        if found and found[-1][0] == name:
            found[-1] = name, found[-1][1] + 1
        else:
            found.append((name, 1))
    return found


def ran(worlds: dict[str, World], where: str, say: Any) -> dict[str, dict[str, Trial]]:
    """Run worlds, all at once, in all their arms."""
    tag = os.getpid()
    trials = {
        name: {arm: Trial(world, arm, f"p{tag}-{i}-{arm}", where) for arm in world.arms}
        for i, (name, world) in enumerate(worlds.items())
    }
    every = [trial for arms in trials.values() for trial in arms.values()]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        began = time.time() + LEAD_S + EACH_S * sum(len(trial.world.runs) for trial in every)
        for trial in every:
            trial.start(Path(folder), began)
            for run in trial.runs:
                stack.callback(run.kill)
        while (second := time.time() - began) < max(trial.world.seconds for trial in every):
            feeds = penstock.feeds()
            for trial in every:
                trial.look(second, feeds)
            time.sleep(1)
        for trial in every:
            trial.end()
    for name, arms in trials.items():
        for arm, trial in arms.items():
            rates = ", ".join(f"{rate:.1f}" for rate in trial.rates(trial.world.seconds / 2))
            say(f"{name}, {arm}: {rates} images/s, {trial.splits()} splits")
    return trials
