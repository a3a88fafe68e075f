"""What to change first in a training run, from where its time goes: rules, each with its numbers and a remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.runs.figures import RunFigures

MUCH_WAITING = 0.1
"""RunAdvice is given to a run that waits for data for at least this part of its time."""
_MUCH_COPYING = 0.2
_MUCH_OTHER = 0.5
_BUSY = 0.85
_OWN = 0.5
"""Runs that cause at least this part of the load on CPUs or a disk are held responsible for it."""

UNRECORDED = (
    "How long a run waits for data is recorded of `penstock.share` and of DataLoaders, unless `penstock run` has "
    "--no-watch-dataloader."
)


class RunAdvice(NamedTuple):
    """What holds a run back, and what to do about it."""

    kind: str  # the rule that gave it: "share", "workers", …
    text: str  # a sentence that begins with what the run does


class Cpus(NamedTuple):
    """CPUs while runs ran, in parts of what they may use, from 0 to 1; None where nobody recorded it."""

    busy: float | None  # busy, whoever used them
    used: float | None  # used by these runs


def cpus_of(together: Sequence[RunFigures], seconds: float) -> Cpus:
    """Return how the CPUs were used in the time of some runs."""
    cores_s = max((run.cores or 0.0 for run in together), default=0.0) * seconds
    cpu_s = [run.cpu_s for run in together if run.cpu_s is not None]
    used = min(1.0, sum(cpu_s) / cores_s) if len(cpu_s) == len(together) and cores_s > 0 else None
    # Their own CPU time counts where they may use a part of the machine's cores only.
    busy = [each for each in (used, *(run.machine_busy for run in together)) if each is not None]
    return Cpus(max(busy, default=None), used)


def advise(run: RunFigures, cpus: Cpus, together: Sequence[RunFigures]) -> RunAdvice | None:
    """Return what to change first in a run; None if too little was recorded to judge.

    ``together`` are the runs that ran at one time, this one included; ``cpus`` are those of that time.
    """
    parts = run.parts
    if parts.waiting is None:
        return None
    if parts.waiting >= MUCH_WAITING:
        return _for_waiting(run, f"waits {parts.waiting:.0%} of its time for data", cpus, together)
    if parts.copying is not None and parts.copying >= _MUCH_COPYING:
        return RunAdvice(
            "copy",
            f"spends {parts.copying:.0%} of its time copying to the GPU: load with pin_memory=True and copy with "
            'non_blocking=True, or let penstock.share(…, device="cuda") hand out batches that are there',
        )
    if parts.starting is not None and parts.starting >= _MUCH_OTHER:
        return RunAdvice(
            "start",
            f"spends {parts.starting:.0%} of its time before its first batch: imports and set-up; it waits "
            f"{parts.waiting:.0%} for data: look there first, data does not hold it back",
        )
    if parts.other is not None and parts.other >= _MUCH_OTHER:
        return RunAdvice(
            "other",
            f"spends {parts.other:.0%} of its time outside its loops over data: evaluation or saving; it waits "
            f"{parts.waiting:.0%} for data: look there first, data does not hold it back",
        )
    computes = "" if parts.computing is None else f"computes {parts.computing:.0%} of its time and "
    return RunAdvice(
        "none",
        f"{computes}waits {parts.waiting:.0%} for data: data is not what holds it back; penstock "
        "advise batch-size and together say what else may",
    )


def _for_waiting(run: RunFigures, waits: str, cpus: Cpus, together: Sequence[RunFigures]) -> RunAdvice:
    if run.held_up_by is not None:
        slow = next((other.name for other in together if other.index == run.held_up_by), f"#{run.held_up_by}")
        return RunAdvice(
            "slowest",
            f"{waits}, because its feed waits for run {slow!r}: give that one a feed of its own, or all a larger "
            "window (penstock.share(…, window=…))",
        )
    if run.disk_busy is not None and run.disk_busy >= _BUSY:
        moved = [other.moved_bytes for other in together if other.moved_bytes is not None]
        if run.disk_bytes and len(moved) == len(together) and sum(moved) < _OWN * run.disk_bytes:
            own = f"moved {sum(moved) / run.disk_bytes:.0%} of its bytes"
            return _others(waits, f"disk {run.disk}", run.disk_busy, own, "read from another disk")
        return RunAdvice(
            "storage",
            f"{waits} while disk {run.disk} is busy {run.disk_busy:.0%}: penstock pack makes it read less, "
            "penstock advise reader shows how to read",
        )
    if cpus.busy is None:
        return RunAdvice("unknown", f"{waits}: run it with --listeners proc,host,disk to know what that waits for")
    if cpus.busy < _BUSY:
        where = "the feed's loader" if run.on_feed else "its loader"
        busy = f"{waits} while the CPUs are busy {cpus.busy:.0%}"
        return RunAdvice(
            "workers", f"{busy}: give {where} more num_workers (penstock advise workers says how many)"
        )
    if cpus.used is not None and cpus.used < _OWN * cpus.busy:
        return _others(waits, "the CPUs", cpus.busy, f"use {cpus.used:.0%}", "reserve cores for it")
    busy = f"{waits} while the CPUs are busy {cpus.busy:.0%}"
    others = len({other.id for other in together} - {run.id})
    if run.on_feed or not others:
        return RunAdvice("pack", f"{busy}: do the decoding once and for all with penstock pack")
    if run.script and all(other.script == run.script for other in together):
        return RunAdvice(
            "share",
            f"{busy}: all {others + 1} run {run.script}; if they read the same data, feed them from one loader "
            f"(penstock.share), which decodes it once instead of {others + 1} times",
        )
    return RunAdvice(
        "share",
        f"{busy}: those of the {others + 1} that read the same data can read it from one loader (penstock.share)",
    )


def _others(waits: str, what: str, busy: float, own: str, otherwise: str) -> RunAdvice:
    text = f"{waits} while other programs occupy {what} ({busy:.0%}; it and the runs beside it {own})"
    return RunAdvice("others", f"{text}: end those first, or {otherwise}")
