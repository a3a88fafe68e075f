"""What a run took, and where its time went, from its record and its series."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from penstock.runs.command_options import script_of
from penstock.runs.listeners import is_measured
from penstock.runs.record import RunRecord
from penstock.runs.store import Series
from penstock.runs.store.columns import Floats, Ints

LOOPS = {f"feed.{of}{name}" for of in ("", "train.") for name in ("samples", "batches", "loop_s", "wait_s")}
_ENERGY = re.compile(r"energy\.(.+)_j")
_DISK = re.compile(r"disk\.(.+)\.busy_s")


def training(series: Mapping[str, Series]) -> str:
    """Return how the names of a run's series of its training begin; where no optimizer steps, of all loops."""
    steps, every = series.get("feed.train.batches"), series.get("feed.batches")
    is_known = steps and every and (steps.last or steps.times_s[-1] >= every.times_s[-1])
    return "feed.train." if is_known else "feed."


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a run's time, each from 0 to 1; None where it was not recorded."""

    starting: float | None  # before its first loop over a loader: imports and set-up
    waiting: float | None  # for data
    copying: float | None  # from the host to a device
    computing: float | None  # the rest of its loops over loaders
    other: float | None  # between those loops and after them: evaluation, saving


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What one run took; None where it was not recorded."""

    id: str
    name: str
    index: int
    script: str  # The Python script that it runs; empty if it runs something else
    status: str
    seconds: float  # from its start to its end
    epoch_s: float | None  # mean of its epochs: the first one has waited for what starts with it, such as a feed
    samples: float | None  # samples that its training was given (``training``)
    batches: float | None  # batches that its training was given
    cpu_s: float | None  # CPU time of its processes, and of its part of the feeds that it reads
    feed_cpu_s: float | None  # the latter; None if it read none
    energy_estimated_j: float | None  # the part of the machine's energy that is its, estimated
    gco2_estimated: float | None  # grams of CO2 of that energy, at the stated intensity
    parts: Parts  # where its time went
    on_feed: bool  # whether it read a feed
    held_up_by: int | None  # index in its group of the run that its feed waited for most of its time, if any
    delayed: float | None  # of the time that its processes ran or were ready to, the part without a free CPU
    cores: float | None  # cores that it might use
    machine_busy: float | None  # busy part of all the machine's cores, whoever used them, from 0 to 1
    disk: str  # the disk that was busy for most of its time; empty if none was used
    disk_busy: float | None  # the part of its time for which that disk was busy, whoever used it, from 0 to 1
    disk_bytes: float | None  # bytes that this disk moved in that time, whoever wanted them
    moved_bytes: float | None  # bytes that its processes, and its part of feeds, read from disks and wrote to them
    memory_bytes: float | None  # the most memory that its processes and its part of feeds held at one moment


def run_figures(run: RunRecord, series: Mapping[str, Series]) -> RunFigures:
    """Return what a run that has begun took so far, or in all."""

    def last(name: str) -> float | None:
        return series[name].last if name in series else None

    def moved(what: str) -> float | None:
        read, written = last(f"{what}.read_bytes"), last(f"{what}.write_bytes")
        return None if read is None or written is None else read + written

    seconds, ready_s = run.seconds or 0.0, last("proc.ready_s")
    machine_cores = last("host.cpus")
    busy_cores = series["host.cpu_s"].rise_per_s() if "host.cpu_s" in series else None
    disks = {
        found[1]: rise
        for name, each in series.items()
        if (found := _DISK.fullmatch(name)) and (rise := each.rise_per_s())
    }
    disk = max(disks, key=lambda name: disks[name], default="")
    begin, epochs = training(series), series.get("feed.epoch_s") or series.get("feed.main.epoch_s")
    if begin == "feed." and "feed.main.batches" in series:
        begin = "feed.main."
    return RunFigures(
        id=run.id,
        name=run.name,
        index=run.index,
        script=script_of(run.plan.command),
        status=run.status,
        seconds=seconds,
        epoch_s=float(np.mean(epochs.values)) if epochs and len(epochs.values) else None,
        samples=last(f"{begin}samples"),
        batches=last(f"{begin}batches"),
        cpu_s=with_part(_own_cpu_s(last("proc.cpu_s"), last("run.cpu_s"), last("feed.cpu_s")), last("feed.cpu_s")),
        feed_cpu_s=last("feed.cpu_s"),
        energy_estimated_j=last("energy.estimated_j"),
        gco2_estimated=last("energy.estimated_gco2"),
        parts=parts_of(
            seconds, last("feed.wait_s"), last("feed.copy_s"), last("feed.loop_s"), _start_s(run, series)
        ),
        on_feed="feed.lag_samples" in series,
        held_up_by=_held_up_by(run.index, series),
        delayed=(last("proc.delayed_s") or 0.0) / ready_s if ready_s else None,
        cores=last("host.cores"),
        machine_busy=min(1.0, busy_cores / machine_cores) if busy_cores is not None and machine_cores else None,
        disk=disk,
        disk_busy=min(1.0, disks[disk]) if disk else None,
        disk_bytes=moved(f"disk.{disk}") if disk else None,
        moved_bytes=with_part(moved("proc"), moved("feed")),
        memory_bytes=memory_bytes([series]),
    )


def with_part(own: float | None, of_feeds: float | None) -> float | None:
    """Return what a run used with its part of feeds; None if nothing of its own is known."""
    return None if own is None else own + (of_feeds or 0.0)


def _own_cpu_s(sampled: float | None, kept: float | None, of_feeds: float | None) -> float | None:
    """Return the CPU time of a run's processes: the sampler misses the last second, the keeper counts a feeder."""
    if of_feeds and sampled is not None:
        return sampled
    return max((each for each in (sampled, kept) if each is not None), default=None)


