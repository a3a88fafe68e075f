"""``penstock bench share``: what sharing your own loader brings on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def share(
    loader: Annotated[
        str,
        typer.Argument(metavar="FILE.py:FUNCTION", help="Function that makes the loader, as for penstock feed."),
    ],
    trainers: Annotated[
        str, typer.Option("-k", "--trainers", metavar="NUMBERS", help="Numbers of trainers, one per case.")
    ] = "1,2,4,8",
    seconds: Annotated[float, typer.Option(help="Time counted for each case.")] = 4.0,
    repeats: Annotated[int, typer.Option(help="Measurements of each case, in turn.")] = 3,
    step_ms: Annotated[float, typer.Option(help="Wait for each batch in place of a training step, in ms.")] = 0.0,
    window: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory of the feed for blocks on their way.")
    ] = "512MiB",
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="File for the results.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="File for a picture (PNG, SVG, PDF).")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smoke run (about 30 s); not for comparison.")] = False,
) -> None:
    """Measure a loader of yours: alone, one in each of several trainers, and behind one feed for all.

    The trainers are processes that take batches and train nothing. Separate loaders have as many workers in
    all as yours has, and at least one each.
    """
    from penstock.bench.share.command import share_command
    from penstock.bench.share.plan import Settings
    from penstock.errors import BadSetting

    try:
        numbers = tuple(int(part) for part in trainers.split(","))
    except ValueError:
        raise BadSetting(
            f"--trainers {trainers}: give numbers with commas between them, such as 1,2,4,8"
        ) from None
    settings = Settings(trainers=numbers, step_ms=step_ms, seconds=seconds, repeats=repeats, window=window)
    share_command(settings.quickly() if quick else settings, loader, json, plot)
