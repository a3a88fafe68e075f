"""Runs the arms, one after the other, on one set of images."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.bench.demo.arm import OnEvent, run_arm
from penstock.bench.demo.images import ImageFolder
from penstock.bench.demo.job import Job, runs
from penstock.bench.demo.results import ArmResult, Data, Report, machine_of, ratios
from penstock.runs.machine import describe

SEPARATE, SHARED, SOURCE = "a DataLoader each", "one Penstock feed", "one Penstock feed of an ImageSource"


def compare(
    folder: ImageFolder,
    trainers: int,
    epochs: int,
    on_arm: Callable[[str, list[Job]], OnEvent],
    *,
    with_source: bool,
) -> Report:
    """Train equal models on one set of images in all arms.

    All arms have equally many loader workers: one per core, and at least one per run.

    Args:
        with_source: Whether there is an arm with an ImageSource.
        on_arm: Called when an arm begins; what it returns is called with the trainers' reports.

    Raises:
        BadSetting: a file in the folder cannot be used.
        PenstockError: a run failed.
    """
    machine = describe()
    workers_each = max(len(os.sched_getaffinity(0)) // trainers, 1)
    _read_once(folder)
    own = [Job(run, folder.train, folder.classes, folder.crop_px, epochs, workers_each) for run in runs(trainers)]
    separate, _, device = run_arm(SEPARATE, own, on_arm(SEPARATE, own))

    def on_a_feed(name: str, images: str | None) -> ArmResult:
        feed = f"demo/{folder.name}-{os.getpid()}-{os.urandom(3).hex()}"
        workers = workers_each * trainers
        jobs = [msgspec.structs.replace(job, feed=feed, workers=workers, folder=images) for job in own]
        result, sharing, _ = run_arm(name, jobs, on_arm(name, jobs))
        return msgspec.structs.replace(result, loader=f"{name} ({sharing})")

    shared, source = on_a_feed(SHARED, None), None
    if with_source:
        with tempfile.TemporaryDirectory(prefix="penstock-demo-") as links:
            folder.link(Path(links))
            source = on_a_feed(SOURCE, links)
    return Report(
        date=machine.date,
        machine=machine_of(machine, device),
        data=Data(
            name=folder.name,
            train_images=len(folder.train),
            mean_bytes=folder.mean_bytes(),
            crop_px=folder.crop_px,
            note=folder.note,
        ),
        epochs=epochs,
        separate=separate,
        shared=shared,
        shared_over_separate=ratios(shared, separate),
        source=source,
        source_over_shared=None if source is None else ratios(source, shared),
    )


def _read_once(folder: ImageFolder) -> None:
    """Read every training file, so that all arms find as many in the page cache as fit."""
    for path, _ in folder.train:
        with open(path, "rb") as file:
            while file.read(1 << 20):
                pass
