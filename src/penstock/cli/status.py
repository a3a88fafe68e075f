"""``penstock status``: what runs now."""

from __future__ import annotations

import json
from typing import Annotated

import msgspec
import typer

from penstock.feed.launch.feeds import feeds


def status(
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON instead: a list of objects, one per feed.")
    ] = False,
) -> None:
    """Show the running feeds, their trainers, and which trainer holds the others back."""
    found = feeds()
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(found), indent=2))
        return
    from penstock.basics.terminal import console
    from penstock.cli.table import feeds_table

    console().print(feeds_table(found), soft_wrap=True)
