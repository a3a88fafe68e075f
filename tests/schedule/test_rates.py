"""Rates of jobs that run together: nothing is overbooked, and a feed prepares its data once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.schedule.mixes import job, jobs, machines

from penstock.schedule.jobs import GpuMachine, alone_sample_s
from penstock.schedule.partition import SHARINGS, Neighbourhood, Placed, Sharing, rates_together

ONE_GPU = GpuMachine(cores=2, memories=(1e12,))


def rates(placed: list[Placed], machine: GpuMachine, sharing: Sharing, starting: int = 0) -> Any:
    return rates_together(placed, [1000.0] * len(placed), starting, machine, sharing)


def on(machine: GpuMachine, *these: tuple[Any, int]) -> list[Placed]:
    return [Placed.on(each, (gpu,), machine) for each, gpu in these]


def test_a_job_alone_goes_at_the_rate_of_what_is_slowest() -> None:
    for costs, rate in (
        ({"preparation_s": 0.01, "gpu_s": 0.001}, 200.0),  # two cores
        ({"preparation_s": 0.001, "gpu_s": 0.01}, 100.0),
        ({"preparation_s": 0.001, "gpu_s": 0.001, "own_s": 0.02}, 50.0),  # one process
    ):
        assert rates(on(ONE_GPU, (job("a", **costs), 0)), ONE_GPU, "all")[0] == pytest.approx([rate])


def test_four_that_share_prepare_once_and_four_that_do_not_four_times() -> None:
    machine = GpuMachine(cores=2, memories=(1e12,) * 4)
    four = on(machine, *((job(f"job{i}"), i) for i in range(4)))
    assert rates(four, machine, "none")[0] == pytest.approx([50.0] * 4)
    assert rates(four, machine, "all")[0] == pytest.approx([200.0] * 4)


def test_a_slow_member_is_cut_off_where_all_get_on_faster_without_it() -> None:
    machine = GpuMachine(cores=8, memories=(1e12,) * 3)
    mixed = on(machine, (job("a"), 0), (job("b"), 1), (job("slow", gpu_s=0.1), 2))
    assert rates(mixed, machine, "all")[0] == pytest.approx([10.0] * 3)
    together, _, feeds = rates(mixed, machine, "split")
    assert sorted(map(sorted, feeds)) == [[0, 1], [2]]
    assert together[0] == together[1] > 500 and together[2] == pytest.approx(10.0, rel=0.15)


def test_what_was_measured_of_a_pair_takes_the_place_of_what_is_assumed() -> None:
    pairs = {("x", "y"): 0.9, ("y", "x"): 0.4}
    machine = GpuMachine(cores=100, memories=(1e12,), pairs=pairs)
    both = on(machine, (job("a", kind="x", data=""), 0), (job("b", kind="y", data=""), 0))
    assert rates(both, machine, "none")[0] == pytest.approx([900.0, 400.0])
    assert not GpuMachine(cores=1, memories=(1,), pairs={("x", "y"): 0.0}).goes_beside(both[0].job, [both[1].job])


def test_jobs_that_start_take_a_core_each() -> None:
    placed = on(ONE_GPU, (job("a"), 0))
    alone, core, _ = rates(placed, ONE_GPU, "none")
    beside, starting, _ = rates(placed, ONE_GPU, "none", 2)
    assert core == 1.0 and beside[0] < alone[0] and 0.5 <= starting < 1.0


@given(jobs(), machines(), st.data())
def test_no_core_and_no_gpu_is_overbooked_and_all_get_on(some: Any, machine: GpuMachine, data: Any) -> None:
    placed = [Placed.on(each, (data.draw(st.integers(0, machine.gpus - 1)),), machine) for each in some]
    near = Neighbourhood(placed, machine)
    for sharing in SHARINGS:
        got, _, feeds = rates(placed, machine, sharing)
        assert sorted(i for feed in feeds for i in feed) == list(range(len(placed)))
        cpu, gpus = 0.0, [0.0] * machine.gpus
        for feed in feeds:
            assert len({got[i] for i in feed}) == 1 and (len(feed) == 1 or len({some[i].data for i in feed}) == 1)
            demand = near.demand([placed[i] for i in feed])
            cpu += got[feed[0]] * demand.cpu_s
            for gpu, seconds in demand.gpu_s:
                gpus[gpu] += got[feed[0]] * seconds
        assert cpu <= machine.cores * (1 + 1e-6) and all(each <= 1 + 1e-6 for each in gpus)
        for rate, each in zip(got, some, strict=True):
            assert 0 < rate * alone_sample_s(each, machine) <= 1 + 1e-6


@given(jobs(), machines(), st.data())
def test_who_could_go_faster_takes_it_from_nobody_faster(some: Any, machine: GpuMachine, data: Any) -> None:
    """Max-min fairness: what holds a feed up is full, and no other that uses it gets on further."""
    placed = [Placed.on(each, (data.draw(st.integers(0, machine.gpus - 1)),), machine) for each in some]
    near = Neighbourhood(placed, machine)
    demands = [near.demand([each]) for each in placed]
    got = rates(placed, machine, "none")[0]
    levels = [rate / demand.fastest for rate, demand in zip(got, demands, strict=True)]
    takes = [{0: each.cpu_s, **{1 + gpu: seconds for gpu, seconds in each.gpu_s}} for each in demands]
    uses = [
        {k: seconds * each.fastest for k, seconds in take.items() if seconds > 0}
        for take, each in zip(takes, demands, strict=True)
    ]
    for i, level in enumerate(levels):
        if level < 1 - 1e-6:
            full = [
                k
                for k in uses[i]
                if sum(uses[j].get(k, 0.0) * levels[j] for j in range(len(placed)))
                >= (machine.cores if k == 0 else 1.0) * (1 - 1e-6)
            ]
            assert any(all(levels[j] <= level + 1e-6 for j in range(len(placed)) if k in uses[j]) for k in full)
