"""The ``penstock`` command: one verb a file."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.markup import escape


def main() -> None:
    """Run the command line; a mistake of the user's ends in one clear message and status 2.

    What a function of the user's raises is shown with its own traceback, and ends in status 1.
    """
    from penstock.cli.app import app
    from penstock.cli.function import FunctionFailed
    from penstock.errors import PenstockError

    try:
        app()
    except PenstockError as error:
        Console(stderr=True).print(f"[bold red]penstock:[/] {escape(str(error))}", highlight=False)
        sys.exit(2)
    except FunctionFailed as error:
        console = Console(stderr=True)
        console.print(error.traceback_text, markup=False, highlight=False, soft_wrap=True)
        console.print(f"[bold red]penstock:[/] {escape(str(error))}", highlight=False)
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(1)
