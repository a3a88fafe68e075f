"""What scripts wait for, alone and under ``--share``: their own clocks against what their runs' figures say.

python -m benchmarks own_clocks --json benchmarks/results/own_clocks.json

Two runs of each script read together. Each has a clock round ``iter()`` and ``next()`` of its loaders.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.children import ENVIRONMENT
from benchmarks.claim import ResultsFile, claim, report

import penstock
from penstock.runs.figures import run_figures
from penstock.runs.store import Store

TOGETHER = 2
FIGURES = ("wait_s", "loop_s", "epoch_s", "batches", "samples")


class Clock:
    """A script's own clock."""

    def __init__(self) -> None:
        self.wait_s = 0.0
        self.batches = self.samples = 0
        self.epochs: list[float] = []
        self.began_s = self.ended_s = 0.0

    def asked(self, call: Callable[..., Any], *arguments: Any) -> Any:
        since_s = time.perf_counter()
        try:
            return call(*arguments)
        finally:
            self.wait_s += time.perf_counter() - since_s

    def loop(self, loader: Any, *, is_epoch: bool = True) -> Iterator[Any]:
        since_s = time.perf_counter()
        self.began_s = self.began_s or since_s
        batches = self.asked(iter, loader)
        try:
            while (batch := self.asked(next, batches, None)) is not None:
                self.batches += 1
                self.samples += len(batch)
                yield batch
            if is_epoch:
                self.epochs.append(time.perf_counter() - since_s)
        finally:
            self.ended_s = time.perf_counter()

    def told(self) -> dict[str, float | None]:
        mean_s = sum(self.epochs) / len(self.epochs) if self.epochs else None
        loop_s = self.ended_s - self.began_s
        return dict(zip(FIGURES, (self.wait_s, loop_s, mean_s, self.batches, self.samples), strict=True))


def train(kind: str, clock: Clock) -> None:
    """Train as scripts of one kind do; nothing here stops between two epochs."""
    import torch
    from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

    class Rows(Dataset[Any]):
        def __init__(self, rows: int, load_s: float) -> None:
            self.rows, self.load_s = rows, load_s

        def __len__(self) -> int:
            return self.rows

        def __getitem__(self, i: int) -> Any:
            time.sleep(self.load_s)
            return torch.full((16384,), float(i))

    class Repeated:
        """The batch sampler of timm's ``MultiEpochsDataLoader``."""

        def __init__(self, sampler: Any) -> None:
            self.sampler = sampler

        def __iter__(self) -> Iterator[Any]:
            while True:
                yield from iter(self.sampler)

    Repeated.__name__ = "_RepeatSampler"

    class Kept(DataLoader[Any]):
        """Keeps one iterator for all epochs."""

        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self._DataLoader__initialized = False
            self.batch_sampler = Repeated(self.batch_sampler)
            self._DataLoader__initialized = True

        def __len__(self) -> int:
            return len(self.batch_sampler.sampler)  # type: ignore[attr-defined]

    def step(step_s: float) -> None:
        time.sleep(step_s * (1 + int(os.environ["PENSTOCK_RUN_INDEX"])))  # at two speeds

    if kind == "epochs":
        loader: Any = DataLoader(Rows(1600, 0.001), 16, shuffle=True)
        for _ in range(3):
            for _ in clock.loop(loader):
                step(0.01)
    elif kind == "workers and validation":
        loader = DataLoader(Rows(1200, 0.004), 16, shuffle=True, num_workers=2, persistent_workers=True)
        for _ in range(3):
            for _ in clock.loop(loader):
                step(0.005)
            with torch.no_grad():
                for _ in clock.loop(DataLoader(Rows(160, 0.002), 32), is_epoch=False):
                    step(0.01)
    elif kind == "two loaders":
        loaders = DataLoader(Rows(600, 0.001), 8, shuffle=True), DataLoader(Rows(2100, 0.001), 16, shuffle=True)
        labelled, unlabelled = (asked_on(clock, each) for each in loaders)
        for _ in range(200):
            next(labelled), next(unlabelled)
            step(0.01)
        labelled.close(), unlabelled.close()
        clock.epochs = []  # which of the two loaders counts as the larger one changes while they are read
    elif kind == "without end":
        rows = Rows(500, 0.002)
        loader = DataLoader(rows, 16, sampler=RandomSampler(rows, replacement=True, num_samples=int(1e10)))
        batches = clock.loop(loader)
        for _ in range(300):
            next(batches)
            step(0.005)
        batches.close()
    elif kind == "kept iterator":
        loader = Kept(Rows(1600, 0.001), 16, shuffle=True)
        assert isinstance(loader.batch_sampler.sampler, BatchSampler)
        clock.began_s = time.perf_counter()
        batches = clock.asked(iter, loader)
        for _ in range(3):
            for _ in range(len(loader)):
                clock.samples += len(clock.asked(next, batches))
                clock.batches += 1
                step(0.01)
        del batches
        clock.ended_s = time.perf_counter()


