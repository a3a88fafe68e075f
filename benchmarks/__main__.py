"""Runs a benchmark: ``python -m benchmarks NAME``; without a name it tells which there are."""

from __future__ import annotations

import sys
from importlib import import_module

import typer

from penstock.errors import PenstockError

ROOMS = ("autosharing", "frameworks_more", "gpu", "join", "pace", "share")
FILES = (
    *("advise", "before", "cache", "decode", "fingerprint", "gradients", "io", "loaders", "own_clocks", "packed"),
    *("page", "parts", "records", "selecting", "streams", "tokens", "witness"),
)
NAMES = sorted([*ROOMS, *FILES])


def command_of(name: str) -> typer.Typer:
    """The command of a benchmark, which its ``main`` is."""
    module = import_module(f"benchmarks.{name}.command" if name in ROOMS else f"benchmarks.{name}")
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help=module.__doc__)(module.main)
    return app


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in NAMES:
        sys.exit(f"python -m benchmarks NAME, where NAME is one of {', '.join(NAMES)}")
    try:
        command_of(name)(sys.argv[2:], prog_name=f"python -m benchmarks {name}")
    except PenstockError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
