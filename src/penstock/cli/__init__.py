"""The ``penstock`` command: one file per verb."""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130
"""Exit status after Ctrl-C, by shell convention: 128 plus the number of SIGINT."""


def main() -> None:
    """Run the command line; a user's mistake ends in one clear message and status 2.

    If the user's function or source raises, its own traceback is shown. The status is 1 if the function raises, a
    package is missing or the output cannot be written.
    """
    try:
        try:
            _run()
        except SystemExit:
            _write_out()
            raise
        _write_out()
    except KeyboardInterrupt:  # during imports; later, typer turns it into this status
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader of our output is gone
        _write_no_more()
        sys.exit(1)
    except OSError:
        _write_out()
        raise
    finally:
        try:
            sys.stderr.flush()
        except OSError:  # a full disk; Python would try again, and exit with 120
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _write_out() -> None:
    """Write what is left of the output; end with one line if it cannot be written."""
    try:
        if not sys.stdout.closed:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _write_no_more()
        print(f"penstock: standard output cannot be written: {error.strerror}", file=sys.stderr)
        sys.exit(1)


def _write_no_more() -> None:
    """Drop what is left of the output: it must not be written at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run() -> None:
    from penstock.basics.terminal import prepare_output
    from penstock.cli.command import app
    from penstock.errors import BadSetting, PackageMissing, PenstockError, SourceError
    from penstock.feed.launch.function import FunctionFailed

    prepare_output()
    try:
        app(prog_name="penstock")
    except PackageMissing as error:
        print_error(error)
        sys.exit(1)
    except PenstockError as error:
        print_error(error, error.traceback_text if isinstance(error, SourceError) else "")
        sys.exit(2)
    except UnicodeEncodeError as error:
        if error.reason != "surrogates not allowed":
            raise
        print_error(BadSetting(f"{error.object!a} is not UTF-8, as all that Penstock stores must be: rename it"))
        sys.exit(2)
    except FunctionFailed as error:
        print_error(error, error.traceback_text)
        sys.exit(1)
    except FileNotFoundError as error:
        if error.filename is not None or _has_directory():
            raise
        print_error(BadSetting("the working directory is not there any more: change to one that is"))
        sys.exit(2)


def _has_directory() -> bool:
    """Whether the working directory is there."""
    try:
        return bool(os.getcwd())
    except FileNotFoundError:
        return False


def print_error(error: Exception, traceback_text: str = "") -> None:
    """Print an error on stderr, below the traceback of the user's own code if there is one."""
    from rich.text import Text

    from penstock.basics.terminal import console, printable_lines

    stderr = console(stderr=True)
    if traceback_text and traceback_text not in str(error):
        stderr.print(printable_lines(traceback_text), soft_wrap=True)
    stderr.print(Text.assemble(("penstock:", "bold red"), " ", printable_lines(str(error))), soft_wrap=True)
