"""Which of the jobs that run, and could be fed by one feed, are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from penstock.schedule.jobs import GpuMachine
from penstock.schedule.rates import STARTING, Demand, Neighbourhood, Placed, fair_rates

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
