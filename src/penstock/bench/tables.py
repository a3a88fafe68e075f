"""A report as tables for a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.console import Group
from rich.table import Table

from penstock.bench.cell import Cell
from penstock.bench.claims import Claim
from penstock.bench.share import Report

ARMS = {
    "alone": "DataLoader alone",
    "separate": "separate DataLoaders",
    "penstock": "Penstock",
    "borrow": "Penstock, borrow",
    "tensorsocket": "TensorSocket 0.0.5",
    "copy": "plain copies only",
}


def tables(report: Report, rows: Sequence[Claim]) -> Group:
    """One table of figures for each workload, and one of the claims."""
    return Group(*(_figures(report, workload.name) for workload in report.workloads), claims_table(rows))


def median(cells: Sequence[Cell], workload: str, arm: str, trainers: int, field: str) -> float | None:
    """Of a field or property over the finished repeats; of its mean, where it has a value for each trainer."""
    values: list[float] = []
    for cell in cells:
        if cell.finished and (cell.workload, cell.arm, cell.trainers) == (workload, arm, trainers):
            value = getattr(cell, field)
            values.append(statistics.fmean(value) if isinstance(value, tuple) else value)  # pyright: ignore
    return statistics.median(values) if values else None


def _figures(report: Report, workload: str) -> Table:
    unit = "samples" if workload == "JPEG" else "blocks"
    field = "samples_per_s" if workload == "JPEG" else "batches_per_s"
    title = f"{workload}, {report.data}" if workload == "JPEG" else f"{workload} blocks from memory"
    caption = f"{unit} a second; CPU-milliseconds per 1,000 samples delivered; publish to receipt; PSS of all"
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.add_column("K", justify="right")
    table.add_column("fed by")
    for name in ("each", "together", "feeder", "trainers", "µs", "MB"):
        table.add_column(name, justify="right", no_wrap=True)
    notes: list[str] = []
    for trainers in report.settings.trainers:
        for arm, words in ARMS.items():
            cells = [c for c in report.cells if (c.workload, c.arm, c.trainers) == (workload, arm, trainers)]
            if not cells:
                continue
            each = median(cells, workload, arm, trainers, field)
            if each is None:
                table.add_row(str(trainers), words)
                notes.append(f"{trainers} × {words}: {cells[0].note}")
                continue
            numbers = [median(cells, workload, arm, trainers, f) or 0 for f in ("feeder_cpu_s", "trainers_cpu_s")]
            latencies = [c.latency_us[0] for c in cells if c.latency_us is not None]
            table.add_row(
                str(trainers),
                words,
                short(each),
                short(each * trainers),
                *(f"{1e3 * number:,.1f}" for number in numbers),
                f"{statistics.median(latencies):,.0f}" if latencies else "",
                f"{(median(cells, workload, arm, trainers, 'pss_bytes') or 0) / 1e6:,.0f}",
            )
        table.add_section()
    table.caption = "\n".join([caption, *notes])
    return table


def claims_table(rows: Sequence[Claim]) -> Table:
    """Claims, each beside its target."""
    table = Table(title="Claims", caption="median (least – most)", title_justify="left", caption_justify="left")
    table.add_column("claim")
    table.add_column("target", justify="right", no_wrap=True)
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("met")
    for row in rows:
        sign = "≥" if row.at_least else "≤"
        measured = ""
        if row.measured is not None and row.spread is not None:
            measured = f"{short(row.measured)} ({short(row.spread[0])} – {short(row.spread[1])})"
        met = {True: "[green]yes[/]", False: "[red]no[/]", None: row.note}[row.met]
        table.add_row(row.claim, f"{sign} {short(row.target)} {row.unit}".strip(), measured, met)
    return table


def short(value: float) -> str:
    """Three digits, or a whole number."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
