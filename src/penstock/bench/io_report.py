"""Shows rows of ``penstock bench io`` as a table and a picture, and saves them in files."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import msgspec
from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from penstock.basics.results import as_json, check_files, progress, save, short
from penstock.basics.sizes import size_text
from penstock.basics.terminal import console, printable
from penstock.bench.io import run
from penstock.bench.io_plan import IoSettings
from penstock.errors import ReaderUnavailable
from penstock.io.measurements import Measurement

WIDTH = 104
"""Least width of the table: narrower terminals wrap its lines, but figures are never cut."""
LOOKS = {
    "posix": ("#616e7c", "s"),
    "direct": ("#3fb8af", "D"),
    "uring": ("#0b7a75", "o"),
    "gds": ("#e09f3e", "P"),
    "gpu": ("#7a306c", "*"),
    "object": ("#0b3c49", "h"),
}
"""Colour and mark of each mechanism in pictures."""


def bench_io(settings: IoSettings, path: str, json: Path | None, plot: Path | None) -> None:
    """Measure, show the table, and save files."""
    check_files(json, plot=plot)
    shown = console(width=max(WIDTH, console().width))
    with progress(shown) as tell:
        rows = run(settings, path, tell)
    measured = [row for row in rows if row.iops]
    if measured:
        repeats = f", medians of {settings.repeats}" if settings.repeats > 1 else ""
        shown.print(table(rows, f"Reads of {printable(path)}{', cold' if settings.cold else ''}{repeats}"))
    save(json, lambda file: file.write_bytes(as_json(rows)), shown)
    if not measured:
        why = dict.fromkeys(f"{row.mech}: {row.note}" for row in rows)
        raise ReaderUnavailable(f"nothing could be measured. {'; '.join(why)}")
    save(plot, lambda file: picture(measured).savefig(file), shown)


def medians(rows: Sequence[Measurement]) -> list[Measurement]:
    """Return one row per case: each figure is the median of the repeats that were measured."""
    cases: dict[str, list[Measurement]] = {}
    for row in rows:
        cases.setdefault(str(row), []).append(row)
    return [_median([row for row in same if row.iops] or same[:1]) for same in cases.values()]


def _median(rows: Sequence[Measurement]) -> Measurement:
    found: dict[str, float] = {}
    for field in ("iops", "mb_s", "cpu_us_per_op", "cpu_s_per_gib", "sm_share"):
        if values := [value for row in rows if (value := getattr(row, field)) is not None]:
            found[field] = statistics.median(values)
    return msgspec.structs.replace(rows[0], cold=all(row.cold for row in rows), **found)


def table(rows: Sequence[Measurement], title: str) -> Table:
    """Make a table of the repeats' medians, the fastest first within a block size, pattern and destination."""
    rows = sorted(medians(rows), key=lambda row: (_place(row), -row.mb_s, row.mech))
    of_gpus = any(row.sm_share is not None for row in rows)
    headings = ["MB/s", "IOPS", "CPU s/GiB", "µs/read", "cores", *(["SMs"] * of_gpus)]
    out = Table(title=title, box=SIMPLE, padding=(0, 1, 0, 0), title_justify="left", caption_justify="left")
    for name in ("mech", "notes", "depth", "threads", *headings):
        out.add_column(name, justify="left" if name in ("mech", "notes") else "right", no_wrap=True)
    marks: dict[str, str] = {}
    for place, group in groupby(rows, key=_place):
        out.add_row(Text(_title(place), "bold"))
        for row in group:
            texts = filter(None, (row.path_taken, row.note))
            notes = [marks.setdefault(text, ascii_lowercase[len(marks) % 26]) for text in texts]
            figures = [*map(short, (row.mb_s, row.iops, row.cpu_s_per_gib, row.cpu_us_per_op))]
            figures.append(f"{row.cpu_us_per_op * row.iops / 1e6:.2f}")
            if of_gpus:
                figures.append("" if row.sm_share is None else f"{row.sm_share:.0%}")
            shown = figures if row.iops else ["–"] * len(headings)
            cells = [row.mech, " ".join(notes), str(row.qd), str(row.threads), *shown]
            out.add_row(*map(Text, cells), style="" if row.iops else "dim")
        out.add_section()
    lines = [f"{mark}  {what}" for what, mark in marks.items()]
    how = "CPU time, user and kernel, of the process that reads; what comes to a GPU by the host, with its copy"
    out.caption = Text("\n".join([how, *lines]))
    return out


def picture(rows: Sequence[Measurement], looks: Mapping[str, tuple[str, str]] = LOOKS) -> Any:
    """Draw a panel per size, pattern and destination; points that may come from the page cache are hollow."""
    from penstock.basics.pictures import Curve, Mark, Panel, series_picture

    rows = sorted(medians(rows), key=_place)
    panels: list[Panel] = []
    for place, group in groupby(rows, key=_place):
        here = sorted(group, key=lambda row: (row.threads, row.qd))
        series: list[Curve] = []
        for mech, (color, marker) in looks.items():
            points = [
                Mark(row.cpu_s_per_gib, row.mb_s, str(row.qd), _may_be_cached(row))
                for row in here
                if row.mech == mech
            ]
            series += [Curve(mech, color, points, marker, "--" if ":" in mech else "-")] * bool(points)
        panels.append(Panel(_title(place), series, "CPU-seconds per GiB", "MB/s", log=True))
    machine = rows[0].machine.partition(", penstock")[0]
    cold = "cold; " if all(row.cold for row in rows) else ""
    about = f"{machine}; {cold}{rows[0].date[:10]}\nup: more throughput; left: less CPU; numbers: reads under way"
    note = "hollow: buffered and not cold, so that bytes may have come from the page cache, not from storage"
    cached = any(map(_may_be_cached, rows))
    return series_picture("What reading costs", about, panels, columns=3, note=note if cached else "")


def _may_be_cached(row: Measurement) -> bool:
    return row.mech == "posix" and not row.cold


def _place(row: Measurement) -> tuple[bool, str, str, int]:
    """Return the key by which rows are grouped and sorted."""
    return row.dest != "host", row.dest, row.pattern, row.bs_bytes


def _title(place: tuple[bool, str, str, int]) -> str:
    away, dest, pattern, bs_bytes = place
    return f"{size_text(bs_bytes)}, {pattern}" + (f", to {dest}" if away else "")
