"""``penstock status`` and ``penstock stop``: the feeds that run, and the end of one."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.command import AsJson, Interval, Watch, show, watch
from penstock.feed.launch import feeds


def status(as_json: AsJson = False, live: Watch = False, interval: Interval = 1.0) -> None:
    """Show the running feeds, their trainers, and which trainer holds the others back."""
    from penstock.cli.table import feeds_table

    if live:
        watch(lambda: feeds_table(feeds.feeds()), interval, as_json)
    running = feeds.feeds()
    show(as_json, running, lambda: feeds_table(running))


def top(interval: Interval = 1.0) -> None:
    """Show the feeds live, until Ctrl-C: ``penstock status --watch``."""
    status(live=True, interval=interval)


def stop(name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the feed.")]) -> None:
    """End a feed; its trainers get FeedStopped, with who ended it."""
    ended = feeds.stop(name)
    how = f": it did not answer, and its process got {' and '.join(ended.signals)}" if ended.signals else ""
    typer.echo(f"Feed {name!r} (feeder {ended.pid}) has ended{how}.")
