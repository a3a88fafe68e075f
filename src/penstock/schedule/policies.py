"""Who starts next, and where: published policies, and the lists that the planner tries."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from penstock.schedule.jobs import GpuMachine, Job, alone_s
from penstock.schedule.partition import Placed, Sharing, rates_together
from penstock.schedule.simulate import JobStart, Policy, State

Order = Callable[[Sequence[Job], GpuMachine], list[int]]
_SM_CAP = 0.8
"""CARMA adds no job to a GPU whose multiprocessors are busier than this."""
_LOOKED_AT = 8
"""Waiting jobs that greedy compares; Muri matches four times as many."""
_LEAST_GAIN = 1e-9


def by_arrival(jobs: Sequence[Job], machine: GpuMachine) -> list[int]:
    """First in, first out."""
    return sorted(range(len(jobs)), key=lambda i: (jobs[i].arrives_s, -jobs[i].priority, i))


def shortest_first(jobs: Sequence[Job], machine: GpuMachine) -> list[int]:
    """SPT, and Smith's rule where jobs have weights."""
    return sorted(range(len(jobs)), key=lambda i: (alone_s(jobs[i], machine) / jobs[i].priority, i))


def longest_first(jobs: Sequence[Job], machine: GpuMachine) -> list[int]:
    """LPT."""
    return sorted(range(len(jobs)), key=lambda i: (-alone_s(jobs[i], machine) * jobs[i].priority, i))


def by_deadline(jobs: Sequence[Job], machine: GpuMachine) -> list[int]:
    """Earliest deadline first; those without one after all others.

    A job must end early enough for those that come after it.
    """
    due = {job.name: math.inf if job.deadline_s is None else job.deadline_s for job in jobs}
    ahead = deque(job for job in jobs if job.deadline_s is not None)
    named = {job.name: job for job in jobs}
    while ahead:
        job = ahead.popleft()
        starts_s = due[job.name] - alone_s(job, machine)
        for before in job.after:
            if before in due and starts_s < due[before]:
                due[before] = starts_s
                ahead.append(named[before])
    return sorted(range(len(jobs)), key=lambda i: (due[jobs[i].name], i))


def by_data(jobs: Sequence[Job], machine: GpuMachine) -> list[int]:
    """The data set with most preparation first, its longest jobs first: those that can share run together."""
    work = dict[str, float]()
    for job in jobs:
        work[job.data] = work.get(job.data, 0.0) + job.samples * job.preparation_s
    return sorted(
        range(len(jobs)), key=lambda i: (-work[jobs[i].data], jobs[i].data, -alone_s(jobs[i], machine), i)
    )


def listed(order: Sequence[int], most: int | Sequence[int], *, backfill: bool = True) -> Policy:
    """Start jobs in an order, each on the GPU with the least to compute.

    ``order`` has indices of jobs. A GPU has at most ``most`` jobs: one number for all, or for each job the most
    with it. With ``backfill``, the next job may start where the first in the order finds no room.
    """
    place = {job: number for number, job in enumerate(order)}
    most_of_all = most if isinstance(most, int) else max(most)

    def start(state: State) -> JobStart | None:
        if all(len(jobs) >= most_of_all for jobs in state.on):
            return None
        for job in sorted(state.waiting, key=place.__getitem__):
            room = state.room_for(job, most if isinstance(most, int) else most[job])
            if len(room) >= state.jobs[job].gpus:
                room.sort(key=lambda gpu: (_busy(state, gpu), gpu))
                return JobStart(job, tuple(sorted(room[: state.jobs[job].gpus])))
            if not backfill:
                return None
        return None

    return start


def carma_magm(state: State) -> JobStart | None:
    """CARMA (2508.19073): the first that waits starts on the GPU with most free memory, if its use is low."""
    return _carma(state, lambda gpu: (-state.free_bytes[gpu], len(state.on[gpu]), gpu))


def carma_lug(state: State) -> JobStart | None:
    """CARMA's other rule: on the GPU that is used least."""
    return _carma(state, lambda gpu: (_busy(state, gpu), len(state.on[gpu]), gpu))


def _carma(state: State, key: Callable[[int], tuple[float, ...]]) -> JobStart | None:
    job = state.waiting[0]
    room = [gpu for gpu in state.room_for(job, len(state.jobs)) if _busy(state, gpu) <= _SM_CAP]
    if len(room) < state.jobs[job].gpus:
        return None
    return JobStart(job, tuple(sorted(sorted(room, key=key)[: state.jobs[job].gpus])))


