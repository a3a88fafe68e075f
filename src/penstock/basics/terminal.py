"""Text on a terminal: names given by users are shown, never interpreted."""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from rich.console import Console

_said: set[str] = set()
_WIDE = 50  # columns of a terminal
_IN_ASCII = str.maketrans({"×": "x", "≥": ">=", "≤": "<=", "–": "-", "…": "...", "✓": "+", "✗": "x", "µ": "u"})


def console(**options: Any) -> Console:
    """Make a console that interprets no markup, and does not colour text by itself."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False, **options)


def is_wide(columns: int | None = None) -> bool:
    """Return whether a table is shown with all that it has: in so many columns, or in the terminal's."""
    return (columns or console().width) >= _WIDE


def say(sentence: str) -> None:
    """Print a sentence for the user on standard error, at once, and in one piece where threads speak together."""
    with suppress(OSError):  # a full disk: no reason to end what it is about
        print(f"penstock: {sentence}\n", end="", file=sys.stderr, flush=True)


def say_once(sentence: str, what: str = "") -> None:
    """Say a sentence once in this process; ``what`` names it where its words vary. Addresses do not count."""
    key = re.sub(r"\b0x[0-9a-f]+", "0x", what or sentence)
    if key not in _said:
        _said.add(key)
        say(sentence)


@contextmanager
def told(what: str) -> Generator[None]:
    """Print something at the end of work that is done: where it cannot be printed, say so, and go on."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else the rest would fail again at exit
        say(f"{what} cannot be printed: {error.strerror}")


def listed(names: Sequence[str], most: int = 3) -> str:
    """Join the first of some names, and the number of the others, for a sentence.

    >>> listed(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def sized_console() -> Console:
    """Make a console of the size that standard output's terminal has now; $LINES and $COLUMNS do not change."""
    from rich.console import ConsoleDimensions

    shown = console()
    shown.size = ConsoleDimensions(*os.get_terminal_size(1))
    return shown


def redraws() -> bool:
    """Return whether standard output is a terminal that can draw lines anew."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in {"dumb", "unknown"}


def printable(text: str) -> str:
    """Escape what a terminal interprets (escape sequences, line breaks, text direction), as ``repr`` does."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def printable_lines(text: str) -> str:
    """Escape what a terminal interprets, except line breaks."""
    return "\n".join(map(printable, text.expandtabs().split("\n")))


def prepare_output() -> None:
    """Print all of what is printed, and what standard output and error cannot encode in other words.

    Under PYTHONUNBUFFERED a write that the system cuts short, as a terminal does after 2,048 bytes if a signal
    is due, would lose its rest: Python does not look at how much was written.
    """
    codecs.register_error("penstock", _in_other_words)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # it is closed, and would be the next file that is opened
            os.open(os.devnull, os.O_RDONLY)
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: SIM115
    for name in ("stdout", "stderr"):
        given: object = getattr(sys, name)
        if isinstance(given, io.TextIOWrapper):
            stream = cast("Any", given)
            if isinstance(stream.buffer, io.RawIOBase):
                stream = io.TextIOWrapper(_Unbuffered(stream.buffer), stream.encoding, write_through=True)
                setattr(sys, name, stream)
            stream.reconfigure(errors="penstock")


class _Unbuffered(io.BufferedWriter):
    """Writes at once, and all of it."""

    def write(self, data: Any, /) -> int:
        written = super().write(data)
        self.flush()
        return written


def _in_other_words(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_IN_ASCII)
    return (text, error.end) if text.isascii() else codecs.backslashreplace_errors(error)
