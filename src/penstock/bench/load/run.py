"""Measures loaders of images or tables in turns, each in a process of its own, and shows which is the fastest."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import msgspec
from rich.console import Group
from rich.text import Text

from penstock.basics.results import Tell, results_table
from penstock.basics.terminal import printable
from penstock.bench.experiment import ArmFailed, Report
from penstock.bench.load import arms, tables
from penstock.bench.load.arms import Loads
from penstock.bench.measure.pool import MeasurementFailed, answer
from penstock.errors import BadSetting
from penstock.runs.machine import describe

_START_S = 120.0
_PROBE = "import sys\nfrom importlib.util import find_spec\nfor name in sys.argv[1:]: assert find_spec(name)"


class LoadKind(NamedTuple):
    """What is loaded, and the loaders of it."""

    script: str  # what runs one of the loaders
    loaders: dict[str, Loads]
    sample: str  # what a sample is called


IMAGES = LoadKind(arms.__file__, arms.ARMS, "image")
TABLES = LoadKind(tables.__file__, tables.ARMS, "row")


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
        return TABLES if tables.are_tables(self.folder) else IMAGES


class LoadFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of one loader."""

    samples_per_s: float
    cpu_ms_per_sample: float  # CPU time of the process and its workers
    first_batch_s: float  # time from its start to the first batch
    decoder: str = ""  # what it decodes with, and its version


LoadReport = Report[LoadSettings, LoadFigures]


def measure(settings: LoadSettings, wanted: Sequence[str] | None, peers: Sequence[str], tell: Tell) -> LoadReport:
    """Measure loaders in turns, Penstock's among them.

    Args:
        wanted: Loaders, by their names in ``arms.ARMS`` or ``tables.ARMS``; None for all.
        peers: Environments in which some of them are installed, as ``LOADER=PYTHON``.
    """
    kind = settings.kind
    pythons = dict(_peer(text, kind) for text in peers)
    wanted = [*kind.loaders] if wanted is None else wanted
    if unknown := [arm for arm in wanted if arm not in kind.loaders]:
        raise BadSetting(f"--loaders {unknown[0]}: choose of {', '.join(kind.loaders)}")
    if kind is IMAGES and not arms.images_in(settings.folder):
        raise BadSetting(f"{settings.folder}: no JPEGs (*.jpg, *.jpeg) in it or below, nor is it {tables.KNOWN}")
    if kind is TABLES and not tables.files_of(settings.folder):
        raise BadSetting(f"{settings.folder}: no such files")
    if kind is IMAGES and settings.columns:
        raise BadSetting(f"--columns {','.join(settings.columns)}: only tables have columns")
    report = LoadReport(benchmark="bench load", machine=describe(), settings=settings)

    def figures(arm: str, repeat: int) -> LoadFigures:
        python = pythons.get(arm, sys.executable)
        if repeat == 0:
            _check(kind.loaders[arm], python)
        return _figures(arm, settings, python)

    chosen = dict.fromkeys(["penstock", *wanted])
    report.measure({arm: partial(figures, arm) for arm in chosen}, range(settings.repeats), tell)
    if "penstock" in report.absent:
        raise BadSetting(f"Penstock's loader cannot run: {report.absent['penstock']}")
    return report


def _peer(text: str, kind: LoadKind) -> tuple[str, str]:
    arm, _, python = text.partition("=")
    if arm not in kind.loaders or not python:
        raise BadSetting(
            f"--peer {text}: give LOADER=PYTHON, where the loader is one of {', '.join(kind.loaders)}"
        )
    return arm, python


def _check(loads: Loads, python: str) -> None:
    """Raise ArmFailed if something that a loader needs is not installed."""
    try:
        answer([python, "-c", _PROBE, *loads.modules], limit_s=_START_S)
    except OSError as error:
        raise ArmFailed(f"{python}: {error.strerror}") from None
    except MeasurementFailed:
        raise ArmFailed(f"not installed ({', '.join(loads.modules)})") from None


def _figures(arm: str, settings: LoadSettings, python: str) -> LoadFigures:
    folder, size, batch_size, workers, seconds, _, columns = msgspec.structs.astuple(settings)
    with tempfile.TemporaryDirectory(prefix="penstock-") as scratch:
        how = folder, size, batch_size, workers, seconds, scratch, ",".join(columns)
        words = map(str, (settings.kind.script, arm, *how))
        try:
            text = answer([python, *words], limit_s=_START_S + 4 * seconds)
        except MeasurementFailed as error:
            raise ArmFailed(str(error)) from None
    return msgspec.convert(json.loads(text.splitlines()[-1]), LoadFigures)


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
            kind.loaders[arm].name,
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
    absent = [Text(f"{kind.loaders[arm].name}: {why}", "dim") for arm, why in report.absent.items()]
    return Group(Text(printable(about), "dim"), table, *absent)
