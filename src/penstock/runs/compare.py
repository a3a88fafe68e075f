"""Whether runs gain by running together: groups compared, in figures and sentences, and what to change first.

What to change first follows from where a run's time goes: rules, each with its numbers and a remedy.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from penstock.errors import BadSetting
from penstock.runs.figures import RunFigures, measured_energy_j, memory_bytes, run_figures
from penstock.runs.record import ENDED, RunRecord
from penstock.runs.store import Series

MUCH_WAITING = 0.1
"""RunAdvice is given to a run that waits for data for at least this part of its time."""
_MUCH_COPYING = 0.2
_MUCH_OTHER = 0.5
_BUSY = 0.85
_DELAYED = 0.1
"""Others are held responsible if a run that is ready to use a CPU finds none for this part of the time."""
_OWN = 0.5
"""Runs that cause at least this part of the load on CPUs or a disk are held responsible for it."""

UNRECORDED = (
    "How long a run waits for data is recorded of `penstock.share` and of DataLoaders, unless `penstock run` has "
    "--no-watch-dataloader."
)


_PARTS = {"copy": "copying", "start": "starting", "other": "other"}
"""The part of a run's time that a rule is about, where that is not waiting; penstock.web's time.js has it, too."""


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
            f"{waits}, because its feed waits for run {slow!r}: penstock status says why they have not parted; a "
            "larger window (penstock.share(…, window=…)) bridges pauses",
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
        return _more_workers(run, f"{waits} while the CPUs are busy {cpus.busy:.0%}")
    busy = f"{waits} while the CPUs are busy {cpus.busy:.0%}"
    if cpus.used is not None and cpus.used < _OWN * cpus.busy:
        delayed = max((other.delayed for other in together if other.delayed is not None), default=None)
        if delayed is None or delayed >= _DELAYED:
            return _others(waits, "the CPUs", cpus.busy, f"use {cpus.used:.0%}", "reserve cores for it")
        finds = f"its processes find a free one {1 - delayed:.0%} of the time that they want one"
        return _more_workers(run, f"{busy} by other programs, but {finds}")
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


def _more_workers(run: RunFigures, waits: str) -> RunAdvice:
    where = "the feed's loader" if run.on_feed else "its loader"
    text = f"{waits}: give {where} more num_workers (penstock advise workers says how many)"
    return RunAdvice("workers", text)


def _others(waits: str, what: str, busy: float, own: str, otherwise: str) -> RunAdvice:
    text = f"{waits} while other programs occupy {what} ({busy:.0%}; it and the runs beside it {own})"
    return RunAdvice("others", f"{text}: end those first, or {otherwise}")


AllSeries = Callable[[RunRecord], Mapping[str, Series]]
"""Returns all series of a run, by name."""


class GroupFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a group took; None where nobody recorded it of one of its runs."""

    id: str
    name: str
    mode: str
    starts: int  # how often it was started; more than once if groups of one name count as one
    runs: tuple[RunFigures, ...]
    seconds: float  # from the start of its first run to the end of its last; of several starts, the sum
    each_s: float  # median of its runs' seconds
    epoch_s: float | None  # median of what its runs' epochs take
    samples_per_s: float | None  # samples that all its runs were given, by ``seconds``
    batches_per_s: float | None  # batches that all its runs were given, by ``seconds``
    cpu_s: float | None  # CPU time of all its runs, and of their parts of the feeds that they read
    feed_cpu_s: float | None  # the latter; None if none of them read a feed
    energy_measured_j: dict[str, float]
    """What each device used while they ran, whoever used it; empty if none was measured."""
    energy_estimated_j: float | None  # what its runs used, estimated
    gco2_estimated: float | None  # grams of CO2 of the estimated energy
    cpus_busy: float | None  # the part of the CPUs that was busy, whoever used them, from 0 to 1
    memory_bytes: float | None  # the most that all its runs held at one moment
    advice: dict[str, RunAdvice]  # what to change first, by the ids of its runs

    @property
    def finished(self) -> bool:
        return all(run.status == "finished" for run in self.runs)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Groups of runs; each is compared with the first."""

    groups: tuple[GroupFigures, ...]
    sentences: tuple[str, ...]  # what follows from the figures, in plain words


def compare(groups: Mapping[str, Sequence[RunRecord]], series: AllSeries) -> Comparison:
    """Compare the runs of groups, given by their ids; a group of runs that ran one after the other comes first."""
    for run in (run for runs in groups.values() for run in runs):
        if run.status not in ENDED or run.began is None or run.seconds is None:
            raise BadSetting(
                f"run {run.id} ({run.name!r} of group {run.group!r}) is {run.status}: compare groups whose runs "
                "have all been started and have ended. penstock runs ls shows them"
            )
    figures = sorted(
        (group_figures(runs, series) for runs in groups.values()), key=lambda group: group.mode != "alone"
    )
    sentences = [_against(figures[0], other) for other in figures[1:]]
    sentences += [sentence for group in figures for sentence in _to_change(group)]
    if any(run.parts.waiting is None for group in figures for run in group.runs):
        sentences.append(UNRECORDED)
    return Comparison(groups=tuple(figures), sentences=tuple(sentences))


def group_figures(runs: Sequence[RunRecord], series: AllSeries) -> GroupFigures:
    """Return what the runs of a group took; all of them have begun."""
    found = [series(run) for run in runs]
    of_runs = tuple(run_figures(run, each) for run, each in zip(runs, found, strict=True))
    starts: dict[str, list[tuple[RunRecord, RunFigures]]] = {}
    for pair in zip(runs, of_runs, strict=True):
        starts.setdefault(pair[0].group_id, []).append(pair)
    spans_s = {id: _span_s([run for run, _ in its]) for id, its in starts.items()}
    seconds = math.fsum(spans_s.values())
    cpu_s = _sum(run.cpu_s for run in of_runs)
    samples, batches = _sum(run.samples for run in of_runs), _sum(run.batches for run in of_runs)
    epochs_s = [run.epoch_s for run in of_runs if run.epoch_s is not None]
    fed = [run.feed_cpu_s for run in of_runs if run.feed_cpu_s is not None]
    cpus = cpus_of(of_runs, seconds)
    advice: dict[str, RunAdvice | None] = {}
    for id, its in starts.items():
        together = [figures for _, figures in its]
        for run in together:
            beside, span_s = ([run], run.seconds) if runs[0].mode == "alone" else (together, spans_s[id])
            advice[run.id] = advise(run, cpus_of(beside, span_s), beside)
    return GroupFigures(
        id=runs[0].group_id,
        name=runs[0].group,
        mode=runs[0].mode,
        starts=len(starts),
        runs=of_runs,
        seconds=seconds,
        each_s=statistics.median(run.seconds for run in of_runs),
        epoch_s=statistics.median(epochs_s) if len(epochs_s) == len(of_runs) else None,
        samples_per_s=samples / seconds if samples is not None and seconds > 0 else None,
        batches_per_s=batches / seconds if batches is not None and seconds > 0 else None,
        cpu_s=cpu_s,
        feed_cpu_s=_sum(fed) if fed else None,
        energy_measured_j=measured_energy_j(found),
        energy_estimated_j=_sum(run.energy_estimated_j for run in of_runs),
        gco2_estimated=_sum(run.gco2_estimated for run in of_runs),
        cpus_busy=cpus.busy,
        memory_bytes=memory_bytes(found),
        advice={id: each for id, each in advice.items() if each},
    )


def each_start(groups: Mapping[str, Sequence[RunRecord]], series: AllSeries) -> dict[str, list[GroupFigures]]:
    """Return what each start took of those groups that were started several times, by their ids."""
    found: dict[str, list[GroupFigures]] = {}
    for runs in groups.values():
        starts: dict[str, list[RunRecord]] = {}
        for run in runs:
            starts.setdefault(run.group_id, []).append(run)
        if len(starts) > 1:
            found[runs[0].group_id] = [group_figures(its, series) for its in starts.values()]
    return found


def _span_s(runs: Sequence[RunRecord]) -> float:
    """Return the time from the first beginning to the last end."""
    ends = [(run.began or 0.0) + (run.seconds or 0.0) for run in runs]
    return max(ends) - min(run.began or 0.0 for run in runs)


def _sum(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if None in known else math.fsum(each or 0.0 for each in known)


def _against(first: GroupFigures, other: GroupFigures) -> str:
    if not (first.finished and other.finished):
        failed = sum(run.status != "finished" for group in (first, other) for run in group.runs)
        return f"{_called(first)} and {_called(other)} cannot be compared: {failed} of their runs did not finish."
    if 0.0 in (first.seconds, other.seconds, first.each_s):
        return f"{_called(first)} and {_called(other)} cannot be compared: the clock was set back while they ran."
    if first.epoch_s and other.epoch_s:
        each = f"each epoch takes {_times(other.epoch_s / first.epoch_s)} as long on average"
    else:
        each = f"each run takes {_times(other.each_s / first.each_s)} as long"
    if first.starts > 1 or other.starts > 1:
        return f"Of several starts only single runs compare: of {_called(other)}, beside {_called(first)}, {each}."
    if len(first.runs) != len(other.runs):
        return (
            f"{_called(other)} has {len(other.runs)} runs and {_called(first)} {len(first.runs)}, so only single "
            f"runs compare: {each}."
        )
    if len(first.runs) == 1:
        return f"{_called(other)} takes {_times(other.seconds / first.seconds)} as long as {_called(first)}."
    ratio = first.seconds / other.seconds
    times = f"{max(ratio, 1 / ratio):.2g}"
    sooner = f"{times} times {'sooner' if ratio > 1 else 'later'} than" if times != "1" else "about as soon as"
    what = _called(first) if first.mode != "alone" else "one after the other"
    if first.mode == "alone" and first.name != other.name:
        what = f"{first.name!r} one after the other"
    text = f"{len(other.runs)} runs of {_called(other)} finish {sooner} {what}; {each}"
    if first.cpu_s and other.cpu_s:
        text += f", and all take {_times(other.cpu_s / first.cpu_s)} the CPU time"
    return text + "."


def _to_change(group: GroupFigures) -> list[str]:
    """Return what to change first: one sentence for each rule, about the run that waits most."""
    sentences: list[str] = []
    for kind in dict.fromkeys(advice.kind for advice in group.advice.values()):
        theirs = [run for run in group.runs if run.id in group.advice and group.advice[run.id].kind == kind]
        part = _PARTS.get(kind, "waiting")
        worst = max(theirs, key=lambda run: getattr(run.parts, part) or 0.0)
        which = f"{worst.name!r} ({worst.id})" if group.starts > 1 else repr(worst.name)
        others = "" if len(theirs) == 1 else f" ({len(theirs)} of its runs do, this one the most)"
        sentences.append(f"In {_called(group)}, run {which} {group.advice[worst.id].text}{others}.")
    return sentences


def _called(group: GroupFigures) -> str:
    return f"{group.name!r} ({group.mode})"


def _times(ratio: float) -> str:
    return f"{ratio:.2f} times"
