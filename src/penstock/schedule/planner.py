"""The best plan that the model finds: every policy by every way of sharing, then exchanges."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, Self

from penstock.schedule.jobs import Job, Machine
from penstock.schedule.partition import Sharing
from penstock.schedule.policies import (
    Order,
    by_arrival,
    by_data,
    by_deadline,
    carma_lug,
    carma_magm,
    greedy,
    listed,
    longest_first,
    muri,
    shortest_first,
)
from penstock.schedule.simulate import Outcome, Policy, Running, simulate

Objective = Literal["makespan", "jct"]
SHARINGS: tuple[Sharing, ...] = ("split", "all", "none")
PUBLISHED = ("fifo", "spt", "lpt", "carma-magm", "carma-lug", "muri")
"""Policies of others, as the planner is compared with them."""
_LATE = 1e3
"""What a second after a deadline costs, in seconds of the objective."""
_TIE = 1e-6
"""Of plans that end together, that is best whose jobs end early."""
_ORDERS: dict[str, Order] = {
    "lpt": longest_first,
    "data": by_data,
    "fifo": by_arrival,
    "spt": shortest_first,
    "edf": by_deadline,
}


class Plan(NamedTuple):
    """A policy, a way of sharing, and how they go.

    Attributes:
        name: Of the policy.
        policy: Who starts, at each event.
        sharing: How those that run are divided into feeds.
        outcome: When each job runs, in the model.
        cost: What the objective makes of it: seconds.
    """

    name: str
    policy: Policy
    sharing: Sharing
    outcome: Outcome
    cost: float


class Portfolio:
    """The policies for a set of jobs, by name."""

    def __init__(self, jobs: Sequence[Job], machine: Machine) -> None:
        orders = {name: order(jobs, machine) for name, order in _ORDERS.items()}
        if not any(job.deadline_s is not None for job in jobs):
            del orders["edf"]
        self._makers: dict[str, Callable[[Sharing], Policy]] = {"carma-magm": lambda _: carma_magm}
        for most in (2, 4):
            for name, order in orders.items():
                self._makers[f"{name} by {most}"] = lambda _, o=order, m=most: listed(o, m)
        self._makers["greedy"] = greedy
        self._makers["muri"] = lambda _: muri()
        self._makers["fifo"] = lambda _: listed(orders["fifo"], 1, backfill=False)
        self._makers["spt"] = lambda _: listed(orders["spt"], 1)
        self._makers["lpt"] = lambda _: listed(orders["lpt"], 1)
        self._makers["carma-lug"] = lambda _: carma_lug
        for name, order in orders.items():
            self._makers[f"{name} as memory allows"] = lambda _, o=order: listed(o, len(jobs))

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def policy(self, name: str, sharing: Sharing) -> Policy:
        return self._makers[name](sharing)


class Planner:
    """Finds plans for one machine.

    Args:
        machine: What jobs run on.
        objective: What is to be small: the time until all have ended, or the mean time from arrival to end.
        sharings: The ways of sharing that may be chosen.
        names: The policies that may be chosen; None for all, and for exchanges after them.
        most_s: Seconds after which no further policy is tried.
        swaps_s: Seconds for exchanges, within ``most_s``.
        seed: Of the exchanges.
    """

    def __init__(
        self,
        machine: Machine,
        objective: Objective = "makespan",
        *,
        sharings: Sequence[Sharing] = SHARINGS,
        names: Sequence[str] | None = None,
        most_s: float = 2.0,
        swaps_s: float = 0.5,
        seed: int = 0,
    ) -> None:
        self._machine = machine
        self._objective: Objective = objective
        self._sharings = sharings
        self._names = names
        self._most_s = most_s
        self._swaps_s = swaps_s
        self._chance = random.Random(seed)

    def plan(self, jobs: Sequence[Job], running: Sequence[Running] = ()) -> Plan:
        """Return the best plan that is found.

        Args:
            jobs: What is left of each.
            running: Those that run already, and go on.
        """
        began = time.monotonic()
        portfolio, best = Portfolio(jobs, self._machine), None
        sharings = self._sharings if _can_share(jobs) else self._sharings[-1:]
        for name in self._names or portfolio:
            for sharing in sharings:
                if best is None or time.monotonic() - began < self._most_s - self._swaps_s:
                    policy = portfolio.policy(name, sharing)
                    best = self._better(name, policy, sharing, jobs, running, best)
        assert best is not None
        if self._names is None and best.cost < math.inf and len(jobs) > 1:
            best = self._exchanged(best, jobs, running, time.monotonic() + self._swaps_s)
        return best

    def _better(
        self,
        name: str,
        policy: Policy,
        sharing: Sharing,
        jobs: Sequence[Job],
        running: Sequence[Running],
        best: Plan | None,
    ) -> Plan:
        until_s = best.cost if best and self._objective == "makespan" else math.inf
        outcome = simulate(jobs, self._machine, policy, sharing, running, until_s)
        cost = cost_of(outcome, jobs, self._objective)
        return Plan(name, policy, sharing, outcome, cost) if best is None or cost < best.cost else best

    def _exchanged(self, best: Plan, jobs: Sequence[Job], running: Sequence[Running], until: float) -> Plan:
        """Change a plan's list at random, as long as there is time, and keep what makes it no worse."""
        start = _List.of(best.outcome, len(jobs))
        current, cost = start, math.inf
        while time.monotonic() < until:
            changed = current.changed(self._chance) if cost < math.inf else start
            sharing = self._chance.choice(self._sharings) if self._chance.random() < 0.1 else best.sharing
            outcome = simulate(jobs, self._machine, changed.policy(), sharing, running)
            new = cost_of(outcome, jobs, self._objective)
            if new <= cost:
                current, cost = changed, new
            if new < best.cost:
                best = Plan("exchanges", changed.policy(), sharing, outcome, new)
        return best


