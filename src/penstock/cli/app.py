"""The verbs of the ``penstock`` command."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer

from penstock._version import __version__
from penstock.cli.command import Command, Group

_VERBS = {
    **{verb: verb for verb in ("run", "runs", "web", "feed", "pack", "cache", "select", "schedule")},
    **dict.fromkeys(("status", "stop"), "feeds"),
    **{verb: verb for verb in ("doctor", "advise", "demo", "bench")},
}
"""Verbs in the order of the help, and the module of each."""


class _Verbs(Group):
    """Imports a verb's module only when that verb is called: a training run waits for the imports."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if not (name := _VERBS.get(cmd_name)):
            return None
        module = import_module(f"penstock.cli.{name}")
        alone = typer.Typer(add_completion=False, rich_markup_mode="markdown")
        if hasattr(module, "app"):
            alone.add_typer(module.app, name=cmd_name)
        else:
            # In run, options after the first other word belong to the command that is run.
            # In feed, options that it does not know belong to its source.
            settings = {"allow_interspersed_args": cmd_name != "run", "ignore_unknown_options": cmd_name == "feed"}
            alone.command(cmd_name, cls=Command, context_settings=settings)(getattr(module, cmd_name))
        return typer.main.get_group(alone).commands[cmd_name]


app = typer.Typer(
    name="penstock",
    cls=_Verbs,
    help="One loader feeds every training run on the machine.",
    no_args_is_help=True,
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
