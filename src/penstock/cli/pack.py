"""``penstock pack``: write a source's samples as rows that are read at the disk's speed."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from penstock.basics.sizes import size_text
from penstock.errors import BadSetting, PackDamaged

_INTERRUPTED = 130
"""Exit status after Ctrl-C, by shell convention: 128 plus the number of SIGINT."""


def pack(
    source: Annotated[
        str | None, typer.Argument(metavar="FILE.py:FUNCTION", help="Function that makes the loader.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Argument(metavar="FOLDER", help="New folder, or one whose packing was interrupted.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the pass.")] = 0,
    check: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Packed data set to check instead: all checksums and headers."),
    ] = None,
) -> None:
    """Pack one pass of a loader into a folder, for `penstock feed packed:FOLDER`.

    FUNCTION takes no arguments and returns a DataLoader, arrays, or batches.

    After an interruption, repeat the command: it goes on where it stopped. Nothing is overwritten.
    """
    if check is not None and source is None:
        _check(check)
    elif check is None and source is not None and folder is not None:
        try:
            _pack(source, folder, seed)
        except KeyboardInterrupt:
            Console(stderr=True).print(f"Interrupted. {_begun(folder)}", highlight=False, soft_wrap=True)
            raise typer.Exit(_INTERRUPTED) from None
    else:
        raise BadSetting("give FILE.py:FUNCTION and a folder, or --check and a folder")


def _pack(source: str, folder: Path, seed: int) -> None:
    from penstock.feed.launch.function import call, function_at
    from penstock.fingerprint.functions import fingerprint_of
    from penstock.sources.packed.packing import pack as pack_source

    console = Console()
    make = function_at(source)
    loader = call(make, source)
    with _progress(console, MofNCompleteColumn()) as progress:
        task = progress.add_task("packing", total=None)
        done = pack_source(
            loader,
            folder,
            seed=seed,
            fingerprint={"the function": source, **fingerprint_of(make).digests},
            progress=lambda rows, of: progress.update(task, completed=rows, total=of),
        )
    feed = escape(shlex.quote(f"packed:{folder}"))
    console.print(
        f"Packed {done.rows:,} samples, {size_text(done.nbytes)}, into [bold]{escape(str(folder))}[/]. "
        f"To feed them:\n[bold]penstock feed {feed} --name NAME[/]",
        highlight=False,
        soft_wrap=True,
    )


def _begun(folder: Path) -> str:
    """Say how far an interrupted packing has come."""
    from penstock.sources.packed.packing import rows_begun

    rows, samples = rows_begun(folder)
    if not rows:
        return "Nothing has been packed."
    of = "" if samples is None else f" of {samples:,}"
    where = escape(str(folder))
    return f"{rows:,}{of} samples are packed in [bold]{where}[/]: repeat the command to go on from there."


def _check(folder: Path) -> None:
    from penstock.sources.packed.files import check

    console, errors = Console(), Console(stderr=True)
    try:
        with _progress(console, DownloadColumn()) as progress:
            task = progress.add_task("reading", total=None)
            right = check(folder, lambda done, of: progress.update(task, completed=done, total=of))
    except KeyboardInterrupt:
        errors.print("Interrupted: the rest has not been checked.")
        raise typer.Exit(_INTERRUPTED) from None
    except PackDamaged as error:
        errors.print(f"[bold red]penstock:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
    told = f"All {right.rows:,} samples in [bold]{escape(str(folder))}[/] ({size_text(right.nbytes)})"
    console.print(f"{told} are as they were packed.", highlight=False, soft_wrap=True)


def _progress(console: Console, count: ProgressColumn) -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn()
    # On no terminal it would leave an empty line.
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
