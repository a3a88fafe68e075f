"""Runs both arms, one after the other, on one set of images."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from penstock.demo.arm import OnEvent, run_arm
from penstock.demo.images import ImageFolder
from penstock.demo.job import Job, runs
from penstock.demo.results import Data, Report, machine_of, ratios
from penstock.measure.machine import describe

SEPARATE, SHARED = "a DataLoader each", "one Penstock feed"


def compare(
    folder: ImageFolder, trainers: int, epochs: int, on_arm: Callable[[str, list[Job]], OnEvent]
) -> Report:
    """Train equal models on one set of images in both arms.

    Both arms have equally many loader workers: one per core, and at least one per run.

    Args:
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
    feed = f"demo/{folder.name}-{os.getpid()}-{os.urandom(3).hex()}"
    shared_jobs = [msgspec.structs.replace(job, feed=feed, workers=workers_each * trainers) for job in own]
    shared, sharing, _ = run_arm(SHARED, shared_jobs, on_arm(SHARED, shared_jobs))
    shared = msgspec.structs.replace(shared, loader=f"{SHARED} ({sharing})")
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
    )


def _read_once(folder: ImageFolder) -> None:
    """Read every training file, so that both arms find as many in the page cache as fit."""
    for path, _ in folder.train:
        with open(path, "rb") as file:
            while file.read(1 << 20):
                pass
