"""What a scheduler sees of runs that go on: rates that are off, pairs that are slower together."""

from __future__ import annotations

import math

from penstock.schedule.jobs import GpuMachine, Job
from penstock.schedule.looks import Look
from penstock.schedule.rates import Placed
from penstock.schedule.watching import Watched, slower_together

MACHINE = GpuMachine(cores=8, memories=(1e9,))


def watched(samples_per_s: float, seconds: int = 60, expected: float | None = None) -> Watched:
    found = Watched()
    for second in range(seconds + 1):
        done = samples_per_s * second + 1
        found.add(Look(100.0 + second, done, second * 1.0, 0.0, second * 0.5, 1000, None))
    found.expected = expected
    return found


def test_a_rate_counts_as_off_once_it_was_for_ten_seconds() -> None:
    assert not watched(80, seconds=9, expected=100).is_off()
    assert watched(80, seconds=11, expected=100).is_off()
    assert not watched(90, seconds=11, expected=100).is_off()
    assert watched(120, seconds=11, expected=100).is_off()


def test_what_was_seen_beside_others_is_forgotten_when_they_go() -> None:
    one = watched(100)
    seen = one.seen()
    assert seen and math.isclose(seen.costs.samples_per_s, 100)
    one.begin_anew()
    assert one.seen() is None
    assert one.first and one.first.samples == 1


def test_two_that_fight_on_a_gpu_are_found_and_two_that_get_on_are_not() -> None:
    # Alone, each trains 1,000 samples a second; by turns they would have 500 each.
    jobs = [Job(name=name, samples=1e6, preparation_s=1e-4, gpu_s=1e-3) for name in "ab"]
    placed = [Placed.on(job, (0,), MACHINE) for job in jobs]
    left = {"a": 1e6, "b": 1e6}
    for rate, slow in ((500, False), (480, False), (400, True), (200, True)):
        seen = {"a": watched(rate), "b": watched(rate)}
        assert bool(slower_together(seen, placed, left, MACHINE, "none")) == slow, rate


def test_two_on_different_gpus_are_not_compared() -> None:
    machine = GpuMachine(cores=8, memories=(1e9, 1e9))
    jobs = [Job(name=name, samples=1e6, preparation_s=1e-4, gpu_s=1e-3) for name in "ab"]
    placed = [Placed.on(job, (gpu,), machine) for gpu, job in enumerate(jobs)]
    assert not slower_together({"a": watched(1), "b": watched(1)}, placed, {"a": 1, "b": 1}, machine, "none")
