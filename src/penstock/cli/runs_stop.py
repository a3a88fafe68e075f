"""``penstock runs stop``: end runs."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.runs_options import StoreFolder


def stop(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Runs, by the beginning of their ids.")],
    store: StoreFolder = None,
) -> None:
    """End runs, wherever they were started: SIGTERM, and SIGKILL 5 s later."""
    from penstock.runs.record import ENDED
    from penstock.runs.stop import stop as end
    from penstock.runs.store import Store

    with Store.open(store) as opened:
        for before, now in end(opened, ids):
            said = f"had ended already: {now.status}" if before.status in ENDED else now.status
            typer.echo(f"Run {now.id} ({now.name}): {said}.")
