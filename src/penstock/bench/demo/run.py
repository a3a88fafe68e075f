"""Runs the demo: equal models trained side by side on one set of images, arm after arm."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from penstock.bench.demo.images import ImageFolder
from penstock.bench.demo.job import TrainerJob, runs
from penstock.bench.demo.report import EACH, FEED, ArmFigures, DemoReport, DemoSettings, ModelFigures
from penstock.bench.experiment import Tell
from penstock.bench.measure.family import Family, family
from penstock.bench.measure.pool import (
    ONE_THREAD,
    MeasuredProcess,
    MemberFailed,
    ProcessPool,
    answers_of,
    users_error,
)
from penstock.linux.cgroups import machine_cpu_s
from penstock.runs.machine import describe

_MEMORY_EVERY_S = 1.0


def compare(folder: ImageFolder, trainers: int, epochs: int, tell: Tell) -> DemoReport:
    """Train equal models on one set of images in both arms.

    Both have equally many loader workers: one per core, and at least one per run.

    Raises:
        BadSetting: a file in the folder cannot be used.
        PenstockError: a run failed.
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
        return _figures(FEED, shared, tell)

    _read_once(folder)
    report.measure({EACH: lambda _: _figures(EACH, jobs, tell), FEED: on_a_feed}, [0], tell)
    return report


def _read_once(folder: ImageFolder) -> None:
    """Read every training file, so that both arms find as many in the page cache as fit."""
    for path, _ in folder.train:
        with open(path, "rb") as file:
            while file.read(1 << 20):
                pass


class _Trainer:
    """A trainer's process, and what it has reported so far."""

    def __init__(self, job: TrainerJob, member: MeasuredProcess) -> None:
        self.job = job
        self.member = member
        self.ready_s = 0.0
        self.events: list[dict[str, Any]] = []
        member.tell(msgspec.to_builtins(job))

    @property
    def trained(self) -> bool:
        return bool(self.events) and "device" in self.events[-1]

    def images_since(self, start_s: float) -> float:
        """Return how many images it received after this moment."""
        times = [self.ready_s, *(event["at_s"] for event in self.events)]
        images = [0, *(event["images"] for event in self.events)]
        return images[-1] - float(np.interp(start_s, times, images))


def _figures(arm: str, jobs: Sequence[TrainerJob], tell: Tell) -> ArmFigures:
    """Run these jobs side by side.

    Raises:
        BadSetting: one of the user's files cannot be used.
        PenstockError: a run failed.
    """

    def tell_images() -> None:
        done = sum(trainer.events[-1]["images"] for trainer in trainers if trainer.events)
        tell(done, sum(job.epochs * len(job.train) for job in jobs), f"{arm}: {len(jobs)} runs")

    with family() as members, tempfile.TemporaryDirectory() as scratch, ProcessPool(Path(scratch)) as pool:
        began_s, machine_before_s = time.monotonic(), machine_cpu_s()
        # One thread: the trainers share the cores.
        command = [sys.executable, "-m", "penstock.bench.demo.trainer"]
        trainers = [_Trainer(job, *pool.start(command, 1, ONE_THREAD)) for job in jobs]
        try:
            cpu_at_start_s = _follow(trainers, members, tell_images)
        except MemberFailed as error:
            raise users_error(error, "a run failed", pool) from None
        wall_s = time.monotonic() - began_s
        pool.dismiss([trainer.member for trainer in trainers])
        members.end()
        cpu_s = members.cpu_s()
        others_cpu_s = max(0.0, machine_cpu_s() - machine_before_s - cpu_s)
    ends = [trainer.events[-1] for trainer in trainers]
    start_s = max(trainer.events[0]["at_s"] for trainer in trainers)
    counted = [trainer.images_since(start_s) for trainer in trainers]
    if not all(counted):  # such a short job that one had all its images before another had its first
        start_s, cpu_at_start_s = min(trainer.ready_s for trainer in trainers), 0.0
        counted = [float(end["images"]) for end in ends]
    return ArmFigures(
        device=ends[0]["device"],
        workers=jobs[0].workers * (1 if jobs[0].feed else len(jobs)),
        images_per_s=sum(counted) / (max(end["at_s"] for end in ends) - start_s),
        wall_s=wall_s,
        cpu_s=cpu_s,
        cpu_s_per_1000_images=1000 * (cpu_s - cpu_at_start_s) / sum(counted),
        peak_pss_bytes=members.peak_pss_bytes,
        others_cpu_s=others_cpu_s,
        runs=[
            ModelFigures(
                **msgspec.structs.asdict(job.run),
                images=end["images"],
                images_per_s=images / (end["at_s"] - start_s),
            )
            for job, end, images in zip(jobs, ends, counted, strict=True)
        ],
    )


def _follow(trainers: Sequence[_Trainer], members: Family, tell_images: Callable[[], None]) -> float:
    """Start the trainers together, and read their reports to the last.

    Returns:
        CPU time of all trainers when the last had its first batch.

    Raises:
        MemberFailed: one failed, or died.
    """
    cpu_at_start_s: float | None = None
    started, sampled_s = False, 0.0
    by_pid = {trainer.member.pid: trainer for trainer in trainers}
    for heard in answers_of([trainer.member for trainer in trainers], _MEMORY_EVERY_S):
        if heard is not None:
            member, event = heard
            if "ready_s" in event:
                by_pid[member.pid].ready_s = event["ready_s"]
            else:
                by_pid[member.pid].events.append(event)
            continue
        if dead := [trainer for trainer in trainers if trainer.member.over and not trainer.trained]:
            raise MemberFailed(f"run {dead[0].job.run.name} died")
        if not started and all(trainer.ready_s for trainer in trainers):
            started = True
            for trainer in trainers:
                trainer.member.tell("start")
        if cpu_at_start_s is None and all(trainer.events for trainer in trainers):
            cpu_at_start_s = members.cpu_s()
        if time.monotonic() - sampled_s >= _MEMORY_EVERY_S:
            members.sample_memory()
            tell_images()
            sampled_s = time.monotonic()
    assert cpu_at_start_s is not None
    return cpu_at_start_s
