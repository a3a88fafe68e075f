"""A report as tables for a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.share.claims import Claim
from benchmarks.share.result import Result
from benchmarks.share.run import Report
from rich.console import Group
from rich.table import Table
from rich.text import Text

from penstock.basics.results import short
from penstock.basics.terminal import printable

ARMS = {
    "alone": "DataLoader alone",
    "separate": "separate DataLoaders",
    "penstock": "Penstock",
    "borrow": "Penstock, borrow",
    "tensorsocket": "TensorSocket 0.0.5",
    "copy": "plain copies only",
}

_LEGEND = """each, together: {} a second. feeder, trainers: CPU-ms per 1,000 samples.
µs: publish to receipt. MB: memory of all processes (PSS)."""


def tables(report: Report, rows: Sequence[Claim]) -> Group:
    """Make a table of figures for each workload, and one of the claims."""
    return Group(*(_figures(report, workload.name) for workload in report.workloads), claims_table(rows))


def median(results: Sequence[Result], workload: str, arm: str, trainers: int, field: str) -> float | None:
    """Return the median of a field over the finished repeats, or of its mean if it has a value per trainer."""
    values: list[float] = []
    for result in results:
        if result.finished and (result.workload, result.arm, result.trainers) == (workload, arm, trainers):
            value = getattr(result, field)
            values.append(statistics.fmean(value) if isinstance(value, tuple) else value)  # pyright: ignore
    return statistics.median(values) if values else None


def _figures(report: Report, workload: str) -> Group:
    jpeg = workload == "JPEG"
    field = "samples_per_s" if jpeg else "batches_per_s"
    title = f"{workload}, {printable(report.data)}" if jpeg else f"{workload} blocks from memory"
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("fed by", no_wrap=True)
    for name in ("each", "together", "feeder", "trainers", "µs", "MB"):
        table.add_column(name, justify="right", no_wrap=True)
    notes: list[str] = []
    for trainers in report.settings.trainers:
        table.add_row(Text(f"{trainers} trainer{'s' * (trainers != 1)}", "bold"))
        for arm, words in ARMS.items():
            results = [c for c in report.results if (c.workload, c.arm, c.trainers) == (workload, arm, trainers)]
            if not results:
                continue
            each = median(results, workload, arm, trainers, field)
            if each is None:
                table.add_row(words, "–")
                notes.append(f"{trainers} × {words}: {printable(results[0].note)}")
                continue
            numbers = [
                median(results, workload, arm, trainers, f) or 0 for f in ("feeder_cpu_s", "trainers_cpu_s")
            ]
            latencies = [c.latency_us[0] for c in results if c.latency_us is not None]
            table.add_row(
                words,
                short(each),
                short(each * trainers),
                *(f"{1e3 * number:,.1f}" for number in numbers),
                f"{statistics.median(latencies):,.0f}" if latencies else "",
                f"{(median(results, workload, arm, trainers, 'pss_bytes') or 0) / 1e6:,.0f}",
            )
    legend = _LEGEND.format("samples" if jpeg else "blocks")
    return Group(Text(title, "bold"), table, Text("\n".join([legend, *notes]), "dim"), Text())


def claims_table(rows: Sequence[Claim]) -> Group:
    """Make a table of the claims, each above its measurement and target."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for row in rows:
        sign = "≥" if row.at_least else "≤"
        measured = "not measured"
        if row.measured is not None and row.spread is not None:
            measured = f"{short(row.measured)} ({short(row.spread[0])} – {short(row.spread[1])})"
        met, style = {True: ("yes", "green"), False: ("no", "red"), None: ("–", "dim")}[row.met]
        note = f"; {row.note}" if row.met is None and row.note else ""
        target = f"{sign} {short(row.target)} {row.unit}".strip()
        table.add_row(Text(met, style), Text.assemble(row.claim, (f"\n{measured}, target {target}{note}", "dim")))
    heading = Text.assemble(("Claims", "bold"), " (K trainers): whether met; median (least – most)")
    return Group(heading, table)
