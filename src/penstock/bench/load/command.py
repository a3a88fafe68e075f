"""``penstock bench load``: measures, shows and saves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import msgspec
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from penstock.basics.terminal import printable
from penstock.bench.load.arms import ARMS
from penstock.bench.load.run import Report, Settings, measure
from penstock.bench.saving import check_writable, saved
from penstock.errors import BadSetting
from penstock.runs.machine import describe


def load_command(
    console: Console, settings: Settings, wanted: Sequence[str], peers: Sequence[str], path: Path | None
) -> None:
    """Measure, show a table, and save the report if asked.

    Raises:
        BadSetting: an argument makes no sense, or the folder has no images.
    """
    pythons = dict(_peer(peer) for peer in peers)
    if unknown := [arm for arm in wanted if arm not in ARMS]:
        raise BadSetting(f"--loaders {unknown[0]}: choose of {', '.join(ARMS)}")
    if path is not None:
        check_writable(path)
    with console.status("Measuring") as status:
        chosen = list(dict.fromkeys(["penstock", *wanted]))
        report = measure(settings, chosen, pythons, describe(), lambda what: status.update(printable(what)))
    console.print(shown(report), soft_wrap=True)
    if path is not None:
        whole = msgspec.json.format(msgspec.json.encode(report)) + b"\n"
        saved(path, lambda: path.write_bytes(whole), console)


def shown(report: Report) -> Group:
    """Show the loaders, fastest first, and what could not be measured."""
    settings = report.settings
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("loader", no_wrap=True)
    table.add_column("decoder")
    for heading in ("images/s", "Penstock against it", "CPU-ms an image", "first batch, s"):
        table.add_column(heading, justify="right")
    for arm in sorted(report.measured, key=report.images_per_s, reverse=True):
        runs = report.measured[arm]
        ratios = [1 / ratio for ratio in report.ratios(arm)]
        against = "" if arm == "penstock" else f"{median(ratios):.2f} x ({min(ratios):.2f} to {max(ratios):.2f})"
        table.add_row(
            ARMS[arm].name,
            printable(runs[-1].decoder),
            f"{report.images_per_s(arm):,.0f}",
            against,
            f"{median(run.cpu_ms_per_image for run in runs):.2f}",
            f"{median(run.first_batch_s for run in runs):.1f}",
            style="green" if arm == "penstock" else "",
        )
    about = (
        f"Random crops of {settings.size} px from {settings.folder}, {settings.workers} workers, batches of "
        f"{settings.batch_size}, {settings.repeats} times {settings.seconds:g} s in turns; one process takes them"
    )
    absent = [Text(f"{ARMS[arm].name}: {why}", "dim") for arm, why in report.absent.items()]
    return Group(Text(printable(about), "dim"), table, *absent)


def _peer(text: str) -> tuple[str, str]:
    arm, _, python = text.partition("=")
    if arm not in ARMS or not python:
        raise BadSetting(f"--peer {text}: give LOADER=PYTHON, where the loader is one of {', '.join(ARMS)}")
    return arm, python
