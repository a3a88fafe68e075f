"""``penstock cache``: shows, checks and deletes what lies in a cache's folder."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.progress import Progress

from penstock.basics.sizes import size_text
from penstock.basics.terminal import console, printable
from penstock.cli.command import Command, Group, argument, plain_table
from penstock.errors import BadSetting

if TYPE_CHECKING:
    from penstock.io.cache.cache import Cache
    from penstock.io.cache.folder import CacheFolder, DataSet

app = typer.Typer(cls=Group, help="Show, check or delete the data that a cache keeps.", no_args_is_help=True)

_Folder = Annotated[Path, argument("FOLDER", "Folder of a cache.")]
_NO_LIMIT = 2**63


@app.command(cls=Command)
def status(folder: _Folder) -> None:
    """List the data sets that a folder keeps, with their sizes."""
    found = _data_sets(folder)
    if not found:
        return
    table = plain_table("data set", "keeps", "size", "opened", texts=2)
    for each in found:
        opened = "in use" if each.in_use else f"{_ago(time.time() - each.opened_s)} ago"
        table.add_row(printable(each.about.root), each.about.kind, size_text(each.nbytes), opened)
    table.add_row("", "", size_text(sum(each.nbytes for each in found)), "")
    console().print(table, soft_wrap=True)


@app.command(cls=Command)
def check(folder: _Folder) -> None:
    """Check all kept data against their checksums."""
    from penstock.io.cache.folder import slab_to_read

    shown, damaged = console(), 0
    found = _data_sets(folder)
    with Progress(console=shown, transient=True, disable=not shown.is_terminal) as progress:
        for each in found:
            slab = slab_to_read(each.path)
            if slab is None:
                continue
            rows = range(len(slab.records))
            name = printable(each.about.root)
            bad = sum(slab.read(row) is None for row in progress.track(rows, description=escape(name)))
            found = f"{bad:,} of {len(rows):,} records are damaged" if bad else "whole"
            if slab.is_damaged:
                found = f"the index is damaged after {len(rows):,} records; {found}"
            damaged += slab.is_damaged or bad > 0
            shown.print(f"{name}, {each.about.kind}: {found}", soft_wrap=True)
            slab.close()
    if damaged:
        shown.print(
            "What is damaged is read again, and penstock cache drop makes room for it. Tokens are compared when a "
            "training first needs them: start those again that read them now.",
            soft_wrap=True,
        )
        raise typer.Exit(1)


@app.command(cls=Command)
def drop(
    folder: _Folder,
    data_set: Annotated[str | None, argument("DATA_SET", "Name, as in status; all unless given.")] = None,
) -> None:
    """Delete kept data, of one data set or of all, unless a process uses them."""
    cached = _opened(folder)
    found = _data_sets(folder)
    chosen = [
        each for each in found if data_set is None or each.about.root in {data_set, os.path.abspath(data_set)}
    ]
    if found and not chosen:
        names = ", ".join(sorted({each.about.root for each in found}))
        raise BadSetting(f"{folder} keeps nothing of {data_set}; it keeps {names}")
    for each in chosen:
        console().print(_dropped(cached, each), soft_wrap=True)


def cache_of(text: str) -> Cache:
    """Return the cache that ``FOLDER=SIZE`` names."""
    from penstock.io.cache.cache import Cache

    folder, equals, size = text.rpartition("=")
    if not equals:
        raise BadSetting(f"cache={text!r}: give a folder and its size, FOLDER=SIZE, such as /scratch/cache=200GB")
    return Cache(folder, size)


def _data_sets(folder: Path) -> list[DataSet]:
    """Return the data sets in a folder; print a sentence if there are none."""
    found = list(_opened(folder).data_sets())
    if not found:
        console().print(f"Nothing is kept in {printable(str(folder))}.", soft_wrap=True)
    return found


def _dropped(cached: CacheFolder, each: DataSet) -> str:
    name = f"{printable(each.about.root)}, {each.about.kind}"
    if cached.drop(each.path):
        return f"{name}: {size_text(each.nbytes)} given back"
    return f"{name}: kept, because a process uses it" if each.in_use else f"{name}: kept, because it is not yours"


def _opened(folder: Path) -> CacheFolder:
    from penstock.io.cache.folder import CacheFolder

    if not folder.is_dir():
        raise BadSetting(f"{folder}: there is no such folder")
    return CacheFolder(folder, _NO_LIMIT)


def _ago(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
