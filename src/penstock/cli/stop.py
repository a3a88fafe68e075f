"""``penstock stop``: end a feed."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.feed.launch import feeds


def stop(name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the feed.")]) -> None:
    """End a feed; its trainers get FeedStopped, with who ended it."""
    ended = feeds.stop(name)
    how = f": it did not answer, and its process got {' and '.join(ended.signals)}" if ended.signals else ""
    typer.echo(f"Feed {name!r} (feeder {ended.pid}) has ended{how}.")