def muri() -> Policy:
    """Muri (SIGCOMM'22): pairs whose stages interleave best, by maximum-weight matching, share a GPU.

    Who computes alone and who waits are matched anew at each event; the
    matching is grown greedily and improved by exchanges.
    """
    known: dict[tuple[int, int], float] = {}

    def gain(a: int, b: int, state: State) -> float:
        if (a, b) not in known:
            known[a, b] = pair_gain(a, b, state)
        return known[a, b]

    def start(state: State) -> JobStart | None:
        alone = [jobs[0] for jobs in state.on if len(jobs) == 1 and state.jobs[jobs[0]].gpus == 1]
        if not alone and all(state.on):
            return None
        waiting = state.waiting[: 4 * _LOOKED_AT]
        partner = matching([*alone, *waiting], lambda a, b: 0.0 if {a, b} <= {*alone} else gain(a, b, state))
        for job in alone:
            other = partner.get(job)
            if other is not None and state.placed[job].gpus[0] in state.room_for(other, 2):
                return JobStart(other, state.placed[job].gpus)
        for job in waiting:
            room = state.room_for(job, 1)
            if len(room) >= state.jobs[job].gpus:
                return JobStart(job, tuple(room[: state.jobs[job].gpus]))
        return None

    return start


def pair_gain(a: int, b: int, state: State) -> float:
    """What two jobs gain on one GPU: the sum of their rates, each as a part of its rate alone, less one."""
    first, second = state.jobs[a], state.jobs[b]
    memory_bytes = first.memory_bytes + second.memory_bytes
    if first.gpus != 1 or second.gpus != 1 or memory_bytes > max(state.machine.memories):
        return 0.0
    (of_first, measured), (of_second, _) = (
        state.machine.slowdown(first, [second]),
        state.machine.slowdown(second, [first]),
    )
    if measured:
        return max(0.0, 1 / of_first + 1 / of_second - 1)
    cores = state.machine.cores / state.machine.gpus  # of one GPU
    stages = [((job.preparation_s + job.own_s) / cores, job.gpu_s) for job in (first, second)]
    alone = [sum(each) for each in stages]  # Muri interleaves what runs stage by stage
    together = max(1.0, *(x / alone[0] + y / alone[1] for x, y in zip(*stages, strict=True)))
    return max(0.0, 2 / together - 1)


def matching(nodes: Sequence[int], gain: Callable[[int, int], float]) -> dict[int, int]:
    """Match nodes in pairs for a large sum of gains: best pairs first, then exchanges among two or three pairs."""
    gains = {pair: gain(*pair) for pair in itertools.combinations(nodes, 2)}
    weight = {**gains, **{(b, a): each for (a, b), each in gains.items()}}
    free, pairs = set(nodes), list[tuple[int, int]]()
    for a, b in sorted(gains, key=lambda pair: -gains[pair]):
        if a in free and b in free and gains[a, b] > 0:
            free -= {a, b}
            pairs.append((a, b))
    changed = True
    while changed:
        changed = False
        numbers = (2, 3) if len(pairs) <= _LOOKED_AT else (2,)
        for some in itertools.chain.from_iterable(itertools.combinations(range(len(pairs)), n) for n in numbers):
            now = sum(weight[pairs[i]] for i in some)
            for other in _pairings([node for i in some for node in pairs[i]]):
                if sum(weight[pair] for pair in other) > now + _LEAST_GAIN:
                    for i, pair in zip(some, other, strict=True):
                        pairs[i] = pair
                    changed = True
                    break
    return {**dict(pairs), **{b: a for a, b in pairs}}


def _pairings(nodes: list[int]) -> Iterator[list[tuple[int, int]]]:
    if not nodes:
        yield []
    for i in range(1, len(nodes)):
        for others in _pairings(nodes[1:i] + nodes[i + 1 :]):
            yield [(nodes[0], nodes[i]), *others]


def greedy(sharing: Sharing) -> Policy:
    """Start what adds most to the progress of all, as long as anything does."""

    def start(state: State) -> JobStart | None:
        now = _progress(state, sharing, None)
        best, most = None, now * (1 + _LEAST_GAIN)
        kinds = dict[tuple[object, ...], int]()
        for job in state.waiting:
            each = state.jobs[job]
            kinds.setdefault((each.data, each.gpu_s, each.preparation_s, each.memory_bytes, each.devices), job)
            if len(kinds) == _LOOKED_AT:
                break
        for job in kinds.values():
            room = state.room_for(job, len(state.jobs))
            room.sort(key=lambda gpu: (_busy(state, gpu), gpu))
            gpus = state.jobs[job].gpus
            for first in range(0, min(len(room) - gpus + 1, 2 * gpus), gpus) if gpus else (0,):
                trial = JobStart(job, tuple(sorted(room[first : first + gpus])))
                if (progress := _progress(state, sharing, trial)) > most:
                    best, most = trial, progress
        return best

    return start


def _progress(state: State, sharing: Sharing, more: JobStart | None) -> float:
    placed = [*state.placed.values()]
    if more:
        placed.append(Placed.on(state.jobs[more.job], more.gpus, state.machine))
    rates, _, _ = rates_together(
        placed, [1.0] * len(placed), 0, state.machine, "none" if sharing == "none" else "all"
    )
    return sum(rate * each.weight for each, rate in zip(placed, rates, strict=True))


def _busy(state: State, gpu: int) -> float:
    """What those on a GPU keep busy of it, if nothing else holds them up."""
    return sum(
        state.jobs[i].sm_share
        * min(
            1.0,
            state.jobs[i].gpu_s
            * state.machine.cores
            / (state.jobs[i].preparation_s + state.jobs[i].own_s + 1e-12),
        )
        for i in state.on[gpu]
    )
