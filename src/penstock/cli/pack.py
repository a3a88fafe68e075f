"""``penstock pack``: write a source's samples as rows that are read at the disk's speed."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from penstock.basics.results import progress
from penstock.basics.sizes import size_text
from penstock.basics.terminal import console, printable, say
from penstock.cli import print_error
from penstock.cli.command import argument, option
from penstock.errors import BadSetting, PackDamaged


def pack(
    source: Annotated[str | None, argument("FILE.py:FUNCTION", "Function that makes the loader.")] = None,
    folder: Annotated[Path | None, argument("FOLDER", "New folder, or one whose packing was interrupted.")] = None,
    seed: Annotated[int, option("Random seed of the pass.")] = 0,
    check: Annotated[
        Path | None, option("Check this packed data set instead: all checksums and headers.", metavar="FOLDER")
    ] = None,
) -> None:
    """Write a loader's samples into a folder that is read at disk speed: `penstock feed packed:FOLDER`.

    FUNCTION takes no arguments and returns a DataLoader, arrays, or batches.

    It takes one pass over the loader and overwrites nothing. After an interruption, repeat the command to go on.
    """
    if check is not None and source is None:
        _check(check)
    elif check is None and source is not None and folder is not None:
        try:
            _pack(source, folder, seed)
        except KeyboardInterrupt:
            console(stderr=True).print(f"Interrupted. {_begun(folder)}", soft_wrap=True)
            raise
    else:
        raise BadSetting("give FILE.py:FUNCTION and a folder, or --check and a folder")


def _pack(source: str, folder: Path, seed: int) -> None:
    from penstock.feed.launch.function import call, function_at
    from penstock.fingerprint.functions import fingerprint_of
    from penstock.sources.packed.packing import pack as pack_source

    make = function_at(source)
    loader = call(make, source)
    with progress(console()) as tell:
        done = pack_source(
            loader,
            folder,
            seed=seed,
            fingerprint={"the function": source, **fingerprint_of(make).digests},
            progress=lambda done, of: tell(done, of or 0, "packing"),
        )
    feed = printable(shlex.quote(f"packed:{folder}"))
    console().print(
        f"Packed {done.rows:,} samples, {size_text(done.nbytes)}, into {printable(str(folder))}. To feed them:\n"
        f"penstock feed {feed} --name NAME",
        soft_wrap=True,
    )


def _begun(folder: Path) -> str:
    """Return a sentence on how far an interrupted packing has come."""
    from penstock.sources.packed.packing import rows_begun

    rows, samples = rows_begun(folder)
    if not rows:
        return "Nothing has been packed."
    of = "" if samples is None else f" of {samples:,}"
    return f"{rows:,}{of} samples are packed in {printable(str(folder))}: repeat the command to go on from there."


def _check(folder: Path) -> None:
    from penstock.sources.packed.leaf_files import check

    try:
        with progress(console()) as tell:
            right = check(folder, lambda done, of: tell(done >> 20, of >> 20, "reading, in MiB"))
    except KeyboardInterrupt:
        say("interrupted: the rest has not been checked")
        raise
    except PackDamaged as error:
        print_error(error)
        raise typer.Exit(1) from None
    samples = f"All {right.rows:,} samples in {printable(str(folder))} ({size_text(right.nbytes)})"
    console().print(f"{samples} are as they were packed.", soft_wrap=True)
