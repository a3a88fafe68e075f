"""Rows as a table for a terminal, and as files."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from itertools import groupby
from string import ascii_lowercase

import msgspec
from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from penstock.basics.sizes import size_text
from penstock.io.advice.measurements import Measurement

WIDTH = 104
"""Least width of the table: narrower terminals wrap its lines, but figures are never cut."""

_HEADINGS = ("MB/s", "IOPS", "p50", "p99", "p99.9", "s/GiB", "µs/op", "cores")
_OF_GPUS = ("GPU threads", "SMs")


def as_json(rows: Sequence[Measurement]) -> bytes:
    """Encode rows as a list of objects."""
    return msgspec.json.format(msgspec.json.encode(list(rows)), indent=1) + b"\n"


def as_csv(rows: Sequence[Measurement]) -> str:
    """Encode rows as lines under the names of their fields."""
    text = io.StringIO()
    writer = csv.DictWriter(text, Measurement.__struct_fields__, lineterminator="\n")
    writer.writeheader()
    writer.writerows(msgspec.structs.asdict(row) for row in rows)
    return text.getvalue()


def medians(rows: Sequence[Measurement]) -> list[Measurement]:
    """Return one row per case: each figure is the median of the repeats that were measured."""
    cases: dict[tuple[str | int, ...], list[Measurement]] = {}
    for row in rows:
        cases.setdefault((row.mech, row.bs_bytes, row.qd, row.threads, row.pattern, row.dest), []).append(row)
    return [_median(of_case) for of_case in cases.values()]


def _median(rows: Sequence[Measurement]) -> Measurement:
    measured = [row for row in rows if row.iops]
    if not measured:
        return rows[0]
    found: dict[str, float | None] = {}
    for field in (
        "iops",
        "mb_s",
        "p50_us",
        "p99_us",
        "p999_us",
        "cpu_us_per_op",
        "cpu_s_per_gib",
        "cores_busy",
        "sm_share",
    ):
        values = [value for row in measured if (value := getattr(row, field)) is not None]
        found[field] = statistics.median(values) if values else None
    return msgspec.structs.replace(measured[0], cold=all(row.cold for row in measured), **found)


def table(rows: Sequence[Measurement], title: str) -> Table:
    """Make a table of the repeats' medians, the fastest first within a block size, pattern and destination."""
    rows = sorted(
        medians(rows),
        key=lambda row: (row.bs_bytes, row.pattern, row.dest != "host", row.dest, -row.mb_s, row.mech),
    )
    gpu = any(row.gpu_threads is not None or row.sm_share is not None for row in rows)
    copies = any(row.dest != "host" for row in rows)
    headings = [*_HEADINGS, *(_OF_GPUS if gpu else ()), *(("copy to GPU",) if copies else ())]
    out = Table(title=title, box=SIMPLE, padding=(0, 1, 0, 0), title_justify="left", caption_justify="left")
    for name in ("mech", "path"):
        out.add_column(name, no_wrap=True)
    for name in ("qd", "thr.", *headings):
        out.add_column(name, justify="right", no_wrap=True)
    paths: dict[str, str] = {}
    notes: dict[str, str] = {}
    for (bs, pattern, dest), group in groupby(rows, key=lambda row: (row.bs_bytes, row.pattern, row.dest)):
        where = "" if dest == "host" else f", to {dest}"
        out.add_row(Text(f"{size_text(bs)} {pattern}{where}", "bold"))
        for row in group:
            figures = [*_figures(row), *(_of_gpus(row) if gpu else ()), *((_copy(row),) if copies else ())]
            marks = [paths.setdefault(row.path_taken, ascii_lowercase[len(paths) % 26])] if row.path_taken else []
            marks += [notes.setdefault(row.note, str(len(notes) + 1))] if row.note else []
            figures = figures if row.iops else ["–"] * len(figures)
            cells = [row.mech, " ".join(marks), str(row.qd), str(row.threads), *figures]
            out.add_row(*map(Text, cells), style="" if row.iops else "dim")
        out.add_section()
    lines = [
        "p50 to p99.9: µs from submission to completion. s/GiB, µs/op, cores: CPU time, user and kernel, of the "
        "process that reads: for each GiB, for each read, and over the time that passed."
    ]
    lines += [f"{mark}  {what}" for what, mark in (*paths.items(), *notes.items())]
    out.caption = Text("\n".join(lines))
    return out


def _figures(row: Measurement) -> list[str]:
    return [
        _short(row.mb_s),
        _short(row.iops),
        *("" if value is None else _short(value) for value in (row.p50_us, row.p99_us, row.p999_us)),
        _short(row.cpu_s_per_gib),
        _short(row.cpu_us_per_op),
        f"{row.cores_busy:.2f}",
    ]


def _of_gpus(row: Measurement) -> list[str]:
    return [
        "" if row.gpu_threads is None else f"{row.gpu_threads:,}",
        "" if row.sm_share is None else f"{row.sm_share:.0%}",
    ]


def _copy(row: Measurement) -> str:
    if row.dest == "host":
        return ""
    if row.dest == "pinned":
        return "not made"
    return "included" if row.copy_included else "not needed"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