class Extremes(NamedTuple):
    """Of some values the last, and of those that are finite the least and the greatest; None where none is."""

    last: float | None
    least: float | None
    most: float | None


def extremes(values: Floats) -> Extremes:
    """Return the last value, NaN or infinite, too, and the least and the greatest of the finite ones."""
    finite = values[np.isfinite(values)]
    last = float(values[-1]) if len(values) else None
    return Extremes(last, float(finite.min()), float(finite.max())) if len(finite) else Extremes(last, None, None)


def newest_at(places: Floats, *, every: bool = False) -> Ints:
    """Return the last point at each place of an axis, by rising places: the newer value of a step counts.

    Of what is measured meanwhile, ``every`` point counts.
    """
    known = np.flatnonzero(np.isfinite(places))
    known = known[np.argsort(places[known], kind="stable")]
    return known if every else known[np.diff(places[known], append=np.inf) > 0]


def steps_of(name: str, series: Mapping[str, Series]) -> Floats:
    """Return the step that each point was logged with, in one call; NaN without.

    What is measured meanwhile has the last step before.
    """
    its, steps = series[name], series.get("step")
    if steps is None:
        return np.full(len(its.times_s), np.nan)
    return steps.at(its.times_s) if is_measured(name) else of_one_call(its, steps)


def of_one_call(series: Series, steps: Series) -> Floats:
    """Return the step that stands at each point's own moment, as of one call they do; NaN without."""
    if not len(steps.times_s):
        return np.full(len(series.times_s), np.nan)
    places = np.minimum(np.searchsorted(steps.times_s, series.times_s), len(steps.times_s) - 1)
    return np.where(steps.times_s[places] == series.times_s, steps.values[places], np.nan)


def newest_values(name: str, series: Mapping[str, Series]) -> Floats:
    """Return the values of a series, in their order, without what was logged again later at the same step."""
    values = series[name].values
    if is_measured(name) or "step" not in series:
        return values
    along = steps_of(name, series)
    counts = ~np.isfinite(along)
    counts[newest_at(along)] = True
    return values[counts]


