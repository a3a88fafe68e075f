"""The best plan that the model finds: every policy by every way of sharing, then exchanges."""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, Self

from penstock.schedule.jobs import GpuMachine, Job
from penstock.schedule.partition import SHARINGS, Sharing
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
from penstock.schedule.simulate import Forecast, Policy, Running, simulate

Objective = Literal["makespan", "jct"]
PUBLISHED = ("fifo", "spt", "lpt", "carma-magm", "carma-lug", "muri")
"""Policies of others, as the planner is compared with them."""
PLANNED = "plan"
"""The planner itself: the best policy and what exchanges make of it."""
_INCOMPATIBLE: tuple[Sharing, ...] = ("none",)
_LATE = 1e3
"""What a second after a deadline costs, in seconds of the objective."""
_TIE = 1e-6
"""Of plans that end together, that is best whose jobs end early."""
_WORSE = 0.005
"""What exchanges may cost at first, as a part of all (threshold accepting; Dueck and Scheuer, 1990)."""
_ORDERS: dict[str, Order] = {
    "lpt": longest_first,
    "data": by_data,
    "fifo": by_arrival,
    "spt": shortest_first,
    "edf": by_deadline,
}


class PolicyPlan(NamedTuple):
    """A policy, a way of sharing, and how they go."""

    name: str  # of the policy
    policy: Policy  # who starts, at each event
    sharing: Sharing  # how those that run are divided into feeds
    outcome: Forecast  # when each job runs, in the model
    cost: float  # what the objective makes of it: seconds


class Portfolio:
    """The policies for a set of jobs, by name."""

    def __init__(self, jobs: Sequence[Job], machine: GpuMachine) -> None:
        orders = {name: order(jobs, machine) for name, order in _ORDERS.items()}
        if not any(job.deadline_s is not None for job in jobs):
            del orders["edf"]
        self._makers: dict[str, Callable[[Sharing], Policy]] = {
            "spt": lambda _: listed(orders["spt"], 1),
            "lpt": lambda _: listed(orders["lpt"], 1),
            "fifo": lambda _: listed(orders["fifo"], 1, backfill=False),
            "carma-magm": lambda _: carma_magm,
            "muri": lambda _: muri(),
        }
        if "edf" in orders:
            self._makers["edf"] = lambda _: listed(orders["edf"], 1)
        for most in (2, 4):
            for name, order in orders.items():
                self._makers[f"{name} by {most}"] = lambda _, o=order, m=most: listed(o, m)
        self._makers |= {"carma-lug": lambda _: carma_lug, "greedy": greedy}
        for name, order in orders.items():
            self._makers[f"{name} as memory allows"] = lambda _, o=order: listed(o, len(jobs))

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def policy(self, name: str, sharing: Sharing) -> Policy:
        return self._makers[name](sharing)


class Planner:
    """Finds plans for one machine."""

    def __init__(
        self,
        machine: GpuMachine,
        objective: Objective = "makespan",
        *,
        sharings: Sequence[Sharing] = SHARINGS,
        names: Sequence[str] | None = None,
        most_s: float = 2.0,
        swaps_s: float = 0.5,
        seed: int = 0,  # of the exchanges
    ) -> None:
        self._machine = machine  # what jobs run on
        self._objective: Objective = objective
        """What is to be small: the time until all have ended, or the mean time from arrival to end."""
        self._sharings = sharings  # the ways of sharing that may be chosen
        self._names = names  # the policies that may be chosen; None for all, and for exchanges after them
        self._most_s = most_s  # CPU-seconds after which no further policy is tried
        self._swaps_s = swaps_s  # CPU-seconds for exchanges, within ``most_s``
        self._chance = random.Random(seed)

    def plan(self, jobs: Sequence[Job], running: Sequence[Running] = ()) -> PolicyPlan:
        """Return the best plan that is found for what is left of each job; those ``running`` go on."""
        spent = _Spent(self._most_s - self._swaps_s)
        portfolio, best = Portfolio(jobs, self._machine), list[PolicyPlan]()
        for sharing in self._sharings if _can_share(jobs) else _INCOMPATIBLE:
            of_this = list[PolicyPlan]()
            for name in self._names or portfolio:
                if not best + of_this or spent.has_time():
                    until_s = of_this[-1].cost if of_this and self._objective == "makespan" else math.inf
                    trial = self._tried(name, portfolio.policy(name, sharing), sharing, jobs, running, until_s)
                    if not of_this or trial.cost < of_this[-1].cost:
                        of_this.append(trial)
            best += of_this[-1:]
        best.sort(key=lambda each: each.cost)
        if self._names is None and best[0].cost < math.inf and len(jobs) > 1:
            best[0] = self._exchanged(best, jobs, running)
        return best[0]

    def _tried(
        self,
        name: str,
        policy: Policy,
        sharing: Sharing,
        jobs: Sequence[Job],
        running: Sequence[Running],
        until_s: float = math.inf,
    ) -> PolicyPlan:
        outcome = simulate(jobs, self._machine, policy, sharing, running, until_s)
        return PolicyPlan(name, policy, sharing, outcome, cost_of(outcome, jobs, self._objective))

    def _exchanged(
        self, plans: Sequence[PolicyPlan], jobs: Sequence[Job], running: Sequence[Running]
    ) -> PolicyPlan:
        """Change the lists of plans at random, in turn, and keep what is hardly worse: less and less of that."""
        spent, best = _Spent(self._swaps_s), plans[0]
        lists = deque(
            _Searched(each.sharing, _List.of(each.outcome, len(jobs))) for each in plans if each.outcome.runs
        )
        while lists and spent.has_time():
            sharing, current, cost = lists.popleft()
            changed = current.changed(self._chance) if cost < math.inf else current
            trial = self._tried("exchanges", changed.policy(), sharing, jobs, running)
            better = trial.cost <= cost * (1 + _WORSE * (1 - spent.part))
            lists.append(_Searched(sharing, changed, trial.cost) if better else _Searched(sharing, current, cost))
            if trial.cost < best.cost:
                best = trial
        return best


def cost_of(outcome: Forecast, jobs: Sequence[Job], objective: Objective) -> float:
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
    """A plan as a list of jobs."""

    order: tuple[int, ...]  # indices of the jobs, as they are to start
    most: tuple[int, ...]  # for each job, the most jobs on its GPU when it starts
    backfill: bool  # whether a job may start before one that finds no room

    @classmethod
    def of(cls, outcome: Forecast, jobs: int) -> Self:
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


class _Spent:
    """The CPU time of this thread from now on, of a limit in seconds."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._began = self._last = time.thread_time()
        self._longest_s = 0.0
        self.part = 0.0  # the part of it that is spent

    def has_time(self) -> bool:
        """Whether there is time for one more step, as long as the longest between two calls."""
        now = time.thread_time()
        self._longest_s, self._last = max(self._longest_s, now - self._last), now
        self.part = (now - self._began) / self._limit_s
        return now - self._began + self._longest_s < self._limit_s


class _Searched(NamedTuple):
    """Where the exchanges of one way of sharing stand."""

    sharing: Sharing
    current: _List
    cost: float = math.inf
