"""Measures loaders of images or tables in turns, each in a process of its own, and shows which is the fastest."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Group
from rich.text import Text

from penstock.basics.packages import require
from penstock.basics.results import Tell, results_table
from penstock.basics.terminal import printable
from penstock.bench import load_images, load_tables
from penstock.bench.experiment import ArmFailed, Report
from penstock.bench.load_images import DECODER, LoadJob, Loads
from penstock.bench.loop import ONE_THREAD, failure, plan_of
from penstock.errors import BadSetting
from penstock.runs.machine import describe
from penstock.runs.store import Store
from penstock.runs.trial import WARM_BATCHES, Bounds, LoopRates, MeasuredTrial, TrialRunner

_START_S = 120.0


class LoadKind(NamedTuple):
    """What is loaded, and the loaders of it."""

    script: str  # the module that runs one of the loaders
    loaders: dict[str, Loads]
    sample: str  # what a sample is called
    extra: str  # what brings Penstock's own loader


IMAGES = LoadKind(load_images.__name__, load_images.ARMS, "image", "images")
TABLES = LoadKind(load_tables.__name__, load_tables.ARMS, "row", "columns")


class LoadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured: loaders of a folder of images, or of tables, of which all columns if none is named."""

    folder: str
    size: int
    batch_size: int
    workers: int
    seconds: float
    repeats: int
    columns: tuple[str, ...] = ()

    @property
    def kind(self) -> LoadKind:
        return TABLES if load_tables.are_tables(self.folder) else IMAGES


class LoadFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of one loader."""

    samples_per_s: float
    cpu_ms_per_sample: float  # CPU time of the process and its workers
    first_batch_s: float  # time from the start of its process to the first batch
    decoder: str = ""  # what it decodes with, and its version


LoadReport = Report[LoadSettings, LoadFigures]


def measure(
    settings: LoadSettings,
    wanted: Sequence[str] | None,  # loaders, by their names in ``ARMS``; None for all
    tell: Tell,
    peers: Mapping[str, Callable[[int], LoadFigures]] = {},  # what measures others once, by name
) -> LoadReport:
    """Measure loaders in turns, Penstock's among them."""
    kind = settings.kind
    wanted = [*kind.loaders] if wanted is None else wanted
    if unknown := [arm for arm in wanted if arm not in kind.loaders]:
        raise BadSetting(f"--loaders {unknown[0]}: choose of {', '.join(kind.loaders)}")
    if kind is IMAGES and not load_images.images_in(settings.folder):
        raise BadSetting(
            f"{settings.folder}: no JPEGs (*.jpg, *.jpeg) in it or below, nor is it {load_tables.KNOWN}"
        )
    if kind is TABLES and not load_tables.files_of(settings.folder):
        raise BadSetting(f"{settings.folder}: no such files")
    if kind is IMAGES and settings.columns:
        raise BadSetting(f"--columns {','.join(settings.columns)}: only tables have columns")
    require("penstock bench load", kind.extra, *kind.loaders["penstock"].modules)
    report = LoadReport(benchmark="bench load", machine=describe(), settings=settings)
    own = {arm: partial(_figures, arm, settings) for arm in dict.fromkeys(["penstock", *wanted])}
    report.measure({**own, **peers}, range(settings.repeats), tell)
    if "penstock" in report.absent:
        raise BadSetting(f"Penstock's loader cannot run: {report.absent['penstock']}")
    return report


def _figures(arm: str, settings: LoadSettings, repeat: int) -> LoadFigures:
    """Measure one loader once, in a process of its own."""
    kind = settings.kind
    modules = kind.loaders[arm].modules
    if repeat == 0 and not all(map(_is_there, modules)):
        raise ArmFailed(f"not installed ({', '.join(modules)})")
    with tempfile.TemporaryDirectory(prefix="penstock-") as scratch, Store.open(Path(scratch, "store")) as store:
        job = LoadJob(
            loader=arm,
            folder=settings.folder,
            size=settings.size,
            batch_size=settings.batch_size,
            workers=settings.workers,
            columns=list(settings.columns) or None,
            scratch=scratch,
        )
        plan = plan_of(kind.script, job, arm)
        runner = TrialRunner(store, [plan], group="load", variables={**ONE_THREAD, "TMPDIR": scratch})
        bounds = Bounds(_START_S, least_s=settings.seconds, most_s=settings.seconds)
        trial = MeasuredTrial(runner, bounds, warm=max(WARM_BATCHES, 2 * settings.workers))
        ended = trial.run()
        if error := failure(store, ended, arm):
            raise ArmFailed(str(error))
        rates = LoopRates.of(store.series(ended[0].id), trial.warm_batches, trial.since_s)
        if rates is None:
            raise ArmFailed(f"too few batches in {settings.seconds:g} s: make them smaller, or --seconds larger")
        return LoadFigures(
            samples_per_s=rates.samples_per_s,
            cpu_ms_per_sample=1000 * runner.cpu_s / (rates.samples_per_s * runner.seconds),
            first_batch_s=trial.first_s,
            decoder=(store.folder_of(ended[0].id) / "files" / DECODER).read_text(),
        )


def _is_there(module: str) -> bool:
    with suppress(ModuleNotFoundError):
        return find_spec(module) is not None
    return False


def shown(report: LoadReport) -> Group:
    """Show the loaders, fastest first, and what could not be measured."""
    settings, kind = report.settings, report.settings.kind
    cpu, times = ("CPU-ms\nan image", 1) if kind is IMAGES else ("CPU-µs\na row", 1000)
    headings = "loader", "by", f"{kind.sample}s/s", "Penstock,\ntimes that", cpu, "first\nbatch, s"
    table = results_table(*headings)
    table.columns[1].justify, table.columns[1].no_wrap = "left", False
    speeds = {arm: report.spread(arm, lambda one: one.samples_per_s).median for arm in report.arms}
    for arm in sorted(speeds, key=lambda each: speeds[each], reverse=True):
        table.add_row(
            _name(kind, arm),
            printable(next(reversed(report.of(arm).values())).decoder),
            f"{speeds[arm]:,.0f}",
            "" if arm == "penstock" else str(report.ratio("penstock", arm, lambda one: one.samples_per_s)),
            f"{times * report.spread(arm, lambda one: one.cpu_ms_per_sample).median:.2f}",
            f"{report.spread(arm, lambda one: one.first_batch_s).median:.1f}",
            style="green" if arm == "penstock" else "",
        )
    rows = f"Columns {', '.join(settings.columns)}" if settings.columns else "Rows"
    what = f"Random crops of {settings.size} px" if kind is IMAGES else rows
    about = (
        f"{what} from {settings.folder}, {settings.workers} worker{'s' * (settings.workers != 1)}, batches of "
        f"{settings.batch_size}, {settings.repeats} times {settings.seconds:g} s in turns; one process takes them"
    )
    absent = [Text(f"{_name(kind, arm)}: {why}", "dim") for arm, why in report.absent.items()]
    return Group(Text(printable(about), "dim"), table, *absent)


def _name(kind: LoadKind, arm: str) -> str:
    return kind.loaders[arm].name if arm in kind.loaders else arm
