"""Runs the demo: equal models trained side by side on one set of images, arm after arm."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from penstock.basics.results import Tell, results_table
from penstock.basics.terminal import printable
from penstock.bench.demo_images import DEVICE, DemoRun, ImageFolder, TrainerJob, runs
from penstock.bench.experiment import Report
from penstock.bench.loop import ONE_THREAD, failure, plan_of
from penstock.linux.cgroups import machine_cpu_s
from penstock.runs.machine import describe
from penstock.runs.store import Store
from penstock.runs.trial import Bounds, MeasuredTrial, TrialRunner

EACH, FEED = "each its loader", "one feed"
"""Names of the arms: a DataLoader for each run, one feed of such a loader."""
_IDLE = 0.1
"""Part of the cores that others may use before it is said: a run's keeper is none of the arm's."""


class ModelFigures(DemoRun, frozen=True, kw_only=True):
    """A run, and its figures in one arm."""

    images: int  # images that it received in all its epochs
    images_per_s: float  # images per second, from the moment when every run of the arm had its first batch


class ArmFigures(msgspec.Struct, frozen=True):
    """The figures of one arm."""

    device: str  # what the models were trained on, such as "cpu"
    workers: int  # loader workers, all together
    images_per_s: float  # images per second of all runs, from the moment when all had their first batch
    wall_s: float  # time from starting the first process to the end of the last run, imports included
    cpu_s: float  # CPU time of all processes in that time: trainers, loader workers, feeder
    cpu_s_per_1000_images: float  # CPU time for each 1,000 images received, both from that moment on
    peak_pss_bytes: int  # memory of all processes together; a shared page counts once
    others_cpu_s: float  # CPU time of everything else on the machine in the arm's wall time
    runs: list[ModelFigures]


class DemoSettings(msgspec.Struct, frozen=True):
    """What was trained on; ``data`` is the last part of the folder's path."""

    data: str
    train_images: int
    mean_bytes: int
    crop_px: int
    note: str
    epochs: int


class DemoReport(Report[DemoSettings, ArmFigures]):
    """A whole run of the demo."""

    @property
    def figures(self) -> tuple[ArmFigures, ArmFigures]:
        """Figures of both arms, first with a loader each, then on one feed."""
        return self.of(EACH)[0], self.of(FEED)[0]

    def times(self, name: str) -> float:
        """Return a figure on one feed over that with a loader each."""
        return self.ratio(FEED, EACH, lambda one: getattr(one, name)).median

    def about(self) -> str:
        """Return what was trained on, and where."""
        settings, machine = self.settings, self.machine
        return (
            f"{settings.data}: {settings.train_images:,} JPEGs of {settings.mean_bytes / 1000:,.0f} KB, cropped "
            f"to {settings.crop_px} px, {settings.epochs} epochs. {machine.cpu}, {machine.cores} cores, models on "
            f"{self.figures[0].device}."
        )

    def disturbed(self) -> str:
        """Return what to know about the figures if others used the machine meanwhile; else empty."""
        each, feed = (arm.others_cpu_s / arm.wall_s for arm in self.figures)
        if max(each, feed) < _IDLE * self.machine.cores:
            return ""
        return (
            f"The machine was not idle: others used {each:.1f} and {feed:.1f} of {self.machine.cores} cores in "
            "the arms. Images per second depend on that, CPU time per image hardly does."
        )


def print_report(report: DemoReport, console: Console) -> None:
    """Print the results, and the headline that sums them up."""
    console.print(
        f"\n{len(report.figures[0].runs)} training runs on one feed: {report.times('images_per_s'):.1f} times the "
        f"images/s, {report.times('cpu_s_per_1000_images'):.0%} of the CPU time, "
        f"{report.times('peak_pss_bytes'):.0%} of the memory",
        style="bold green",
    )
    console.print(printable(report.about()))
    if report.settings.note:
        console.print(f"{printable(report.settings.note)}.", style="dim")
    if disturbed := report.disturbed():
        console.print(disturbed, style="yellow")
    console.print()
    console.print(_runs_table(report))
    console.print(_totals_table(report))


def _runs_table(report: DemoReport) -> Table:
    headings = "\nrun", "\nwidth", "learning\nrate", "\nbatch", "images/s,\neach its", "one\nfeed", "\ntimes"
    table = results_table(*headings, title="Each run")
    for own, fed in zip(*(arm.runs for arm in report.figures), strict=True):
        table.add_row(
            own.name,
            str(own.width),
            f"{own.learning_rate:g}",
            str(own.batch_size),
            f"{own.images_per_s:,.0f}",
            f"{fed.images_per_s:,.0f}",
            f"{fed.images_per_s / own.images_per_s:.2f}",
        )
    return table


def _totals_table(report: DemoReport) -> Table:
    table = results_table("", EACH, FEED, "feed / each", title="All together")
    for heading, name, shown, scale in (
        ("images/s", "images_per_s", "{:,.0f}", 1),
        ("wall time, all of it", "wall_s", "{:,.1f} s", 1),
        ("CPU time, 1,000 images", "cpu_s_per_1000_images", "{:.2f} s", 1),
        ("memory at most (PSS)", "peak_pss_bytes", "{:,.0f} MiB", 2**20),
        ("loader workers", "workers", "{:,}", 1),
    ):
        values = (
            shown.format(getattr(arm, name) / scale if scale > 1 else getattr(arm, name)) for arm in report.figures
        )
        table.add_row(heading, *values, f"{report.times(name):.2f}")
    return table


def picture(report: DemoReport) -> Any:
    """Draw each run, and what all of them take together."""
    from penstock.basics.pictures import Bars, bars_picture

    arms = report.figures
    # The ratio to rely on is that of CPU time if others used the machine meanwhile.
    gain = f"{report.times('images_per_s'):.1f} times the images per second"
    of_cpu = f"{report.times('cpu_s_per_1000_images'):.0%} of the CPU time per image"
    title = f"One feed for {len(arms[0].runs)} training runs: {of_cpu if report.disturbed() else gain}"
    about = f"{report.about()} {arms[0].workers} loader workers.\n{report.disturbed()}".strip()

    def bars(title: str, name: str, shown: str, scale: float = 1.0) -> Bars:
        times = report.times(name)
        rate = name == "images_per_s"
        gained = f"{times:.1f}×" if rate else f"{times - 1:+.0%}".replace("-", "−")
        values = [[getattr(arm, name) / scale] for arm in arms]
        return Bars(title, [""], values, shown, (gained, (times > 1) == rate))

    names = [f"width {run.width}\nlr {run.learning_rate:g}\nbatch {run.batch_size}" for run in arms[0].runs]
    rates = [[run.images_per_s for run in arm.runs] for arm in arms]
    return bars_picture(
        title,
        about,
        ["a DataLoader for each run", "all from one Penstock feed"],
        Bars("Images per second, each run", names, rates),
        [
            bars("Images per second", "images_per_s", ",.0f"),
            bars("CPU-s, 1,000 images", "cpu_s_per_1000_images", ".2f"),
            bars("Memory, MiB (peak)", "peak_pss_bytes", ",.0f", 2**20),
        ],
    )


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
    module = "penstock.bench.demo_trainer"
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
