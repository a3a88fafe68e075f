"""How a policy's plan would go: jobs as fluids, from event to event."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.schedule.jobs import GpuMachine, Job
from penstock.schedule.partition import Placed, Sharing, rates_together

_SAME_TIME_S = 1e-9


class JobStart(NamedTuple):
    """A job that starts now, by its index, and the GPUs that it gets."""

    job: int
    gpus: tuple[int, ...]


class Running(NamedTuple):
    """A job that runs when a plan begins."""

    job: int
    gpus: tuple[int, ...]  # the GPUs that it has
    since_s: float = 0.0  # when it started, relative to now: at most 0


class ScheduledRun(NamedTuple):
    """When and where a job runs."""

    job: int
    gpus: tuple[int, ...]  # the GPUs that it computes on
    start_s: float  # when it starts
    end_s: float  # when it ends


class State:
    """Who waits and who runs, at a moment of a plan; what policies see."""

    def __init__(self, jobs: Sequence[Job], machine: GpuMachine, running: Sequence[Running]) -> None:
        self.jobs = jobs  # all jobs, by index
        self.machine = machine  # what they run on
        self.now_s = 0.0  # seconds since the plan's beginning
        self.waiting: list[int] = []  # indices of the jobs that may start now, by arrival
        self.placed: dict[int, Placed] = {}  # the jobs that run, by index
        self.on: list[list[int]] = [[] for _ in range(machine.gpus)]  # by GPU, the jobs that run there
        self.free_bytes = list(machine.memories)  # by GPU, memory that no job has
        self.left: dict[int, float] = {}  # by index, the samples that each running job has yet to train on
        self.started_s: dict[int, float] = {}  # by index, when each running job started
        for each in running:
            self.place(each.job, each.gpus)
            self.started_s[each.job] = each.since_s

    def place(self, job: int, gpus: tuple[int, ...]) -> None:
        self.left[job], self.started_s[job] = self.jobs[job].samples, self.now_s
        self.placed[job] = Placed.on(self.jobs[job], gpus, self.machine)
        for gpu in gpus:
            self.on[gpu].append(job)
            self.free_bytes[gpu] -= self.jobs[job].memory_bytes

    def remove(self, job: int) -> None:
        del self.left[job], self.started_s[job]
        for gpu in self.placed.pop(job).gpus:
            self.on[gpu].remove(job)
            self.free_bytes[gpu] += self.jobs[job].memory_bytes

    def room_for(self, job: int, most: int) -> list[int]:
        """Return the GPUs that it may use, whose memory has room for it, and where fewer than ``most`` run."""
        wanted = self.jobs[job]
        return [
            gpu
            for gpu in wanted.devices or range(self.machine.gpus)
            if self.free_bytes[gpu] >= wanted.memory_bytes
            and len(self.on[gpu]) < most
            and self.machine.goes_beside(wanted, [self.jobs[i] for i in self.on[gpu]])
        ]


Policy = Callable[[State], JobStart | None]
"""Names a job that starts now, or None; asked again at once after each start, and at each event."""


class Forecast(NamedTuple):
    """How a plan goes."""

    runs: dict[int, ScheduledRun]  # all jobs, by index
    makespan_s: float  # when the last has ended
    stuck: list[int]  # indices of the jobs that have not ended, where the policy starts no more or the time was up

    def mean_jct_s(self, jobs: Sequence[Job]) -> float:
        """Return the mean time from arrival to end, weighted by priority."""
        weights = sum(job.priority for job in jobs)
        return sum(job.priority * (self.runs[i].end_s - job.arrives_s) for i, job in enumerate(jobs)) / weights


def simulate(
    jobs: Sequence[Job],  # what is left of each
    machine: GpuMachine,  # what they run on
    policy: Policy,  # who starts, at each event
    sharing: Sharing,  # how those that run are divided into feeds
    running: Sequence[Running] = (),  # the jobs that run already
    until_s: float = math.inf,  # give up once the makespan cannot be less
) -> Forecast:
    """Run a policy in the model."""
    state = State(jobs, machine, running)
    starting = {each.job: jobs[each.job].start_s for each in running if jobs[each.job].start_s > 0}
    left, began = state.left, state.started_s
    coming = sorted((i for i in range(len(jobs)) if i not in left), key=lambda i: (jobs[i].arrives_s, i))
    names = {job.name: i for i, job in enumerate(jobs)}
    needs = {i: {names[name] for name in jobs[i].after if name in names} for i in coming}
    ended: dict[int, ScheduledRun] = {}
    while True:
        arrived = [i for i in coming if jobs[i].arrives_s <= state.now_s + _SAME_TIME_S and not needs[i]]
        if arrived:
            state.waiting.extend(arrived)
            coming = [i for i in coming if i not in arrived]
        while state.waiting and (start := policy(state)) is not None:
            state.waiting.remove(start.job)
            if (start_s := _start_s(state, jobs[start.job], sharing)) > 0:
                starting[start.job] = start_s
            state.place(*start)
        reading = [i for i in state.placed if i not in starting]
        rates, core, _ = rates_together(
            [state.placed[i] for i in reading], [left[i] for i in reading], len(starting), machine, sharing
        )
        steps = [left[i] / rate for i, rate in zip(reading, rates, strict=True) if rate > 0]
        steps += [seconds / core for seconds in starting.values()]
        steps += [jobs[i].arrives_s - state.now_s for i in coming if jobs[i].arrives_s > state.now_s][:1]
        if not steps or state.now_s >= until_s:
            stuck = [*state.placed, *state.waiting, *coming]
            return Forecast(ended, math.inf if stuck else state.now_s, stuck)
        step = max(0.0, min(steps))
        state.now_s += step
        for i, rate in zip(reading, rates, strict=True):
            left[i] -= rate * step
            if left[i] <= rate * _SAME_TIME_S + 1e-9 * jobs[i].samples:
                ended[i] = ScheduledRun(i, state.placed[i].gpus, began[i], state.now_s)
                state.remove(i)
                for each in needs.values():
                    each.discard(i)
        for i in list(starting):
            starting[i] -= core * step
            if starting[i] <= _SAME_TIME_S:
                del starting[i]


def _start_s(state: State, job: Job, sharing: Sharing) -> float:
    """Return the CPU-seconds until a job's first batch, and its feed's if it has to start one."""
    feed_runs = sharing != "none" and job.data and any(state.jobs[i].data == job.data for i in state.placed)
    return job.start_s + (0.0 if feed_runs else job.feed_start_s)
