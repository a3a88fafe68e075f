"""What verbs have in common: help without types of flags, options, JSON, and tables drawn again and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from penstock.errors import BadSetting

if TYPE_CHECKING:
    from rich.console import RenderableType


class Command(TyperCommand):
    """A verb."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types_of_flags(super().get_params(ctx))


class Group(TyperGroup):
    """A command of several verbs."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types_of_flags(super().get_params(ctx))


def _without_types_of_flags(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


StoreFolder = Annotated[
    Path | None,
    typer.Option("--store", metavar="DIR", help="Folder of the store; $PENSTOCK_STORE unless given."),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead.")]
Watch = Annotated[bool, typer.Option("--watch", help="Show it live, until Ctrl-C.")]
Interval = Annotated[float, typer.Option(metavar="SECONDS", help="Time between two refreshes.")]


def print_json(value: Any) -> None:
    """Print a value; NaN and infinities, which JSON lacks, become null."""
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def watch(table: Callable[[], RenderableType], interval_s: float, as_json: bool = False) -> NoReturn:
    """Show a table again and again, until Ctrl-C.

    Raises:
        BadSetting: the interval is no time from 0.1 s to a day, or JSON is asked for.
    """
    from rich.live import Live

    from penstock.basics.terminal import console
    from penstock.feed.settings import real_number

    if as_json:
        raise BadSetting("--json: not with --watch; ask again and again for it")
    real_number("--interval", interval_s, 0.1, 86_400)
    shown = console()
    if not shown.is_terminal or shown.is_dumb_terminal:
        while True:
            shown.print(table(), soft_wrap=True)
            time.sleep(interval_s)
    with Live(console=shown, screen=True, auto_refresh=False) as live:
        while True:
            live.update(table(), refresh=True)
            time.sleep(interval_s)
