"""A bound on every plan of up to a dozen jobs: a linear program over all that can run together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.optimize import linprog

from penstock.schedule.jobs import GpuMachine, Job, alone_s
from penstock.schedule.partition import Neighbourhood, Placed, fair_rates

_Blocks = list[list[int]]


def no_plan_below_s(jobs: Sequence[Job], machine: GpuMachine) -> float:
    """Return a makespan that no plan is below, of jobs that all are there at once and take no time to start.

    A configuration is a set of jobs that run, their GPUs, which are alike, and their feeds. At any moment a plan
    is in one of them, and each job goes at its fair rate. So the seconds x_k that a plan spends in each solve

        min Σ x_k,  Σ_k r_kj x_k ≥ n_j,  x ≥ 0

    with rates r_kj and samples n_j; the least sum stops and moves jobs at will. The bound is what all jobs are
    worth at the dual's prices, over the most that a configuration earns in a second. That holds for any prices, so
    for those of a solver that rounds.
    """
    assert not any(job.arrives_s or job.start_s or job.after or job.gpus > 1 for job in jobs)
    parts = np.array([*configurations(jobs, machine)]) / [job.samples for job in jobs]
    solved = linprog(np.ones(len(parts)), A_ub=-parts.T, b_ub=-np.ones(len(jobs)), method="highs")
    prices = np.maximum(0.0, -solved.ineqlin.marginals)
    return float(prices.sum() / (parts @ prices).max())


def configurations(jobs: Sequence[Job], machine: GpuMachine) -> Iterator[list[float]]:
    """Yield the rate of each job, 0 if it does not run, in each configuration."""
    for number in range(1, len(jobs) + 1):
        for running in itertools.combinations(range(len(jobs)), number):
            for on in _on_gpus(running, jobs, machine):
                gpu_of = {i: gpu for gpu, members in enumerate(on) for i in members}
                placed = {i: Placed.on(jobs[i], (gpu_of[i],), machine) for i in running}
                near = Neighbourhood([*placed.values()], machine)
                for feeds in _divisions(running, jobs):
                    rates = [0.0] * len(jobs)
                    found = fair_rates([near.demand([placed[i] for i in feed]) for feed in feeds], machine)
                    for feed, rate in zip(feeds, found, strict=True):
                        for i in feed:
                            rates[i] = rate
                    yield rates


def _on_gpus(running: Sequence[int], jobs: Sequence[Job], machine: GpuMachine) -> Iterator[_Blocks]:
    """Yield which jobs share a GPU, in all ways that memory allows."""
    if not running:
        yield []
        return
    *others, last = running
    for on in _on_gpus(others, jobs, machine):
        for gpu, members in enumerate(on):
            if sum(jobs[i].memory_bytes for i in (*members, last)) <= machine.memories[gpu]:
                yield [*on[:gpu], [*members, last], *on[gpu + 1 :]]
        if len(on) < machine.gpus:
            yield [*on, [last]]


def _divisions(running: Sequence[int], jobs: Sequence[Job]) -> Iterator[_Blocks]:
    """Yield all divisions into feeds whose members have the same data."""
    if not running:
        yield []
        return
    *others, last = running
    for feeds in _divisions(others, jobs):
        for number, members in enumerate(feeds):
            if jobs[last].data and jobs[members[0]].data == jobs[last].data:
                yield [*feeds[:number], [*members, last], *feeds[number + 1 :]]
        yield [*feeds, [last]]


def least_makespan_s(jobs: Sequence[Job], machine: GpuMachine) -> float:
    """A time that no plan is shorter than: each data set is prepared once, each sample computed, each job ends."""
    own, prepared, computed, longest = 0.0, dict[str, float](), 0.0, 0.0
    for job in jobs:
        work = job.samples * job.preparation_s
        key = job.data or f"only {job.name}"
        prepared[key] = max(prepared.get(key, 0.0), work)
        own += job.start_s + job.samples * job.own_s
        if not machine.pairs:  # what was measured of two may sum up to more than one
            computed += job.samples * job.gpu_s * job.gpus * (job.sm_share if machine.mode == "mps" else 1.0)
        longest = max(longest, job.arrives_s + alone_s(job, machine))
    return max((own + sum(prepared.values())) / machine.cores, computed / machine.gpus, longest)
