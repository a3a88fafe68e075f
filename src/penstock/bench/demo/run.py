"""Runs the demo: equal models trained side by side on one set of images, arm after arm."""

from __future__ import annotations

import os
import select
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from penstock.basics.results import Tell
from penstock.bench.demo.images import ImageFolder, TrainerJob, runs
from penstock.bench.demo.report import EACH, FEED, ArmFigures, DemoReport, DemoSettings, ModelFigures
from penstock.bench.measure.family import Family, family
from penstock.bench.measure.pool import ONE_THREAD, MeasuredProcess, MemberFailed, ProcessPool, users_error
from penstock.linux.cgroups import machine_cpu_s
from penstock.runs.machine import describe

_MEMORY_EVERY_S = 1.0
_PATIENCE_S = 600.0  # a slow disk


def compare(folder: ImageFolder, trainers: int, epochs: int, tell: Tell) -> DemoReport:
    """Train equal models on one set of images in both arms.

    Both have equally many loader workers: one per core, and at least one per run.
    """
    settings = DemoSettings(
        data=folder.name,
        train_images=len(folder.train),
        mean_bytes=folder.mean_bytes(),
        crop_px=folder.crop_px,
        note=folder.note,
        epochs=epochs,
    )
    report = DemoReport(benchmark="demo", machine=describe(), settings=settings)
    each = max(len(os.sched_getaffinity(0)) // trainers, 1)
    jobs = [TrainerJob(run, folder.train, folder.classes, folder.crop_px, epochs, each) for run in runs(trainers)]

    def on_a_feed(_: int) -> ArmFigures:
        feed = f"demo/{folder.name}-{os.getpid()}-{os.urandom(3).hex()}"
        shared = [msgspec.structs.replace(job, feed=feed, workers=each * trainers) for job in jobs]
        return _figures(shared)

    _read_once(folder)
    report.measure({EACH: lambda _: _figures(jobs), FEED: on_a_feed}, [0], tell)
    return report


def _read_once(folder: ImageFolder) -> None:
    """Read every training file, so that both arms find as many in the page cache as fit."""
    for path, _ in folder.train:
        with open(path, "rb") as file:
            while file.read(1 << 20):
                pass


def _figures(jobs: Sequence[TrainerJob]) -> ArmFigures:
    """Run these jobs side by side."""
    with family() as members, tempfile.TemporaryDirectory() as scratch, ProcessPool(Path(scratch)) as pool:
        began_s, machine_before_s = time.monotonic(), machine_cpu_s()
        # One thread: the trainers share the cores.
        trainers = pool.start([sys.executable, "-m", "penstock.bench.demo.trainer"], len(jobs), ONE_THREAD)
        try:
            for trainer, job in zip(trainers, jobs, strict=True):
                trainer.send(msgspec.to_builtins(job))
            ready_s = _of_each(trainers, "ready_s")
            for trainer in trainers:
                trainer.send("start")
            start_s = max(_of_each(trainers, "first_s"))
            cpu_at_start_s = members.cpu_s()
            ends = _ends(trainers, members)
        except MemberFailed as error:
            raise users_error(error, "a run failed", pool) from None
        wall_s = time.monotonic() - began_s
        pool.dismiss(trainers)
        members.end()
        cpu_s = members.cpu_s()
        others_cpu_s = max(0.0, machine_cpu_s() - machine_before_s - cpu_s)
    images = [end["images_then"][-1] for end in ends]
    counted = [
        all_of_them - float(np.interp(start_s, [began, *end["times_s"]], [0, *end["images_then"]]))
        for began, end, all_of_them in zip(ready_s, ends, images, strict=True)
    ]
    if not all(counted):  # such a short job that one had all its images before another had its first
        start_s, cpu_at_start_s, counted = min(ready_s), 0.0, images
    return ArmFigures(
        device=ends[0]["device"],
        workers=jobs[0].workers * (1 if jobs[0].feed else len(jobs)),
        images_per_s=sum(counted) / (max(end["times_s"][-1] for end in ends) - start_s),
        wall_s=wall_s,
        cpu_s=cpu_s,
        cpu_s_per_1000_images=1000 * (cpu_s - cpu_at_start_s) / sum(counted),
        peak_pss_bytes=members.peak_pss_bytes,
        others_cpu_s=others_cpu_s,
        runs=[
            ModelFigures(
                **msgspec.structs.asdict(job.run),
                images=end["images_then"][-1],
                images_per_s=its / (end["times_s"][-1] - start_s),
            )
            for job, end, its in zip(jobs, ends, counted, strict=True)
        ],
    )


def _of_each(trainers: Sequence[MeasuredProcess], key: str) -> list[float]:
    return [trainer.hear_of(key, time.monotonic() + _PATIENCE_S)[key] for trainer in trainers]


def _ends(trainers: Sequence[MeasuredProcess], members: Family) -> list[dict[str, Any]]:
    """Return the last reports of all trainers; sample their memory meanwhile."""
    found = dict[int, dict[str, Any]]()
    while waiting := [trainer for trainer in trainers if trainer.pid not in found]:
        members.sample_memory()
        ready, _, _ = select.select(waiting, [], [], _MEMORY_EVERY_S)
        for trainer in ready:
            found[trainer.pid] = trainer.hear_of("device", time.monotonic() + _PATIENCE_S)
    return [found[trainer.pid] for trainer in trainers]
