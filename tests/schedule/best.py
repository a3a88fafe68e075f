"""The best plan of a few jobs: every start at every event, on every GPU, in every division into feeds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from msgspec.structs import replace
from tests.schedule.configurations import least_makespan_s

from penstock.schedule.jobs import GpuMachine, Job
from penstock.schedule.partition import Neighbourhood, Placed, fair_rates

_Left = tuple[tuple[int, float], ...]


def shorter_than(limit_s: float, jobs: Sequence[Job], machine: GpuMachine) -> float | None:
    """Return the shortest makespan of jobs that all are there at once, each on one GPU, if it is below a limit."""
    best = _Search(jobs, machine, limit_s).best
    return best if best < limit_s else None


class _Search:
    def __init__(self, jobs: Sequence[Job], machine: GpuMachine, limit_s: float) -> None:
        self._jobs, self._machine = jobs, machine
        self._reached: dict[object, float] = {}
        self.best = limit_s
        self._go(0.0, frozenset(range(len(jobs))), {})

    def _go(self, now: float, waiting: frozenset[int], running: dict[int, tuple[int, float]]) -> None:
        left = [replace(self._jobs[i], samples=each) for i, (_, each) in running.items()]
        if now + least_makespan_s([*left, *(self._jobs[i] for i in waiting)], self._machine) >= self.best:
            return
        if not waiting and not running:
            self.best = now
            return
        key = waiting, tuple(sorted((i, gpu, round(left, 6)) for i, (gpu, left) in running.items()))
        if self._reached.get(key, float("inf")) <= now:
            return
        self._reached[key] = now
        for starts in self._starts(waiting, running):
            together = {**running, **{i: (gpu, self._jobs[i].samples) for i, gpu in starts.items()}}
            if not together:
                continue
            ways = {self._rates(together, feeds) for feeds in self._feeds(list(together))}
            for rates in ways:
                step = min(left / rates[k] for k, (_, left) in enumerate(together.values()))
                after = {
                    i: (gpu, left - rates[k] * step)
                    for k, (i, (gpu, left)) in enumerate(together.items())
                    if left - rates[k] * step > 1e-9 * self._jobs[i].samples
                }
                self._go(now + step, waiting - {*starts}, after)

    def _starts(self, waiting: frozenset[int], running: dict[int, tuple[int, float]]) -> Iterator[dict[int, int]]:
        places = [None, *range(self._machine.gpus)]
        for choice in itertools.product(places, repeat=len(waiting)):
            starts = {i: gpu for i, gpu in zip(sorted(waiting), choice, strict=True) if gpu is not None}
            placed = {**{i: gpu for i, (gpu, _) in running.items()}, **starts}
            used = [0.0] * self._machine.gpus
            for i, gpu in placed.items():
                used[gpu] += self._jobs[i].memory_bytes
            empty = [gpu for gpu in range(self._machine.gpus) if all(gpu != at for at, _ in running.values())]
            first = list(dict.fromkeys(gpu for gpu in starts.values() if gpu in empty))
            if first == empty[: len(first)] and all(
                use <= most for use, most in zip(used, self._machine.memories, strict=True)
            ):
                yield starts

    def _feeds(self, members: list[int]) -> Iterator[list[list[int]]]:
        """All divisions in which members of a feed have the same data."""
        if not members:
            yield []
            return
        first, *others = members
        mates = [i for i in others if self._jobs[i].data and self._jobs[i].data == self._jobs[first].data]
        for number in range(len(mates) + 1):
            for chosen in itertools.combinations(mates, number):
                for rest in self._feeds([i for i in others if i not in chosen]):
                    yield [[first, *chosen], *rest]

    def _rates(self, running: dict[int, tuple[int, float]], feeds: list[list[int]]) -> tuple[float, ...]:
        placed = {i: Placed.on(self._jobs[i], (gpu,), self._machine) for i, (gpu, _) in running.items()}
        near = Neighbourhood(list(placed.values()), self._machine)
        found = fair_rates([near.demand([placed[i] for i in feed]) for feed in feeds], self._machine)
        rate_of = {i: rate for feed, rate in zip(feeds, found, strict=True) for i in feed}
        return tuple(rate_of[i] for i in running)
