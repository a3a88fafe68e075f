"""Which of the jobs that run, and could be fed by one feed, are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from penstock.schedule.jobs import Machine
from penstock.schedule.rates import STARTING, Demand, Neighbourhood, Placed, fair_rates

Sharing = Literal["none", "all", "split"]
Feeds = list[list[int]]
"""Indices of the jobs of each feed."""
_LEAST_GAIN = 1.01


def rates_together(
    placed: Sequence[Placed], starting: int, machine: Machine, sharing: Sharing
) -> tuple[list[float], float, Feeds]:
    """Divide running jobs into feeds, and return the rates at which all run.

    Args:
        placed: The jobs that have started, and where.
        starting: How many others start meanwhile.
        sharing: No feed has two members ("none"); all that can share do ("all"); or a feed is split where a fast
            member would lose more by waiting for a slow one than its preparation costs ("split").

    Returns:
        Samples a second of each; CPU-seconds a second of each job that starts; the feeds.
    """
    near = Neighbourhood(placed, machine)
    together: dict[str, list[int]] = {}
    for i, (job, _, _) in enumerate(placed):
        together.setdefault(job.data if job.data and sharing != "none" else f"only {job.name}", []).append(i)
    feeds = list(together.values())
    first = _Trial(placed, feeds, near, starting, machine)
    if sharing == "split":
        first = _split(first, placed, near, starting, machine)
    rates = [0.0] * len(placed)
    for members, rate in zip(first.feeds, first.rates, strict=False):
        for i in members:
            rates[i] = rate
    return rates, first.rates[-1] if starting else 1.0, first.feeds


class _Trial:
    """A division into feeds, and how fast all get on by it."""

    def __init__(
        self, placed: Sequence[Placed], feeds: Feeds, near: Neighbourhood, starting: int, machine: Machine
    ) -> None:
        self.feeds = feeds
        demands: list[Demand] = [near.demand([placed[i] for i in members]) for members in feeds]
        self.rates = fair_rates(demands + [STARTING] * starting, machine)
        self.progress = sum(
            rate * sum(placed[i].weight for i in members) for members, rate in zip(feeds, self.rates, strict=False)
        )


def _split(best: _Trial, placed: Sequence[Placed], near: Neighbourhood, starting: int, machine: Machine) -> _Trial:
    """Cut feeds between members of different speed, as long as that gains a hundredth of all progress."""
    cut = True
    while cut:
        cut = False
        for number, members in enumerate(best.feeds):
            speeds = {i: near.of(placed[i])[0] for i in members}
            ordered = sorted(members, key=lambda i: -speeds[i])
            for at in range(1, len(ordered)):
                if speeds[ordered[at]] > 0.99 * speeds[ordered[at - 1]]:
                    continue
                others = best.feeds[:number] + best.feeds[number + 1 :]
                trial = _Trial(placed, [*others, ordered[:at], ordered[at:]], near, starting, machine)
                if trial.progress > _LEAST_GAIN * best.progress:
                    best, cut = trial, True
                    break
            if cut:
                break
    return best
