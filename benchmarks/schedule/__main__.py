"""What a schedule that shares data gains in the model, against published policies and against bounds.

python -m benchmarks.schedule [--traces FOLDER] [--seeds 100] [--json benchmarks/results/schedule.json]
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.claim import claim, report
from benchmarks.replanner import Replanner
from benchmarks.schedule import traces
from benchmarks.schedule.traces import drawn
from msgspec.structs import replace
from rich.progress import track
from tests.schedule.configurations import least_makespan_s, no_plan_below_s
from tests.schedule.mixes import few

from penstock.schedule.jobs import GpuMachine, Job, contention
from penstock.schedule.partition import Sharing
from penstock.schedule.planner import Objective, Planner, Portfolio
from penstock.schedule.simulate import simulate

GIB = 2**30
APART: tuple[Sharing, ...] = ("none",)
MURI_MS = {
    "resnet18": (711, 110),
    "shufflenet": (706, 59),
    "vgg16": (117, 68),
    "vgg19": (114, 80),
    "dqn": (446, 8),
    "a2c": (514, 14),
    "bert": (0.5, 160),
    "gpt2": (0.6, 410),
}
"""Muri's kinds: milliseconds an iteration of preparation, in four processes, and of GPU."""
COMPARED = ("fifo", "spt", "carma-magm", "carma-lug", "muri")
VISION = ("resnet18", "shufflenet", "vgg16", "vgg19")


def four(cores: float) -> GpuMachine:
    return GpuMachine(cores=cores, memories=(16.0 * GIB,) * 4)


def muri_jobs(kinds: Sequence[str], seed: int) -> list[Job]:
    chance, jobs = random.Random(seed), list[Job]()
    for i in range(24):
        kind = chance.choice(kinds)
        prepared, computed = (each / 1000 for each in MURI_MS[kind])
        jobs.append(
            Job(
                name=f"{kind}-{i}",
                samples=chance.uniform(600, 3600) / max(prepared, computed),
                preparation_s=4 * prepared,
                gpu_s=computed,
                sm_share=0.6,
                memory_bytes=4 * GIB,
                data="images" if kind in VISION else "",
                kind=kind,
            )
        )
    return jobs


def gain(jobs: Sequence[Job], machine: GpuMachine, objective: Objective) -> float:
    """The best plan that shares over the best that does not."""
    shared = Planner(machine, objective).plan(jobs).cost
    return shared / Planner(machine, objective, sharings=APART).plan(jobs).cost


def gains(seeds: int) -> list[dict[str, Any]]:
    claims = list[dict[str, Any]]()
    mixes: dict[str, tuple[Any, float, dict[Objective, float]]] = {
        "all on one data set": (lambda s: drawn(24, 1.0, s), 12, {"makespan": 0.60, "jct": 0.55}),
        "a quarter other work": (lambda s: drawn(24, 0.75, s), 13, {"makespan": 0.80}),
        "Muri's vision jobs": (lambda s: muri_jobs(VISION, s), 16, {"makespan": 0.48}),
        "Muri's eight kinds": (lambda s: muri_jobs([*MURI_MS], s), 16, {"makespan": 0.85}),
    }
    for name, (make, cores, targets) in mixes.items():
        rho = statistics.median(contention(make(seed), four(cores)) for seed in range(seeds))
        for objective, target in targets.items():
            each = [gain(make(s), four(cores), objective) for s in track(range(seeds), f"{name}, {objective}")]
            what = f"{name} (ρ = {rho:.2f}): {objective} with sharing ÷ the best without, {seeds} seeds"
            claims.append(claim(what, "", each, most=target))
    return claims


def untrue(jobs: Sequence[Job], seed: int) -> list[Job]:
    """Jobs whose costs are up to 30% off."""
    chance = random.Random(seed)

    def off() -> float:
        return chance.uniform(0.7, 1.3)

    return [replace(job, preparation_s=job.preparation_s * off(), gpu_s=job.gpu_s * off()) for job in jobs]