def asked_on(clock: Clock, loader: Any) -> Iterator[Any]:
    while True:
        yield from clock.loop(loader)


KINDS = ("epochs", "workers and validation", "two loaders", "without end", "kept iterator")


def measured(kind: str, *, share: bool) -> list[dict[str, Any]]:
    """Run a script's two runs; return of each what its own clock says, and what the figures do."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        environment = {**os.environ, **ENVIRONMENT, "PENSTOCK_DIR": folder, "PENSTOCK_STORE": f"{folder}/store"}
        options = ["--share"] * share
        command = [sys.executable, "-m", "penstock", "run", *options, "-n", str(TOGETHER)]
        done = subprocess.run(
            [*command, sys.executable, __file__, kind],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or share != ("reads feed" in done.stdout + done.stderr):
            raise SystemExit(f"{kind}:\n{done.stdout}{done.stderr}")
        with Store.open(Path(folder, "store")) as store:
            found: list[dict[str, Any]] = []
            for run in store.runs():
                series = store.series(run.id)
                figures = run_figures(run, series)
                parts = figures.parts
                assert parts.waiting is not None and parts.other is not None and parts.starting is not None
                values = (
                    parts.waiting * figures.seconds,
                    (1 - parts.other - parts.starting) * figures.seconds,
                    figures.epoch_s,
                    figures.batches,
                    figures.samples,
                )
                own = json.loads(Path(store.folder_of(run.id), "files", "own.json").read_text())
                found.append({"own": own, "figures": dict(zip(FIGURES, values, strict=True))})
            return found


def apart(pair: dict[str, Any]) -> float:
    """Return by how much the figure that is furthest from a script's own clock differs, in percent."""
    own, figures = pair["own"], pair["figures"]
    return max(100 * abs(figures[name] - own[name]) / own[name] for name in FIGURES if own[name] is not None)


def train_and_tell(kind: str) -> None:
    clock = Clock()
    train(kind, clock)
    run = penstock.current_run()
    assert run is not None
    run.folder.mkdir(exist_ok=True)
    Path(run.folder, "own.json").write_text(json.dumps(clock.told()))


def main(file: ResultsFile = None) -> None:
    raw: dict[str, list[dict[str, Any]]] = {}
    for share in (False, True):
        for kind in KINDS:
            name = f"{kind}, shared" if share else kind
            raw[name] = measured(kind, share=share)
            print(name, json.dumps(raw[name]), flush=True)
    apart_percent = {kind: max(map(apart, pairs)) for kind, pairs in raw.items()}
    what = "alone and on feeds, two runs each: the figure furthest off the script's own clock, by"
    claims = [claim(f"{len(KINDS)} scripts {what}", "%", [max(apart_percent.values())], most=1)]
    report(claims, file, apart_percent=apart_percent, raw=raw)


if __name__ == "__main__":
    train_and_tell(sys.argv[1])
