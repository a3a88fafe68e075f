"""Runs the demo: equal models trained side by side on one set of images, arm after arm."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from penstock.basics.results import Tell
from penstock.bench.demo.images import DEVICE, ImageFolder, TrainerJob, runs
from penstock.bench.demo.report import EACH, FEED, ArmFigures, DemoReport, DemoSettings, ModelFigures
from penstock.bench.loop import ONE_THREAD, failure, plan_of
from penstock.linux.cgroups import machine_cpu_s
from penstock.runs.machine import describe
from penstock.runs.store import Store
from penstock.runs.trial import Bounds, MeasuredTrial, TrialRunner

_PATIENCE_S = 600.0  # a slow disk


def compare(folder: ImageFolder, most: int | None, trainers: int, epochs: int, tell: Tell) -> DemoReport:
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
    jobs = [TrainerJob(run, str(folder.root), most, epochs, each) for run in runs(trainers)]
    shared = [msgspec.structs.replace(job, feed="demo", workers=each * trainers) for job in jobs]
    _read_once(folder)
    with tempfile.TemporaryDirectory(prefix="penstock-") as scratch, Store.open(Path(scratch)) as store:
        report.measure({EACH: lambda _: _figures(store, jobs), FEED: lambda _: _figures(store, shared)}, [0], tell)
    return report


def _read_once(folder: ImageFolder) -> None:
    """Read every training file, so that both arms find as many in the page cache as fit."""
    for path, _ in folder.train:
        with open(path, "rb") as file:
            while file.read(1 << 20):
                pass


def _figures(store: Store, jobs: Sequence[TrainerJob]) -> ArmFigures:
    """Run these jobs side by side, each to its end."""
    module = "penstock.bench.demo.trainer"
    plans = [plan_of(module, job, job.run.name, watch_dataloader=True) for job in jobs]
    began_s, machine_before_s = time.monotonic(), machine_cpu_s()
    runner = TrialRunner(store, plans, group="demo", variables={**ONE_THREAD, "TMPDIR": str(store.folder)})
    ended = MeasuredTrial(runner, Bounds(_PATIENCE_S), warm=1).run(to_end=True)
    if error := failure(store, ended, "a run failed"):
        raise error
    wall_s = time.monotonic() - began_s
    loops = [_Loop(store, run.id) for run in ended]
    start_s = max(loop.first_s for loop in loops)
    counted = [loop.images - loop.images_at(start_s) for loop in loops]
    cpu_s = runner.cpu_s
    if not all(counted):  # such a short job that one had all its images before another had its first
        start_s, counted, cpu_s = (
            min(loop.began_s for loop in loops),
            [loop.images for loop in loops],
            runner.used_s,
        )
    return ArmFigures(
        device=(store.folder_of(ended[0].id) / "files" / DEVICE).read_text(),
        workers=jobs[0].workers * (1 if jobs[0].feed else len(jobs)),
        images_per_s=sum(counted) / (max(loop.end_s for loop in loops) - start_s),
        wall_s=wall_s,
        cpu_s=runner.used_s,
        cpu_s_per_1000_images=1000 * cpu_s / sum(counted),
        peak_pss_bytes=runner.memory_bytes,
        others_cpu_s=max(0.0, machine_cpu_s() - machine_before_s - runner.used_s),
        runs=[
            ModelFigures(**msgspec.structs.asdict(job.run), images=int(loop.images), images_per_s=its / took_s)
            for job, loop, its in zip(jobs, loops, counted, strict=True)
            if (took_s := loop.end_s - start_s)
        ],
    )


class _Loop:
    """The images that a run was given, by time in seconds since 1970."""

    def __init__(self, store: Store, id: str) -> None:
        series = store.series(id)
        given, loop_s = series["feed.train.samples"], series["feed.train.loop_s"]
        self._times_s, self._images = given.times_s, given.values
        self.images = float(given.values[-1])
        self.end_s = float(given.times_s[-1])
        self.first_s = float(given.times_s[np.argmax(given.values > 0)])
        self.began_s = self.end_s - float(loop_s.values[-1])

    def images_at(self, time_s: float) -> float:
        return float(np.interp(time_s, [self.began_s, *self._times_s], [0.0, *self._images]))
