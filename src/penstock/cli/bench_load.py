"""``penstock bench load``: which loader of images is the fastest here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.basics.terminal import console


def load(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder with JPEGs in it, or below.")],
    loaders: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Loaders, with commas between; all unless given.")
    ] = None,
    size: Annotated[int, typer.Option(help="Side of the random crops, in pixels.")] = 224,
    batch_size: Annotated[int, typer.Option(help="Images of a batch.")] = 128,
    workers: Annotated[
        int | None, typer.Option(help="Workers or threads of each loader; one on each core unless given.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Time counted for each measurement.")] = 5.0,
    repeats: Annotated[int, typer.Option(help="Measurements of each loader, in turns.")] = 3,
    peer: Annotated[
        list[str] | None,
        typer.Option(metavar="LOADER=PYTHON", help="Python of another environment that has a loader."),
    ] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="File for the results.")] = None,
) -> None:
    """Measure loaders of images, on your own images, for one training that only takes batches.

    Penstock's ImageSource, torch's DataLoader with several decoders, tf.data, DALI and SPDL: what is installed.
    """
    from penstock.basics.sizes import whole_number
    from penstock.bench.load.arms import ARMS
    from penstock.bench.load.command import load_command
    from penstock.bench.load.run import Settings
    from penstock.linux.cgroups import cores

    settings = Settings(
        folder=folder,
        size=whole_number("--size", size, 1, 2**14),
        batch_size=whole_number("--batch-size", batch_size, 1, 2**20),
        workers=max(1, int(cores())) if workers is None else whole_number("--workers", workers, 1, 1024),
        seconds=seconds,
        repeats=whole_number("--repeats", repeats, 1, 1000),
    )
    load_command(console(), settings, list(ARMS) if loaders is None else loaders.split(","), peer or [], json)
