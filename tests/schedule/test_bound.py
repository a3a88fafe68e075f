"""The configurations' bound: below every plan and the best of all, above the bound that users are shown."""

from __future__ import annotations

import random
import statistics
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.schedule.best import shorter_than
from tests.schedule.configurations import configurations, least_makespan_s, no_plan_below_s
from tests.schedule.mixes import GIB, few, job, jobs, machines

from penstock.schedule.jobs import GpuMachine, Job, alone_s
from penstock.schedule.partition import SHARINGS, Placed, rates_together
from penstock.schedule.planner import Planner

ROUNDED = 1 + 1e-7


def test_the_bound_stops_jobs_and_goes_on_with_them_later() -> None:
    """Three equal jobs on two GPUs take one and a half times as long as one (McNaughton, 1959)."""
    machine = GpuMachine(cores=100, memories=(16.0 * GIB,) * 2)
    three = [job(f"job{i}", memory_bytes=16 * GIB) for i in range(3)]
    assert no_plan_below_s(three, machine) == pytest.approx(1.5 * alone_s(three[0], machine))
    assert no_plan_below_s(three[:1], machine) == pytest.approx(alone_s(three[0], machine))


def test_the_bound_prepares_once_what_is_shared_and_goes_no_faster_than_a_slow_member() -> None:
    machine = GpuMachine(cores=2, memories=(16.0 * GIB,) * 2)
    same, other = job("a"), job("b")
    assert no_plan_below_s([same, other], machine) == pytest.approx(5.0)
    assert no_plan_below_s([same, replace(other, data="other")], machine) == pytest.approx(10.0)
    assert no_plan_below_s([same, replace(other, gpu_s=0.01)], machine) == pytest.approx(10.0)


@settings(max_examples=30)
@given(jobs(most=4), machines(), st.randoms(use_true_random=False))
def test_whatever_runs_together_in_a_plan_is_a_configuration(
    some: list[Job], machine: GpuMachine, chance: random.Random
) -> None:
    placed, free = list[Placed](), [*machine.memories]
    for each in some:
        gpu = chance.randrange(machine.gpus)
        if free[gpu] >= each.memory_bytes:
            free[gpu] -= each.memory_bytes
            placed.append(Placed.on(each, (gpu,), machine))
    found = [*configurations([each.job for each in placed], machine)]
    for sharing in SHARINGS:
        rates, _, _ = rates_together(placed, [each.job.samples for each in placed], 0, machine, sharing)
        assert any(rates == pytest.approx(each) for each in found)


@pytest.mark.parametrize("seed", range(6))
def test_the_best_plan_of_four_jobs_is_above_the_bound(seed: int) -> None:
    some, machine = few(seed, 4)
    planned = Planner(machine, swaps_s=0.05).plan(some).outcome.makespan_s
    best = shorter_than(planned, some, machine) or planned
    rising = [least_makespan_s(some, machine), no_plan_below_s(some, machine), best, planned]
    assert all(less <= more * ROUNDED for less, more in pairwise(rising))


def above_bound(seed: int) -> float:
    """The makespan of a plan of 8 to 12 jobs over the bound."""
    some, machine = few(200 + seed, 8 + seed % 5)
    bound = no_plan_below_s(some, machine)
    assert least_makespan_s(some, machine) <= bound * ROUNDED
    return Planner(machine, swaps_s=0.1).plan(some).outcome.makespan_s / bound


@pytest.mark.parametrize("seed", range(5))
def test_no_plan_is_below_the_bound_and_none_far_above(seed: int) -> None:
    assert 1 / ROUNDED <= above_bound(seed) <= 1.2


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_no_plan_of_many_mixes_is_below_the_bound() -> None:
    ratios = [above_bound(seed) for seed in range(100)]
    print(f"plan ÷ bound: median {statistics.median(ratios):.3f}, worst {max(ratios):.3f}")
    assert min(ratios) >= 1 / ROUNDED and statistics.median(ratios) <= 1.05 and max(ratios) <= 1.25
