"""``penstock bench``: measure on this machine what Penstock claims."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.bench_io import io

app = typer.Typer(help="Measure on this machine what Penstock claims.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure on this machine what Penstock claims."""


@app.command()
def share(
    data: Annotated[Path | None, typer.Option(help="Folder of JPEGs; without it, some are generated.")] = None,
    trainers: Annotated[str, typer.Option(help="How many trainers at once, case by case.")] = "1,2,4,8",
    step_ms: Annotated[float, typer.Option(help="Wait in place of each training step, ms.")] = 0.0,
    repeats: Annotated[int, typer.Option(help="Times that each case is measured, by turns.")] = 5,
    seconds: Annotated[
        float, typer.Option(help="Counted for each case; blocks from memory take 0.3 of it.")
    ] = 4.0,
    blocks: Annotated[str, typer.Option(help="Sizes of blocks from memory.")] = "128KB,1MB,10MB",
    workers: Annotated[int, typer.Option(help="Loader workers in total.")] = 2,
    jpeg: Annotated[bool, typer.Option(help="Measure the JPEG loader; needs the images and torch extras.")] = True,
    peers: Annotated[bool, typer.Option(help="Measure TensorSocket too, where it is installed.")] = True,
    json: Annotated[Path | None, typer.Option(help="Where to save what was measured.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Where to save a picture (PNG) of it.")] = None,
    quick: Annotated[bool, typer.Option(help="A look in half a minute; its figures prove nothing.")] = False,
) -> None:
    """Trainers on one feed against trainers with a loader each: speed, CPU time, latency, memory."""
    from penstock.bench.command import share_command
    from penstock.bench.plan import Settings

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
    from penstock.errors import BadSetting

    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise BadSetting(f"--trainers {text}: give numbers with commas between them, such as 1,2,4,8") from None


app.command()(io)
