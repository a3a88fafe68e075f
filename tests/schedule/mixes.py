"""Jobs and machines for tests of schedules."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st

from penstock.schedule.jobs import GpuMachine, Job

GIB = 2**30


def job(name: str, **more: Any) -> Job:
    return Job(
        **{"name": name, "samples": 1000.0, "preparation_s": 0.01, "gpu_s": 0.001, "data": "images", **more}
    )


def few(seed: int, number: int) -> tuple[list[Job], GpuMachine]:
    """Jobs of which a GPU holds four at most, and a machine with one or two."""
    chance = random.Random(seed)
    some = [
        job(
            f"job{i}",
            samples=chance.uniform(100, 2000),
            preparation_s=10 ** chance.uniform(-3, -1.3),
            gpu_s=10 ** chance.uniform(-3, -1.5),
            memory_bytes=chance.choice([4, 6, 10]) * GIB,
            data=chance.choice(["a", "a", "b", ""]),
        )
        for i in range(number)
    ]
    return some, GpuMachine(cores=chance.choice([1, 2, 4]), memories=(16.0 * GIB,) * chance.choice([1, 2]))


@st.composite
def jobs(draw: Any, most: int = 6) -> list[Job]:
    cost = st.floats(1e-4, 0.1)
    return [
        job(
            f"job{i}",
            samples=draw(st.floats(10, 1e5)),
            preparation_s=draw(st.just(0.0) | cost),
            own_s=draw(st.just(0.0) | cost),
            gpu_s=draw(cost),
            start_s=draw(st.sampled_from([0.0, 2.0])),
            sm_share=draw(st.floats(0.1, 1)),
            memory_bytes=draw(st.integers(1, 12)) * GIB,
            data=draw(st.sampled_from(["", "a", "b"])),
            arrives_s=draw(st.sampled_from([0.0, 0.0, 5.0, 100.0])),
            priority=draw(st.sampled_from([1.0, 1.0, 3.0])),
        )
        for i in range(draw(st.integers(1, most)))
    ]


@st.composite
def machines(draw: Any) -> GpuMachine:
    gpus = draw(st.integers(1, 3))
    return GpuMachine(
        cores=draw(st.floats(1, 16)), memories=(16.0 * GIB,) * gpus, mode=draw(st.sampled_from(["plain", "mps"]))
    )
