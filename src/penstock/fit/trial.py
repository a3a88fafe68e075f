"""What copies of a command were measured to take, as runs of theirs tell it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from penstock.runs.compare import group_figures
from penstock.runs.figures import training
from penstock.runs.record import RunRecord
from penstock.runs.store import Series
from penstock.runs.trial import MEASURED, MUCH, LoopRates, MeasuredTrial, batches_of

_NO_MEMORY = (
    *("can't allocate memory", "Cannot allocate memory", "MemoryError"),
    *("is killed by signal: Killed", "is killed by signal: Bus error"),
)


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What copies of a command took at one setting, all of them together."""

    value: int  # the setting: a batch size, a number of workers, or of copies
    share: bool = False  # whether they read one feed
    samples_per_s: float = 0.0  # samples that they were given in a second of their loops; 0 if they failed
    batch: float = 0.0  # samples of a batch
    waiting: float = 0.0  # part of their loops in which they waited for data, from 0 to 1
    memory_bytes: int = 0  # the most that they held at one moment, on one GPU or of the host; 0 where nobody knows
    processes: int = 0
    """The most that they had at one moment, once each had had its first batches; 0 where a feed loads."""
    busy_cores: float = 0.0  # cores that they kept busy, their feed among them; 0 where nobody knows
    first_s: float = 0.0  # seconds until each had its first batch
    seconds: float = 0.0  # seconds that the trial took
    advice: str = ""  # the kind of ``RunAdvice`` for the first of them
    failed: str = ""  # why nothing was measured; else empty
    out_of_memory: bool = False  # whether that was for want of memory
    run_id: str = ""  # the first of them in the store

    @property
    def name(self) -> str:
        return f"{self.value:,}{' shared' * self.share}"


def trial_of(
    runs: Sequence[RunRecord],
    series: Mapping[str, Mapping[str, Series]],  # their series, by id
    trial: MeasuredTrial,  # in which they ran
    *,
    memory_bytes: int,  # the most that they held of the host; 0 where that does not count
    share: bool,  # whether they were to read one feed
) -> Trial:
    """Return what runs that have ended took together."""
    over, first_s = trial.over, trial.first_s
    loops = [LoopRates.of(series[run.id], trial.warm_batches, trial.since_s) for run in runs]
    known = [loop for loop in loops if loop is not None]
    failed = over or _failed(runs, series, measured=len(known))
    if failed:
        lacked = over == MUCH or any(map(_lacked_memory, runs))
        return Trial(value=0, failed=failed, out_of_memory=lacked, memory_bytes=memory_bytes, first_s=first_s)
    since_s = max(loop.since_s for loop in known)
    late = [_after(run, since_s) for run in runs]
    figures = group_figures(late, lambda run: {name: _cut(each, since_s) for name, each in series[run.id].items()})
    if share and not all(run.on_feed for run in figures.runs):
        return Trial(value=0, failed="its loader cannot be shared: penstock run --share --explain says why")
    on_gpus = [each["gpu.memory_bytes"].values.max() for each in series.values() if "gpu.memory_bytes" in each]
    return Trial(
        value=0,
        samples_per_s=sum(loop.samples_per_s for loop in known),
        batch=known[0].batch,
        waiting=float(np.mean([loop.waiting for loop in known])),
        memory_bytes=memory_bytes or int(sum(on_gpus)),
        busy_cores=trial.runner.cpu_s / trial.runner.seconds if trial.runner.seconds else 0.0,
        first_s=first_s,
        processes=0 if any(run.on_feed for run in figures.runs) else trial.runner.processes,
        advice=next((each.kind for each in figures.advice.values()), ""),
    )


def _failed(runs: Sequence[RunRecord], series: Mapping[str, Mapping[str, Series]], *, measured: int) -> str:
    """Return why nothing is known of runs; empty if all that is wanted is."""
    for run in runs:
        ended_by_us = run.status == "killed" and run.reason.startswith(MEASURED)
        if run.status != "finished" and not ended_by_us:
            return f"{run.status.replace('_', ' ')}: {run.reason}"
    if measured == len(runs):
        return ""
    batches = min(batches_of(series[run.id]) for run in runs)
    if batches and any(f"{training(series[run.id])}samples" not in series[run.id] for run in runs):
        return "nobody can count its batches' samples: give its loader a batch_size"
    if any(run.status == "killed" for run in runs):
        return f"its steps are too slow: it asked for {batches:,.0f} batches; --first-batch gives it longer"
    return (
        "it asked no torch DataLoader and no feed for more than a few batches: without one nothing can be "
        "measured, and with one let it run for more epochs"
    )


def _lacked_memory(run: RunRecord) -> bool:
    return run.status == "out_of_memory" or any(text in run.reason for text in _NO_MEMORY)


def _after(run: RunRecord, since_s: float) -> RunRecord:
    """Return a run as if it had begun at a moment."""
    began_s, seconds = run.began or 0.0, run.seconds or 0.0
    return replace(run, began=since_s, seconds=max(0.1, began_s + seconds - since_s))


def _cut(series: Series, since_s: float) -> Series:
    late = series.times_s >= since_s
    return Series(series.times_s[late], series.values[late]) if late.any() else series
