"""``penstock top``: the feeds, live."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from penstock.cli.table import feeds_table
from penstock.feed.feeds import feeds


def top(
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 1.0,
) -> None:
    """Show the feeds live, until Ctrl-C."""
    console = Console()
    with suppress(KeyboardInterrupt):
        if not console.is_terminal:
            while True:
                console.print(feeds_table(feeds()))
                time.sleep(interval)
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(feeds_table(feeds()), refresh=True)
                time.sleep(interval)
