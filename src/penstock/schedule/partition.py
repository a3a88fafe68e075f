"""Which of the jobs that run, and could be fed by one feed, are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from penstock.schedule.jobs import GpuMachine, Job, alone_sample_s


class Placed(NamedTuple):
    """A job that runs."""

    job: Job
    gpus: tuple[int, ...]  # the GPUs that it computes on
    weight: float
    """Its priority times the seconds in which it trains on a sample alone. Progress is the sum of all rates by
    these weights."""

    @classmethod
    def on(cls, job: Job, gpus: tuple[int, ...], machine: GpuMachine) -> Placed:
        return cls(job, gpus, job.priority * alone_sample_s(job, machine))


class Demand(NamedTuple):
    """What one unit of progress of a feed takes; or of a job that starts, whose unit is a CPU-second."""

    fastest: float  # units a second if it had all for itself
    cpu_s: float  # CPU-seconds
    gpu_s: tuple[tuple[int, float], ...]  # seconds of each GPU


_NOTHING = 1e-15
STARTING = Demand(1.0, 1.0, ())
"""A job that starts: one process, which computes on the CPU."""


class Neighbourhood:
    """Which jobs compute on which GPU, and how much that slows each."""

    def __init__(self, placed: Sequence[Placed], machine: GpuMachine) -> None:
        self._machine = machine
        on: dict[int, list[Job]] = {}
        for job, gpus, _ in placed:
            for gpu in gpus:
                on.setdefault(gpu, []).append(job)
        self._on = on
        self._fastest: dict[str, tuple[float, tuple[tuple[int, float], ...]]] = {}
        self._demands: dict[tuple[str, ...], Demand] = {}

    def of(self, placed: Placed) -> tuple[float, tuple[tuple[int, float], ...]]:
        """Return the most samples a second that a job can compute here, and what a sample takes of each GPU."""
        job, gpus, _ = placed
        if (known := self._fastest.get(job.name)) is not None:
            return known
        slowest, takes = 0.0, list[tuple[int, float]]()
        mps = self._machine.mode == "mps"
        for gpu in gpus:
            others = [each for each in self._on[gpu] if each is not job]
            slowdown, measured = self._machine.slowdown(job, others)
            sample_s = job.gpu_s * slowdown
            slowest = max(slowest, sample_s)
            if not measured:
                takes.append((gpu, sample_s * (job.sm_share if mps else 1.0)))
        sample_s = max(slowest, job.own_s)
        found = (1 / sample_s if sample_s > 0 else math.inf), tuple(takes)
        self._fastest[job.name] = found
        return found

    def demand(self, members: Sequence[Placed]) -> Demand:
        """Return what a feed takes, whose members go at one rate."""
        names = tuple(each.job.name for each in members)
        if (known := self._demands.get(names)) is not None:
            return known
        each_of = [self.of(placed) for placed in members]
        fastest = min(most for most, _ in each_of)
        cpu_s = sum(each.job.own_s for each in members) + max(each.job.preparation_s for each in members)
        if cpu_s > 0:
            fastest = min(fastest, self._machine.cores / cpu_s)
        found = Demand(fastest, cpu_s, tuple(itertools.chain.from_iterable(takes for _, takes in each_of)))
        self._demands[names] = found
        return found


def fair_rates(demands: Sequence[Demand], machine: GpuMachine) -> list[float]:
    """Return the rate of each, in units a second.

    All rise together, each as a part of what it reaches alone, until the CPU
    or a GPU is full; those that use it stay there, the others rise on
    (max-min fairness of dominant shares; Ghodsi et al., NSDI'11).
    """
    left = [machine.cores] + [1.0] * machine.gpus
    loads = [_loads(each) for each in demands]
    levels = [0.0] * len(demands)
    rising = set(range(len(demands)))
    level = 0.0
    while rising:
        totals = [0.0] * len(left)
        for i in rising:
            for k, load in loads[i]:
                totals[k] += load
        steps = [room / total if total > _NOTHING else math.inf for room, total in zip(left, totals, strict=True)]
        step = min(*steps, 1.0 - level)
        level += step
        left = [max(0.0, room - step * total) for room, total in zip(left, totals, strict=True)]
        full = {k for k, each in enumerate(steps) if each <= step * (1 + 1e-9)}
        stay = {i for i in rising if level >= 1 - 1e-9 or any(k in full for k, _ in loads[i])}
        for i in stay:
            levels[i] = level
        rising -= stay
    return [each.fastest * level for each, level in zip(demands, levels, strict=True)]


def _loads(demand: Demand) -> list[tuple[int, float]]:
    """Return what a feed takes at its fastest of the CPU, which is number 0, and of GPU k, which is 1 + k."""
    loads = [(0, demand.fastest * demand.cpu_s), *((1 + gpu, demand.fastest * s) for gpu, s in demand.gpu_s)]
    return [each for each in loads if each[1] > _NOTHING]


Sharing = Literal["none", "all", "split", "finish"]
SHARINGS: tuple[Sharing, ...] = ("split", "none", "all", "finish")
Feeds = list[list[int]]
"""Indices of the jobs of each feed."""
_LEAST_GAIN = 1.01


def rates_together(
    placed: Sequence[Placed], left: Sequence[float], starting: int, machine: GpuMachine, sharing: Sharing
) -> tuple[list[float], float, Feeds]:
    """Divide running jobs into feeds, and return the rates at which all run.

    Those ``placed`` have yet to train on ``left`` samples each; ``starting`` others start meanwhile. By
    ``sharing``, no feed has two members ("none"); all that can share do ("all"); or a feed is split where a fast
    member loses more by waiting for a slow one than its preparation costs, as the progress of all shows ("split"),
    or the time until the last of them would end at these rates ("finish").

    Returns:
        Samples a second of each; CPU-seconds a second of each job that starts; the feeds.
    """
    near = Neighbourhood(placed, machine)
    together: dict[str, list[int]] = {}
    for i, (job, _, _) in enumerate(placed):
        together.setdefault(job.data if job.data and sharing != "none" else f"only {job.name}", []).append(i)
    feeds = list(together.values())

    def trial(feeds: Feeds) -> _Trial:
        demands: list[Demand] = [near.demand([placed[i] for i in members]) for members in feeds]
        rates = fair_rates(demands + [STARTING] * starting, machine)
        pairs = list(zip(feeds, rates, strict=False))
        if sharing == "finish":
            last_s = max((max(left[i] for i in members) / rate for members, rate in pairs), default=1.0)
            return _Trial(feeds, rates, 1 / last_s)
        return _Trial(feeds, rates, sum(rate * sum(placed[i].weight for i in members) for members, rate in pairs))

    first = trial(feeds)
    if sharing in ("split", "finish"):
        first = _split(first, {i: near.of(each)[0] for i, each in enumerate(placed)}, trial)
    rates = [0.0] * len(placed)
    for members, rate in zip(first.feeds, first.rates, strict=False):
        for i in members:
            rates[i] = rate
    return rates, first.rates[-1] if starting else 1.0, first.feeds


class _Trial(NamedTuple):
    """A division into feeds, the rates that it gives, and how good they are."""

    feeds: Feeds
    rates: list[float]
    good: float


def _split(best: _Trial, speeds: Mapping[int, float], trial: Callable[[Feeds], _Trial]) -> _Trial:
    """Cut feeds between members of different speed, as long as that gains a hundredth."""
    cut = True
    while cut:
        cut = False
        for number, members in enumerate(best.feeds):
            ordered = sorted(members, key=lambda i: -speeds[i])
            others = best.feeds[:number] + best.feeds[number + 1 :]
            for at in range(1, len(ordered)):
                if speeds[ordered[at]] <= 0.99 * speeds[ordered[at - 1]]:
                    new = trial([*others, ordered[:at], ordered[at:]])
                    if new.good > _LEAST_GAIN * best.good:
                        best, cut = new, True
                        break
            if cut:
                break
    return best