def parts_of(
    seconds: float,  # the run's time
    waited_s: float | None,  # waited for data
    copied_s: float | None,  # copied from the host to a device
    loop_s: float | None,  # spent in loops over loaders, with waiting and copying
    start_s: float | None = None,  # until the first of these loops began
) -> Parts:
    """Divide a run's time into parts, each cut to 0 to 1 where clocks disagree."""

    def part(of_s: float | None) -> float | None:
        return None if of_s is None or seconds <= 0 else min(1.0, max(0.0, of_s / seconds))

    return Parts(
        starting=part(start_s),
        waiting=part(waited_s),
        copying=part(copied_s),
        computing=part(None if loop_s is None or waited_s is None else loop_s - waited_s - (copied_s or 0.0)),
        other=part(None if loop_s is None else seconds - loop_s - (start_s or 0.0)),
    )


def _start_s(run: RunRecord, series: Mapping[str, Series]) -> float | None:
    """Return how long a run took until its first loop over a loader began, to the second of a sample."""
    loops = series.get("feed.loop_s")
    if loops is None or not len(loops.values) or run.began is None:
        return None
    return max(0.0, float(loops.times_s[0] - loops.values[0]) - run.began)


def measured_energy_j(together: list[Mapping[str, Series]]) -> dict[str, float]:
    """Add up what each device used, in joules, while at least one of these runs ran.

    Each run's counters begin at 0 with the run; a moment that several of them saw counts once.
    """
    used_j: dict[str, float] = {}
    for name in sorted({name for series in together for name in series}):
        found = _ENERGY.fullmatch(name)
        if not found or found[1] == "estimated":
            continue
        counters = [series[name] for series in together if name in series and len(series[name].times_s)]
        until_s = -np.inf
        used_j[found[1]] = 0.0
        for times_s, values in sorted(counters, key=lambda each: float(each.times_s[0])):
            if times_s[-1] > until_s:
                used_j[found[1]] += float(values[-1] - np.interp(until_s, times_s, values))
                until_s = times_s[-1]
    return used_j


MEMORY = {"proc.pss_bytes", "proc.rss_bytes"}
"""Series of the memory of a run's processes: shared pages divided among them, or counted for each."""


def own_memory(series: Mapping[str, Series]) -> Series | None:
    """Return the memory of a run's processes: RSS, less the part that PSS, read less often, says is shared."""
    both = (series.get(name) for name in ("proc.rss_bytes", "proc.pss_bytes"))
    rss, pss = (each if each and len(each.values) else None for each in both)
    if rss is None or pss is None:
        return rss or pss
    then = np.interp(pss.times_s, rss.times_s, rss.values)
    own = np.divide(pss.values, then, out=np.ones_like(then), where=then > 0)
    return Series(rss.times_s, rss.values * np.interp(rss.times_s, pss.times_s, np.minimum(own, 1.0)))


def memory_bytes(together: list[Mapping[str, Series]], *, own: bool = False) -> float | None:
    """Return the most memory that runs held at one moment, all of them together; None if one's is not known.

    Their parts of feeds count, unless only what is their ``own`` is asked for.

    A page that processes share is divided among them (PSS), unless that was never recorded (RSS).
    """
    held = [own_memory(series) for series in together]
    known = [each for each in held if each is not None]
    if not known or len(known) < len(held):
        return None
    fed = [each for series in together if (each := series.get("feed.memory_bytes")) and len(each.values)]
    known += [] if own else fed
    moments_s = np.unique(np.concatenate([each.times_s for each in known]))
    return float(np.max(sum(np.interp(moments_s, each.times_s, each.values, 0.0, 0.0) for each in known)))


def _held_up_by(index: int, series: Mapping[str, Series]) -> int | None:
    """Return the other run that held the feed up at more than half of the moments at which it was asked."""
    holders, asked = series.get("feed.held_back_by"), series.get("feed.lag_samples")
    if holders is None or asked is None or 2 * len(holders.values) <= len(asked.values):
        return None
    most = float(np.median(holders.values))
    often = 2 * np.count_nonzero(holders.values == most) > len(asked.values)
    return int(most) if often and most >= 0 and most != index else None
