"""``penstock bench``: measure on this machine."""

from __future__ import annotations

import typer

from penstock.cli.bench_io import io
from penstock.cli.bench_load import load
from penstock.cli.bench_share import share
from penstock.cli.command import Command, Group

app = typer.Typer(cls=Group, help="Measure on this machine.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure on this machine."""


app.command(cls=Command)(share)
app.command(cls=Command)(io)
app.command(cls=Command)(load)
