"""Jobs and machines for tests of schedules."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st

from penstock.schedule.jobs import GpuMachine, Job

GIB = 2**30
IMAGE_KINDS = {"alexnet": (12, 4e-4), "resnet18": (9, 5e-4), "resnet50": (4, 1.3e-3), "mobilenet": (6, 9e-4)}
KINDS = {**IMAGE_KINDS, "deepspeech": (3, 0.038), "transformer": (1, 0.005), "lstm": (1, 5e-4)}
"""Kinds of trainings: cores that keep a GPU busy, seconds a sample on the GPU, much as Synergy's (OSDI'22)."""


def job(name: str, **more: Any) -> Job:
    return Job(
        **{"name": name, "samples": 1000.0, "preparation_s": 0.01, "gpu_s": 0.001, "data": "images", **more}
    )


def drawn(number: int, same_data: float, seed: int) -> list[Job]:
    """Jobs of 10 to 60 minutes, of kinds that want 1 to 12 cores; those on the one data set are of image kinds."""
    chance = random.Random(seed)
    some: list[Job] = []
    for i in range(number):
        shares = chance.random() < same_data
        kind = chance.choice([*IMAGE_KINDS] if shares else [*KINDS])
        cores, sample_s = KINDS[kind]
        samples = chance.uniform(600, 3600) / sample_s
        costs = {"samples": samples, "preparation_s": cores * sample_s, "gpu_s": sample_s, "sm_share": 0.6}
        some.append(job(f"{kind}-{i}", **costs, memory_bytes=4 * GIB, data="images" if shares else "", kind=kind))
    return some


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
