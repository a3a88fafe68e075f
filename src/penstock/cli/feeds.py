"""``penstock status`` and ``penstock stop``: the feeds that run, and the end of one."""

from __future__ import annotations

import json
from typing import Annotated

import msgspec
import typer
from rich.console import RenderableType

from penstock.cli.command import Interval, Watch, watch
from penstock.feed.launch import feeds


def status(
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON instead: a list of objects, one per feed.")
    ] = False,
    live: Watch = False,
    interval: Interval = 1.0,
) -> None:
    """Show the running feeds, their trainers, and which trainer holds the others back."""
    if live:
        watch(_table, interval, as_json)
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(feeds.feeds()), indent=2))
        return
    from penstock.basics.terminal import console

    console().print(_table(), soft_wrap=True)


def top(interval: Interval = 1.0) -> None:
    """Show the feeds live, until Ctrl-C: ``penstock status --watch``."""
    watch(_table, interval)


def stop(name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the feed.")]) -> None:
    """End a feed; its trainers get FeedStopped, with who ended it."""
    ended = feeds.stop(name)
    how = f": it did not answer, and its process got {' and '.join(ended.signals)}" if ended.signals else ""
    typer.echo(f"Feed {name!r} (feeder {ended.pid}) has ended{how}.")


def _table() -> RenderableType:
    from penstock.cli.table import feeds_table

    return feeds_table(feeds.feeds())