def cost_of(outcome: Outcome, jobs: Sequence[Job], objective: Objective) -> float:
    """Return the objective's seconds; infinite if a job is never run."""
    if outcome.stuck:
        return math.inf
    late_s = sum(
        max(0.0, outcome.runs[i].end_s - job.deadline_s)
        for i, job in enumerate(jobs)
        if job.deadline_s is not None
    )
    jct_s = outcome.mean_jct_s(jobs)
    return (jct_s if objective == "jct" else outcome.makespan_s + _TIE * jct_s) + _LATE * late_s


def _can_share(jobs: Sequence[Job]) -> bool:
    data = [job.data for job in jobs if job.data]
    return len({*data}) < len(data)


class _List(NamedTuple):
    """A plan as a list of jobs.

    Attributes:
        order: Indices of the jobs, as they are to start.
        most: For each job, the most jobs on its GPU when it starts.
        backfill: Whether a job may start before one that finds no room.
    """

    order: tuple[int, ...]
    most: tuple[int, ...]
    backfill: bool

    @classmethod
    def of(cls, outcome: Outcome, jobs: int) -> Self:
        """Return the list of a plan's starts."""
        runs = outcome.runs
        most = [1] * jobs
        for i, run in runs.items():
            most[i] += sum(
                i != j and other.start_s <= run.start_s < other.end_s and not {*other.gpus}.isdisjoint(run.gpus)
                for j, other in runs.items()
            )
        return cls(tuple(sorted(runs, key=lambda i: (runs[i].start_s, i))), tuple(most), False)

    def policy(self) -> Policy:
        return listed(self.order, self.most, backfill=self.backfill)

    def changed(self, chance: random.Random) -> _List:
        """Return a list that differs by one move."""
        order, most = [*self.order], [*self.most]
        a, b = chance.sample(range(len(order)), 2)
        match chance.randrange(7):
            case 0 | 1:
                order[a], order[b] = order[b], order[a]
            case 2 | 3:
                order.insert(b, order.pop(a))
            case 4 | 5:
                most[a] = max(1, most[a] + chance.choice((-1, 1)))
            case _:
                return self._replace(backfill=not self.backfill)
        return self._replace(order=tuple(order), most=tuple(most))
