"""Shows rows of ``penstock bench io`` as a table and a picture, and saves them in files."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import msgspec
from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from penstock.basics.sizes import size_text
from penstock.basics.terminal import console, printable
from penstock.bench.experiment import as_json, check_files, progress, save, short
from penstock.bench.io.plan import IoSettings
from penstock.bench.io.run import IoReport, run
from penstock.bench.io.target import BUFFERED
from penstock.errors import ReaderUnavailable
from penstock.io.advice.measurements import Measurement

WIDTH = 104
"""Least width of the table: narrower terminals wrap its lines, but figures are never cut."""

_LOOKS = {
    "posix": ("#616e7c", "s"),
    "direct": ("#3fb8af", "D"),
    "uring": ("#0b7a75", "o"),
    "gds": ("#e09f3e", "P"),
    "gpu": ("#7a306c", "*"),
    "object": ("#0b3c49", "h"),
}
"""Colour and mark of each mechanism in pictures."""
_OTHERS = [*zip(("#d1495b", "#9b2335", "#e8998d", "#c2788a", "#8a5a83", "#b08968"), "Xv^<>d", strict=True)]


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
    found: dict[str, float] = {}
    for field in Measurement.__struct_fields__:
        if values := [value for row in measured if isinstance(value := getattr(row, field), float)]:
            found[field] = statistics.median(values)
    return msgspec.structs.replace(measured[0], cold=all(row.cold for row in measured), **found)


def _if_known(value: float | None, text: Callable[[float], str] = short) -> str:
    return "" if value is None else text(value)


def _copy(row: Measurement) -> str:
    if row.dest == "host":
        return ""
    if row.dest == "pinned":
        return "not made"
    return "included" if row.copy_included else "not needed"


_Column = Callable[[Measurement], str]
_COLUMNS: dict[str, _Column] = {
    "MB/s": lambda row: short(row.mb_s),
    "IOPS": lambda row: short(row.iops),
    "p50": lambda row: _if_known(row.p50_us),
    "p99": lambda row: _if_known(row.p99_us),
    "p99.9": lambda row: _if_known(row.p999_us),
    "s/GiB": lambda row: short(row.cpu_s_per_gib),
    "µs/op": lambda row: short(row.cpu_us_per_op),
    "cores": lambda row: f"{row.cores_busy:.2f}",
}
_OF_GPUS: dict[str, _Column] = {
    "GPU threads": lambda row: _if_known(row.gpu_threads, "{:,}".format),
    "SMs": lambda row: _if_known(row.sm_share, "{:.0%}".format),
}


def table(rows: Sequence[Measurement], title: str) -> Table:
    """Make a table of the repeats' medians, the fastest first within a block size, pattern and destination."""
    rows = sorted(
        medians(rows),
        key=lambda row: (row.bs_bytes, row.pattern, row.dest != "host", row.dest, -row.mb_s, row.mech),
    )
    columns = dict(_COLUMNS)
    if any(row.gpu_threads is not None or row.sm_share is not None for row in rows):
        columns |= _OF_GPUS
    if any(row.dest != "host" for row in rows):
        columns["copy to GPU"] = _copy
    out = Table(title=title, box=SIMPLE, padding=(0, 1, 0, 0), title_justify="left", caption_justify="left")
    for name in ("mech", "path", "qd", "thr.", *columns):
        out.add_column(name, justify="left" if name in ("mech", "path") else "right", no_wrap=True)
    paths: dict[str, str] = {}
    notes: dict[str, str] = {}
    for (bs, pattern, dest), group in groupby(rows, key=lambda row: (row.bs_bytes, row.pattern, row.dest)):
        where = "" if dest == "host" else f", to {dest}"
        out.add_row(Text(f"{size_text(bs)} {pattern}{where}", "bold"))
        for row in group:
            marks = [paths.setdefault(row.path_taken, ascii_lowercase[len(paths) % 26])] if row.path_taken else []
            marks += [notes.setdefault(row.note, str(len(notes) + 1))] if row.note else []
            figures = [column(row) if row.iops else "–" for column in columns.values()]
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


def bench_io(settings: IoSettings, path: str, json: Path | None, csv: Path | None, plot: Path | None) -> IoReport:
    """Measure, show the table, and save files."""
    check_files(json, csv, plot=plot)
    shown = console(width=max(WIDTH, console().width))
    with progress(shown) as tell:
        report = run(settings, path, tell)
    measured = [row for row in report.rows if row.iops]
    if measured:
        repeats = f", medians of {settings.repeats}" if settings.repeats > 1 else ""
        shown.print(table(report.rows, f"Reads of {printable(path)}{', cold' if settings.cold else ''}{repeats}"))
        for remark in report.remarks:
            shown.print(Text.assemble(("!", "yellow"), f" {printable(remark)}"), soft_wrap=True)
    save(json, lambda file: file.write_bytes(as_json(report.rows)), shown)
    save(csv, lambda file: file.write_text(as_csv(report.rows)), shown)
    if not measured:
        why = dict.fromkeys(f"{row.mech}: {row.note}" for row in report.rows) or report.remarks
        raise ReaderUnavailable(f"nothing could be measured. {'; '.join(why)}")
    save(plot, lambda file: picture(measured).savefig(file), shown)
    return report


def picture(rows: Sequence[Measurement]) -> Any:
    """Draw a panel per size, pattern and destination; points that may come from the page cache are hollow."""
    from penstock.bench.picture import Curve, Mark, Panel, series_picture

    rows = sorted(medians(rows), key=_place)
    known = [mech for mech in _LOOKS if any(row.mech == mech for row in rows)]
    others = sorted({row.mech for row in rows} - {*known})
    looks = _LOOKS | {mech: _OTHERS[i % len(_OTHERS)] for i, mech in enumerate(others)}

    def from_the_cache(row: Measurement) -> bool:
        return row.mech in BUFFERED and not row.cold

    panels: list[Panel] = []
    for (_, dest, pattern, bs_bytes), group in groupby(rows, key=_place):
        here = list(group)
        series: list[Curve] = []
        for mech in [*known, *others]:
            of_mech = sorted((row for row in here if row.mech == mech), key=lambda row: (row.threads, row.qd))
            points = [Mark(row.cpu_s_per_gib, row.mb_s, str(row.qd), from_the_cache(row)) for row in of_mech]
            color, marker = looks[mech]
            series += [Curve(mech, color, points, marker, "--" if ":" in mech else "-")] * bool(points)
        to = "" if dest == "host" else f", to {dest}"
        title = f"{size_text(bs_bytes)}, {pattern}{to}"
        panels.append(Panel(title, series, "CPU-seconds per GiB", "MB/s", log=True))
    machine = rows[0].machine.partition(", penstock")[0]
    cold = "cold; " if all(row.cold for row in rows) else ""
    about = f"{machine}; {cold}{rows[0].date[:10]}\nup: more throughput; left: less CPU; numbers: reads under way"
    note = "hollow: buffered and not cold, so that bytes may have come from the page cache, not from storage"
    cached = any(map(from_the_cache, rows))
    return series_picture("What reading costs", about, panels, columns=3, note=note if cached else "")


def _place(row: Measurement) -> tuple[bool, str, str, int]:
    """Return the key by which rows are grouped into panels and sorted."""
    return row.dest != "host", row.dest, row.pattern, row.bs_bytes