def against_published(seeds: int) -> list[dict[str, Any]]:
    """Mixes with ρ up to 0.8, where sharing gains nothing: no published policy must be better."""
    told, believed = list[float](), list[float]()
    for seed in track(range(seeds), "ρ ≤ 0.8"):
        chance = random.Random(seed)
        jobs = drawn(16, chance.choice([0.0, 0.5, 1.0]), seed)
        machine = four(12)
        machine = replace(machine, cores=12 * contention(jobs, machine) / chance.uniform(0.3, 0.8))
        truth, wrong = {job.name: job for job in jobs}, untrue(jobs, seed)
        true, off = Portfolio(jobs, machine), Portfolio(wrong, machine)
        best, best_off = (
            min(simulate(jobs, machine, each.policy(name, "none"), "none").makespan_s for name in COMPARED)
            for each in (true, off)
        )
        told.append(Planner(machine, swaps_s=0.1).plan(jobs).outcome.makespan_s / best)
        again = Planner(machine, most_s=0.3, swaps_s=0.1)
        policy = Replanner(wrong, again, lambda job, t=truth: t[job.name])
        believed.append(simulate(jobs, machine, policy, "split").makespan_s / best_off)
    high = sorted(believed)[math.ceil(0.95 * seeds) - 1]
    return [
        claim(
            f"ρ ≤ 0.8, {seeds} seeds: makespan ÷ the best published policy's, worst", "", [max(told)], most=1.0001
        ),
        claim("the same, all told rates up to 30% off, mean", "", [statistics.mean(believed)], most=1.0),
        claim("the same, 95th percentile", "", [high], most=1.05),
    ]


def against_bound(seeds: int) -> list[dict[str, Any]]:
    ratios = list[float]()
    for seed in track(range(seeds), "against the bound"):
        chance = random.Random(seed)
        jobs, machine = (
            drawn(chance.randint(8, 40), chance.choice([0.0, 0.5, 1.0]), seed),
            four(chance.choice([8, 16, 32])),
        )
        ratios.append(Planner(machine).plan(jobs).outcome.makespan_s / least_makespan_s(jobs, machine))
    return [claim(f"8 to 40 jobs, {seeds} seeds: makespan ÷ the bound", "", ratios, most=1.20)]


def against_configurations(seeds: int) -> list[dict[str, Any]]:
    """Fewer jobs, against the least time in what can run together: it stops and moves jobs at will."""
    ratios = list[float]()
    for seed in track(range(seeds), "against configurations"):
        jobs, machine = few(seed, 8 + seed % 5)
        ratios.append(Planner(machine).plan(jobs).outcome.makespan_s / no_plan_below_s(jobs, machine))
    return [claim(f"8 to 12 jobs, {seeds} seeds: makespan ÷ the configurations' bound", "", ratios, most=1.20)]


def gavel(folder: Path) -> list[dict[str, Any]]:
    claims = list[dict[str, Any]]()
    for file in ("gavel-minimize_makespan-100jobs.trace", "gavel-philly-vc-2869ce-533jobs.trace"):
        trace = traces.gavel(folder / file, gpus=8)
        machine = GpuMachine(cores=24, memories=(16.0 * GIB,) * 8, pairs=trace.pairs, most_on_gpu=2)
        free = [replace(job, preparation_s=0.0) for job in trace.jobs]
        matched = Planner(machine, sharings=APART, names=("muri",)).plan(free).cost
        planned = Planner(machine, sharings=APART).plan(free).cost
        left_out = f", {trace.left_out} that need more left out" if trace.left_out else ""
        what = f"{file}, 8 GPUs{left_out}: makespan ÷ that of matched pairs"
        claims.append(claim(what, "", [planned / matched], most=1.0001))
        shared = gain(trace.jobs, machine, "makespan")
        what = f"{file}, Synergy's preparation, 24 cores: makespan with sharing ÷ without (reported)"
        claims.append(claim(what, "", [shared], most=1.0))
    return claims


def times(repeats: int) -> list[dict[str, Any]]:
    jobs, machine = drawn(500, 0.7, 1), GpuMachine(cores=24, memories=(16.0 * GIB,) * 8)
    plans, replans = list[float](), list[float]()
    for seed in range(repeats):
        began = time.thread_time()
        Planner(machine, seed=seed).plan(jobs)
        plans.append(time.thread_time() - began)
        began = time.thread_time()
        Planner(machine, most_s=0.4, swaps_s=0.1, seed=seed).plan(jobs[:100])
        replans.append(time.thread_time() - began)
    return [
        claim("a plan of 500 jobs on 8 GPUs, CPU time", "s", plans, most=2.0),
        claim("planning again, CPU time", "s", replans, most=0.5),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, help="folder of the published traces")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    claims = [*times(3), *gains(max(3, chosen.seeds // 10)), *against_bound(chosen.seeds // 2)]
    claims += against_configurations(chosen.seeds // 2)
    if chosen.traces:
        claims += gavel(chosen.traces)
    claims += against_published(chosen.seeds)
    report(claims, chosen.json, seeds=chosen.seeds)


if __name__ == "__main__":
    main()
