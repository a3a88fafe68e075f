"""``penstock schedule``: which runs run when, where and on which feed."""

from __future__ import annotations

import typer

from penstock.cli.command import Command, Group
from penstock.cli.schedule_profile import profile
from penstock.cli.schedule_run import run

app = typer.Typer(cls=Group, help="Plan which runs run when, where and on which feed.", no_args_is_help=True)


@app.callback()
def schedule() -> None:
    """Plan which runs run when, where and on which feed."""


app.command(cls=Command)(profile)
app.command(cls=Command)(run)
