"""``penstock runs top``: the runs that go on, and what each waits for."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from penstock.cli.runs_options import StoreFolder
from penstock.feed.settings import real_number
from penstock.runs.store import Store


def top(
    interval: Annotated[float, typer.Option(metavar="SECONDS", help="Time between two refreshes.")] = 1.0,
    store: StoreFolder = None,
) -> None:
    """Show the runs that go on, live, until Ctrl-C: CPU, memory, wait for data, what they log."""
    from rich.live import Live

    from penstock.basics.terminal import console
    from penstock.cli.runs_live import Looks

    real_number("--interval", interval, 0.1, 86_400)
    shown = console()
    with Store.open(store) as opened:
        looks = Looks(opened)
        if not shown.is_terminal or shown.is_dumb_terminal:
            while True:
                shown.print(looks.table(), soft_wrap=True)
                time.sleep(interval)
        with Live(console=shown, screen=True, auto_refresh=False) as live:
            while True:
                live.update(looks.table(), refresh=True)
                time.sleep(interval)
