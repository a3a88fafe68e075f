"""The verbs of the ``penstock`` command, and what they share: options, output as JSON or a page, tables."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

import typer
from typer.core import TyperCommand, TyperGroup

from penstock._version import __version__
from penstock.errors import BadSetting

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from penstock.runs.record import RunRecord


class _PlainFlags:
    """Leaves the types of flags out of the help."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = cast(Any, super()).get_params(ctx)
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class Command(_PlainFlags, TyperCommand):
    """A verb."""


class Group(_PlainFlags, TyperGroup):
    """A command of several verbs."""


def option(*names_and_help: str, **more: Any) -> Any:
    """Make an option from its help, after its names if they differ from the parameter's."""
    *names, text = names_and_help
    return typer.Option(*names, help=text, **more)


def argument(metavar: str, text: str, **more: Any) -> Any:
    """Make an argument from its name in the help and its help."""
    return typer.Argument(metavar=metavar, help=text, **more)


StoreFolder = Annotated[
    Path | None, option("--store", "Folder where runs are stored; $PENSTOCK_STORE unless given.", metavar="DIR")
]
Experiment = Annotated[
    str, option("MLflow experiment; $MLFLOW_EXPERIMENT_NAME, else the group's name.", metavar="NAME")
]
Picture = Annotated[Path | None, option("File for a picture (PNG, SVG, PDF).", metavar="FILE")]
AsJson = Annotated[bool, option("--json", "Print JSON.")]
AsLatex = Annotated[bool, option("--latex", "Print a LaTeX table (booktabs).")]
Watch = Annotated[bool, option("--watch", "Refresh until Ctrl-C.")]
Interval = Annotated[float, option("Time between refreshes, with --watch.", metavar="SECONDS")]


def folder_of_store(store: Path | None) -> Path:
    """Return the folder of a store to be written, and say of one that was named if it is new: it may be a typo."""
    from penstock.basics.terminal import say
    from penstock.runs.store.folder import chosen_folder

    folder = store.absolute() if store else chosen_folder()
    if (store or os.environ.get("PENSTOCK_STORE")) and not folder.exists():
        say(f"the store of runs {folder} was not there and is new: see --store and PENSTOCK_STORE")
    return folder


def show(as_json: bool, value: Any, page: Callable[[], RenderableType]) -> None:
    """Print a value as JSON, in which NaN and infinities become null, or else as a page."""
    if as_json:
        print_json(value)
    else:
        print_page(page())


def print_page(page: RenderableType) -> None:
    """Print a page; each row of a table is one line, for grep, where no terminal and no $COLUMNS has a width."""
    from rich.table import Table

    from penstock.basics.terminal import console

    is_wide = isinstance(page, Table) and not (sys.stdout.isatty() or "COLUMNS" in os.environ)
    console(width=10_000 if is_wide else None).print(page, soft_wrap=True)


def print_latex(page: RenderableType) -> None:
    """Print a table, whose columns stand as they do in the terminal; nothing if it is none."""
    from rich.table import Table

    from penstock.basics.results import latex_table

    if isinstance(page, Table):
        columns = [[str(cell) for cell in (column.header, *column.cells)] for column in page.columns]
        sides = "".join("r" if column.justify == "right" else "l" for column in page.columns)
        typer.echo(latex_table([*zip(*columns, strict=True)], sides), nl=False)


def print_json(value: Any) -> None:
    """Print a value as JSON, in which NaN and infinities become null."""
    import msgspec

    typer.echo(json.dumps(msgspec.json.decode(msgspec.json.encode(value)), indent=2))


def exit_on_sigterm() -> None:
    """Have SIGTERM end this process as Ctrl-C does, so that what it has started is ended."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)


def exit_code(ended: Iterable[RunRecord]) -> int:
    """Return the exit code of the first of some runs that did not finish, else 0."""
    codes = [record.exit_code for record in ended if record.status != "finished"]
    return next(filter(None, codes), 1 if codes else 0)  # a run that never began has none


def counted(count: int, noun: str) -> str:
    """Return a number of things in words: "1 run", "2 runs"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def plain_table(*headings: str, texts: int = 1) -> Table:
    """Make a table without lines: ``texts`` columns of text, which is folded, then figures, which are not."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for place, heading in enumerate(headings):
        justify = "left" if place < texts else "right"
        table.add_column(heading, justify=justify, no_wrap=place >= texts, overflow="fold")
    return table


def watch(table: Callable[[], RenderableType], interval_s: float, as_json: bool = False) -> NoReturn:
    """Show a table, refreshed until Ctrl-C."""
    from rich.live import Live

    from penstock.basics.terminal import console
    from penstock.feed.settings import real_number

    if as_json:
        raise BadSetting("--json: not with --watch; call it repeatedly instead")
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


_VERBS = {
    **{verb: verb for verb in ("run", "runs", "web", "feed", "pack", "cache", "select", "schedule")},
    **dict.fromkeys(("status", "move", "stop"), "feeds"),
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
