"""Tracebacks for users: from the first frame on that is not Penstock's."""

from __future__ import annotations

import os
import sys
import traceback
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import cast

from penstock.errors import PenstockError

OURS = str(Path(__file__).parent) + os.sep
"""What the files of Penstock's own code begin with."""


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
    shown = _users(error)
    if shown is None and isinstance(error, PenstockError):
        return ""
    if shown is None and not isinstance(error, SyntaxError):
        shown = error.__traceback__
    return "".join(traceback.format_exception(type(error), error, shown))


def raised(error: BaseException) -> str:
    """Return what an exception says and, if Penstock called the code that raised it, what it called."""
    called = _users(error)
    return f"{called.tb_frame.f_code.co_qualname} raised {type(error).__name__}: {error}" if called else str(error)


@cache
def leave_out_of_interrupts() -> None:
    """Let Python show an interrupt that nobody catches without the frames of Penstock that it came through."""
    before = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, shown: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            kept: list[TracebackType] = []
            while shown is not None:
                kept += [] if _is_ours(shown) else [shown]
                shown = shown.tb_next
            for entry, after in pairwise([*kept, None]):
                cast("TracebackType", entry).tb_next = after
            error.__traceback__ = shown = next(iter(kept), None)
            error.__suppress_context__ = True
        before(kind, error, shown)

    sys.excepthook = show


def _users(error: BaseException) -> TracebackType | None:
    """Return the first entry of an exception's traceback that is not Penstock's."""
    found = error.__traceback__
    while found is not None and _is_ours(found):
        found = found.tb_next
    return found


def _is_ours(entry: TracebackType) -> bool:
    return entry.tb_frame.f_code.co_filename.startswith((OURS, "<frozen importlib"))
