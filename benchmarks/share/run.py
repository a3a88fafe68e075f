"""The sharing benchmark: trainers on one feed against trainers with a loader each, in turn."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
from benchmarks.measure.pool import MeasuredProcess, MemberFailed, ProcessPool
from benchmarks.share import extras, jpeg, tensorsocket
from benchmarks.share.feeding import Feeding
from benchmarks.share.plan import Case, Settings, cases, feed_of
from benchmarks.share.result import Result, measure
from benchmarks.share.trainers import TrainerPool, start_feeder
from benchmarks.share.workload import Workload, jpegs, synthetic

from penstock.basics.packages import require
from penstock.basics.results import Tell
from penstock.errors import BadSetting, PenstockError
from penstock.runs.machine import Machine, describe


class Report(msgspec.Struct, kw_only=True):
    """All results of a run; with its claims it is saved as ``benchmarks/results/share-*.json``."""

    benchmark: str = "share"
    version: int = 1
    machine: Machine
    settings: Settings
    data: str = ""
    workloads: list[Workload]
    results: list[Result] = msgspec.field(name="cells", default_factory=list[Result])
    memory: list[extras.MemoryUse] = []
    crowd: extras.CrowdResult | None = None
    ring_copy: list[dict[str, Any]] = []
    imports: extras.ImportResult | None = None


def run(settings: Settings, folder: str | None, tell: Tell) -> Report:
    """Measure everything that the settings ask for, with JPEGs of a folder, or generated ones."""
    if settings.jpeg:
        require("the JPEG loader (--no-jpeg leaves it out)", "images,torch", "simplejpeg", "cv2")
    require("the benchmark", "torch", "torch")
    before = describe()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        data = ""
        workloads = [synthetic(size, settings.workers) for size in settings.blocks]
        if settings.jpeg:
            folder, data = _images(folder, scratch, settings)
            workloads.insert(0, jpegs(folder, settings.workers))
        report = Report(machine=before, settings=settings, data=data, workloads=workloads)
        _measure(report, scratch, tell)
        # The report does not name the folder of the images.
        report.workloads = [msgspec.structs.replace(workload, folder="") for workload in workloads]
        return report


def _images(folder: str | None, scratch: Path, settings: Settings) -> tuple[str, str]:
    """Return the folder of the images, made if need be, and what they are."""
    if folder is not None:
        if not Path(folder).is_dir():
            raise BadSetting(f"--data {folder}: no such directory. Leave it out to generate JPEGs")
        files = jpeg.files_in(folder)
        mean = sum(path.stat().st_size for path in files) / len(files)
        return folder, f"{len(files):,} JPEG files, {mean / 1e3:.0f} KB on average"
    count = 64 if settings.quick else 1000
    made = scratch / "images"
    made.mkdir()
    jpeg.generate(str(made), count)
    return str(made), f"{count:,} generated JPEG files"


def _measure(report: Report, scratch: Path, tell: Tell) -> None:
    settings = report.settings
    planned = [case for workload in report.workloads for case in cases(workload, settings)]
    in_all = len(planned) * settings.repeats
    with ProcessPool(scratch) as pool:
        try:
            tell(0, in_all, "starting")
            feeders = {
                workload.name: start_feeder(pool, Feeding(feed_of(workload), settings.window, workload))
                for workload in report.workloads
            }
            trainer_pool = TrainerPool(pool)
            for repeat in range(settings.repeats):
                for i, case in enumerate(planned):
                    tell(repeat * len(planned) + i, in_all, f"{case.workload.name}, {case.trainers} × {case.arm}")
                    report.results.append(_result(case, repeat, trainer_pool, feeders, settings))
            pool.dismiss(feeders.values())
            trainer_pool.dismiss()
            _extras(report, pool, lambda what: tell(in_all, in_all, what))
            if settings.peers:
                tell(in_all, in_all, "TensorSocket")
                report.results.extend(tensorsocket.results(pool, report.workloads, settings))
        except MemberFailed as error:
            raise PenstockError(f"{error}\n{pool.errors()}".strip()) from error


def _result(
    case: Case, repeat: int, trainer_pool: TrainerPool, feeders: dict[str, MeasuredProcess], settings: Settings
) -> Result:
    result = Result(case.workload.name, case.arm, case.trainers, repeat, finished=False)
    members = trainer_pool.members(case.kind, case.trainers)
    fed_by = [feeders[case.workload.name].pid] if case.fed else []
    return measure(result, members, case.order, settings.interval_of(case.workload), fed_by)


def _extras(report: Report, pool: ProcessPool, tell: Callable[[str], None]) -> None:
    settings = report.settings
    largest = max((w for w in report.workloads if w.kind == "blocks"), key=lambda w: w.block_bytes, default=None)
    tell("import penstock")
    report.imports = extras.import_time(3 if settings.quick else 7)
    if largest is not None:
        tell("copy into the ring")
        report.ring_copy = extras.ring_copy(10_000_000, settings.repeats)  # whatever else is measured
        for trainers in settings.trainers:
            for borrow in (False, True):
                tell(f"memory, {trainers} trainers")
                used = extras.memory_use(
                    pool, largest, trainers, borrow=borrow, seconds=min(1.0, settings.seconds)
                )
                report.memory.append(used)
    tell("many trainers at once")
    count = 4 if settings.quick else extras.CROWD
    report.crowd = extras.crowd(pool, count, extras.CROWD_SAMPLES)
