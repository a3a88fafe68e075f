"""Tracebacks for users: from the first frame on that is not Penstock's."""

from __future__ import annotations

import os
import re
import sys
import traceback
from functools import cache
from pathlib import Path
from types import TracebackType

from penstock.errors import PenstockError

OURS = str(Path(__file__).parents[1]) + os.sep
"""What the files of Penstock's own code begin with."""
_NOT_USERS = (OURS, "<frozen importlib")


def users_stacklevel() -> int:
    """Return the ``stacklevel`` for a warning by the caller that points to the code that called Penstock."""
    level, frame = 1, sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OURS):
        level, frame = level + 1, frame.f_back
    return level


def users_traceback(error: BaseException) -> str:
    """Format an exception's traceback without the frames of Penstock that led to the code that raised.

    If there are only Penstock's frames: nothing for a ``PenstockError``, whose message says all; the error alone
    for a ``SyntaxError``, which names its file; and the whole traceback for anything else.
    """
    shown = error.__traceback__
    while shown is not None and shown.tb_frame.f_code.co_filename.startswith(_NOT_USERS):
        shown = shown.tb_next
    if shown is None and isinstance(error, PenstockError):
        return ""
    if shown is None and not isinstance(error, SyntaxError):
        shown = error.__traceback__
    return "".join(traceback.format_exception(type(error), error, shown))


def raised(error: BaseException) -> str:
    """Return an exception's text and, if Penstock called the code that raised it, the name of that code."""
    codes = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
    called = next((code for code in codes if not code.co_filename.startswith(_NOT_USERS)), None)
    return f"{called.co_qualname} raised {type(error).__name__}: {error}" if called else str(error)


@cache
def leave_out_of_interrupts() -> None:
    """Let Python show an interrupt that nobody catches without the frames of Penstock that it came through."""
    before = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, shown: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            error.__traceback__, error.__suppress_context__ = (shown := _without_ours(shown)), True
        before(kind, error, shown)

    sys.excepthook = show


def _without_ours(shown: TracebackType | None) -> TracebackType | None:
    if shown is None:
        return None
    shown.tb_next = _without_ours(shown.tb_next)
    return shown.tb_next if shown.tb_frame.f_code.co_filename.startswith(_NOT_USERS) else shown


def cause_of(error: Exception) -> str:
    """Return an exception's type and message; for a torch worker's, those of the original, and which worker."""
    caught = re.match(r"Caught (\w+) (in .*?)\.\nOriginal Traceback", str(error))
    if caught is None:
        return f"{type(error).__name__}: {error}"
    kind, where = caught.groups()
    *_, original = re.split(rf"\n(?=[\w.]*\b{kind}\b)", str(error).rstrip())
    return f"{original} ({where})"
