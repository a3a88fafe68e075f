"""``penstock stop``: end a feed."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.errors import FeederLost
from penstock.feed.launch import feeds


def stop(name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the feed.")]) -> None:
    """End a feed; its trainers are told who did it."""
    try:
        ended = feeds.stop(name)
    except TimeoutError:
        raise FeederLost(
            f"the feeder of {name!r} has not ended within 10 s: its source does not return. "
            "Look at its processes, or kill them"
        ) from None
    how = f": it did not answer, and its process got {' and '.join(ended.signals)}" if ended.signals else ""
    typer.echo(f"Feed {name!r} (feeder {ended.pid}) has ended{how}.")
