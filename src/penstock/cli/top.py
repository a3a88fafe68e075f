"""``penstock top``: the feeds, live."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.live import Live

from penstock.basics.terminal import console
from penstock.cli.table import feeds_table
from penstock.feed.launch.feeds import feeds
from penstock.feed.settings import real_number


def top(
    interval: Annotated[float, typer.Option(metavar="SECONDS", help="Time between two refreshes.")] = 1.0,
) -> None:
    """Show the feeds live, until Ctrl-C."""
    real_number("--interval", interval, 0.1, 86_400)
    shown = console()
    if not shown.is_terminal or shown.is_dumb_terminal:
        while True:
            shown.print(feeds_table(feeds()), soft_wrap=True)
            time.sleep(interval)
    with Live(console=shown, screen=True, auto_refresh=False) as live:
        while True:
            live.update(feeds_table(feeds()), refresh=True)
            time.sleep(interval)
