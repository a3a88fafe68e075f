"""``penstock demo``: small models, trained with a loader each, then on one feed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder of class folders with JPEGs in them, or of train/ with such folders, or of JPEGs; "
            "the demo's own images, made once in your cache directory, unless given.",
        ),
    ] = None,
    trainers: Annotated[int, typer.Option(help="Models trained side by side.")] = 4,
    epochs: Annotated[int, typer.Option(help="Epochs of each model.")] = 8,
    images: Annotated[int, typer.Option(help="Training images at most; 0 for all.")] = 2000,
    report: Annotated[
        Path, typer.Option(metavar="FILE", help="File for the results; a picture is saved beside it.")
    ] = Path("demo-report.json"),
) -> None:
    """Train small models side by side, each with its own DataLoader, then all from one feed, and compare.

    With ``--data``, they are trained once more from one feed of an ``ImageSource``.
    """
    from penstock.bench.demo.session import run

    run(data, trainers, epochs, images or None, report)
