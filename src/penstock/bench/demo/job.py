"""What the demo tells a trainer, and what the trainer reports: one line of JSON each."""

from __future__ import annotations

import msgspec

from penstock.bench.demo.images import Labelled


class Run(msgspec.Struct, frozen=True):
    """One model to train. ``width`` is the channels of its first layer."""

    name: str
    width: int
    learning_rate: float
    batch_size: int


class Job(msgspec.Struct, frozen=True):
    """The job of one trainer process.

    Attributes:
        train: The training images.
        classes: Number of classes.
        workers: Workers of this trainer's own loader, or of the feed's.
        feed: Name of the feed to share; None for its own loader.
        folder: Folder that the feed's ImageSource reads; None for a feed of a DataLoader.
        window: Size of the feed's ring.
    """

    run: Run
    train: list[Labelled]
    classes: int
    crop_px: int
    epochs: int
    workers: int
    seed: int = 0
    feed: str | None = None
    folder: str | None = None
    window: str = "16MiB"


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """A report of a trainer.

    Attributes:
        kind: "ready" (to start), "progress", "trained" (has had all its images), or "failed".
        at_s: ``time.monotonic()`` of the report.
        images: Images received until then.
        waited_s: Time spent waiting for them.
        sharing: Path of its batches, in words.
        bad_data: Whether it failed because of one of the user's files.
    """

    kind: str
    at_s: float
    images: int = 0
    epoch: int = 0
    loss: float = 0.0
    waited_s: float = 0.0
    sharing: str = ""
    device: str = ""
    message: str = ""
    bad_data: bool = False


def runs(count: int) -> list[Run]:
    """Make ``count`` runs: a small search over width, learning rate and batch size."""
    grid = [
        (width, rate, size)
        for rates in ((1e-2, 3e-3), (2e-2, 1e-3))
        for width, rate, size in ((8, rates[0], 32), (16, rates[0], 64), (8, rates[1], 24), (24, rates[1], 48))
    ]
    chosen = [grid[number % len(grid)] for number in range(count)]
    return [Run(f"{number + 1}", *settings) for number, settings in enumerate(chosen)]
