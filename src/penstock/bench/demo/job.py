"""What a trainer of the demo does: one line of JSON on its standard input."""

from __future__ import annotations

import msgspec

from penstock.bench.demo.images import Labelled


class DemoRun(msgspec.Struct, frozen=True):
    """One model to train. ``width`` is the channels of its first layer."""

    name: str
    width: int
    learning_rate: float
    batch_size: int


class TrainerJob(msgspec.Struct, frozen=True):
    """The job of one trainer process.

    Attributes:
        train: The training images.
        classes: Number of classes.
        workers: Workers of this trainer's own loader, or of the feed's.
        feed: Name of the feed to share; None for its own loader.
    """

    run: DemoRun
    train: list[Labelled]
    classes: int
    crop_px: int
    epochs: int
    workers: int
    feed: str | None = None


def runs(count: int) -> list[DemoRun]:
    """Make ``count`` runs: a small search over width, learning rate and batch size."""
    grid = [
        (width, rate, size)
        for rates in ((1e-2, 3e-3), (2e-2, 1e-3))
        for width, rate, size in ((8, rates[0], 32), (16, rates[0], 64), (8, rates[1], 24), (24, rates[1], 48))
    ]
    return [DemoRun(f"{number + 1}", *grid[number % len(grid)]) for number in range(count)]
