"""Tracebacks as a user wants them: from the first frame on that is not of Penstock."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from penstock.errors import PenstockError

_OURS = str(Path(__file__).parent) + os.sep


def users_stacklevel() -> int:
    """The ``stacklevel`` by which a warning that the caller gives points to the code that called Penstock."""
    level, frame = 1, sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        level, frame = level + 1, frame.f_back
    return level


def users_traceback(error: BaseException) -> str:
    """An exception's traceback, without the frames of Penstock that led to the code which raised.

    Where there are no others: the whole for what nobody foresaw, none for an error of Penstock's, whose message
    says all, and the error alone for a file that cannot be compiled, which it names.
    """
    shown = error.__traceback__
    while shown is not None and shown.tb_frame.f_code.co_filename.startswith((_OURS, "<frozen importlib")):
        shown = shown.tb_next
    if shown is None and isinstance(error, PenstockError):
        return ""
    if shown is None and not isinstance(error, SyntaxError):
        shown = error.__traceback__
    return "".join(traceback.format_exception(type(error), error, shown))
