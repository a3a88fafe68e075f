"""The ``penstock`` command: one verb a file."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.markup import escape


def main() -> None:
    """Run the command line; a mistake of the user's ends in one clear message and status 2."""
    from penstock.cli.app import app
    from penstock.errors import PenstockError

    try:
        app()
    except PenstockError as error:
        Console(stderr=True).print(f"[bold red]penstock:[/] {escape(str(error))}", highlight=False)
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(1)
