"""The ``penstock`` command: one verb a file."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.markup import escape


def main() -> None:
    """Run the command line; a mistake of the user's ends in one clear message and status 2.

    What a function or a source of the user's raises is shown with its own traceback; the former ends in status 1.
    """
    from penstock.cli.app import app
    from penstock.cli.function import FunctionFailed
    from penstock.errors import PenstockError, SourceError

    try:
        app()
    except PenstockError as error:
        _tell(error, error.traceback_text if isinstance(error, SourceError) else "")
        sys.exit(2)
    except FunctionFailed as error:
        _tell(error, error.traceback_text)
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(1)


def _tell(error: Exception, traceback_text: str) -> None:
    console = Console(stderr=True)
    if traceback_text and traceback_text not in str(error):
        console.print(traceback_text, markup=False, highlight=False, soft_wrap=True)
    console.print(f"[bold red]penstock:[/] {escape(str(error))}", highlight=False)
