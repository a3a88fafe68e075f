"""The verbs of the ``penstock`` command."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock._version import __version__
from penstock.cli import bench, runs
from penstock.cli.advise import advise
from penstock.cli.command import Command, Group
from penstock.cli.demo import demo
from penstock.cli.doctor import doctor
from penstock.cli.feed import feed
from penstock.cli.pack import pack
from penstock.cli.status import status
from penstock.cli.stop import stop
from penstock.cli.top import top

app = typer.Typer(
    name="penstock",
    cls=Group,
    help="One loader feeds every training run on the machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """One loader feeds every training run on the machine."""


for verb in (feed, pack, status, top, stop, doctor, advise, demo):
    app.command(cls=Command)(verb)
app.add_typer(bench.app, name="bench")
app.add_typer(runs.app, name="runs")
