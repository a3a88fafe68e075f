"""Measures loaders of images in turns, each in a process of its own, and shows which is the fastest."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial

import msgspec
from rich.console import Group
from rich.text import Text

from penstock.basics.terminal import printable
from penstock.bench.experiment import ArmFailed, Report, Tell, results_table
from penstock.bench.load import arms
from penstock.bench.load.arms import ARMS
from penstock.bench.measure.pool import MeasurementFailed, answer
from penstock.errors import BadSetting
from penstock.runs.machine import describe

_START_S = 120.0
_PROBE = "import sys\nfrom importlib.util import find_spec\nfor name in sys.argv[1:]: assert find_spec(name)"


class LoadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured."""

    folder: str
    size: int
    batch_size: int
    workers: int
    seconds: float
    repeats: int


class LoadFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of one loader.

    Attributes:
        cpu_ms_per_image: CPU time of the process and its workers.
        first_batch_s: Time from its start to the first batch.
        decoder: What it decodes with, and its version.
    """

    images_per_s: float
    cpu_ms_per_image: float
    first_batch_s: float
    decoder: str = ""


LoadReport = Report[LoadSettings, LoadFigures]


def measure(settings: LoadSettings, wanted: Sequence[str], peers: Sequence[str], tell: Tell) -> LoadReport:
    """Measure loaders in turns, Penstock's among them.

    Args:
        wanted: Loaders, by their names in ``ARMS``.
        peers: Environments in which some of them are installed, as ``LOADER=PYTHON``.

    Raises:
        BadSetting: an argument makes no sense, the folder has no JPEG, or Penstock's own loader cannot run.
    """
    pythons = dict(map(_peer, peers))
    if unknown := [arm for arm in wanted if arm not in ARMS]:
        raise BadSetting(f"--loaders {unknown[0]}: choose of {', '.join(ARMS)}")
    if not arms.images_in(settings.folder):
        raise BadSetting(f"{settings.folder}: no JPEGs (*.jpg, *.jpeg) in it or below")
    report = LoadReport(benchmark="bench load", machine=describe(), settings=settings)

    def figures(arm: str, repeat: int) -> LoadFigures:
        python = pythons.get(arm, sys.executable)
        if repeat == 0:
            _check(arm, python)
        return _figures(arm, settings, python)

    chosen = dict.fromkeys(["penstock", *wanted])
    report.measure({arm: partial(figures, arm) for arm in chosen}, range(settings.repeats), tell)
    if "penstock" in report.absent:
        raise BadSetting(f"Penstock's loader cannot run: {report.absent['penstock']}")
    return report


def _peer(text: str) -> tuple[str, str]:
    arm, _, python = text.partition("=")
    if arm not in ARMS or not python:
        raise BadSetting(f"--peer {text}: give LOADER=PYTHON, where the loader is one of {', '.join(ARMS)}")
    return arm, python


def _check(arm: str, python: str) -> None:
    """Raise ArmFailed if something that a loader needs is not installed."""
    modules = ARMS[arm].modules
    try:
        answer([python, "-c", _PROBE, *modules], limit_s=_START_S)
    except OSError as error:
        raise ArmFailed(f"{python}: {error.strerror}") from None
    except MeasurementFailed:
        raise ArmFailed(f"not installed ({', '.join(modules)})") from None


def _figures(arm: str, settings: LoadSettings, python: str) -> LoadFigures:
    folder, size, batch_size, workers, seconds, _ = msgspec.structs.astuple(settings)
    words = map(str, (arms.__file__, arm, folder, size, batch_size, workers, seconds))
    try:
        text = answer([python, *words], limit_s=_START_S + 4 * seconds)
    except MeasurementFailed as error:
        raise ArmFailed(str(error)) from None
    return msgspec.convert(json.loads(text.splitlines()[-1]), LoadFigures)


def shown(report: LoadReport) -> Group:
    """Show the loaders, fastest first, and what could not be measured."""
    settings = report.settings
    headings = "loader", "decoder", "images/s", "Penstock, times that", "CPU-ms an image", "first batch, s"
    table = results_table(*headings)
    table.columns[1].justify, table.columns[1].no_wrap = "left", False
    speeds = {arm: report.spread(arm, lambda one: one.images_per_s).median for arm in report.arms}
    for arm in sorted(speeds, key=lambda each: speeds[each], reverse=True):
        table.add_row(
            ARMS[arm].name,
            printable(next(reversed(report.of(arm).values())).decoder),
            f"{speeds[arm]:,.0f}",
            "" if arm == "penstock" else str(report.ratio("penstock", arm, lambda one: one.images_per_s)),
            f"{report.spread(arm, lambda one: one.cpu_ms_per_image).median:.2f}",
            f"{report.spread(arm, lambda one: one.first_batch_s).median:.1f}",
            style="green" if arm == "penstock" else "",
        )
    about = (
        f"Random crops of {settings.size} px from {settings.folder}, {settings.workers} workers, batches of "
        f"{settings.batch_size}, {settings.repeats} times {settings.seconds:g} s in turns; one process takes them"
    )
    absent = [Text(f"{ARMS[arm].name}: {why}", "dim") for arm, why in report.absent.items()]
    return Group(Text(printable(about), "dim"), table, *absent)
