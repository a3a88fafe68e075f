"""The sharing benchmark: what Penstock claims of trainers on one feed, measured on this machine.

python -m benchmarks.share --data FOLDER --json benchmarks/results/share-NAME.json --plot share.png
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from benchmarks.share.command import share_command
from benchmarks.share.plan import Settings

from penstock.errors import BadSetting, PenstockError


def share(
    data: Annotated[Path | None, typer.Option(help="Folder of JPEGs; generated ones unless given.")] = None,
    trainers: Annotated[
        str, typer.Option(metavar="NUMBERS", help="Numbers of trainers, one per case.")
    ] = "1,2,4,8",
    step_ms: Annotated[float, typer.Option(help="Wait in place of each training step, in ms.")] = 0.0,
    repeats: Annotated[int, typer.Option(help="Measurements of each case, in turn.")] = 5,
    seconds: Annotated[
        float, typer.Option(help="Time counted for each case; 0.3 of it for blocks from memory.")
    ] = 4.0,
    blocks: Annotated[str, typer.Option(metavar="SIZES", help="Sizes of blocks from memory.")] = "128KB,1MB,10MB",
    workers: Annotated[int, typer.Option(help="Loader workers, all together.")] = 2,
    jpeg: Annotated[bool, typer.Option(help="The JPEG loader too; needs penstock[images,torch].")] = True,
    peers: Annotated[bool, typer.Option(help="TensorSocket too, where it is installed.")] = True,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="File for the results.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="File for a picture (PNG).")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smoke run (about 30 s); not for comparison.")] = False,
) -> None:
    """Measure trainers on one feed against trainers with a loader each: speed, CPU time, latency, memory."""
    settings = Settings(
        trainers=_numbers(trainers),
        step_ms=step_ms,
        repeats=repeats,
        seconds=seconds,
        blocks=tuple(size.strip() for size in blocks.split(",") if size.strip()),
        workers=workers,
        jpeg=jpeg,
        peers=peers,
    )
    share_command(settings.quickly() if quick else settings, data, json, plot)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise BadSetting(f"--trainers {text}: give numbers with commas between them, such as 1,2,4,8") from None


if __name__ == "__main__":
    try:
        typer.run(share)
    except PenstockError as error:
        sys.exit(str(error))
