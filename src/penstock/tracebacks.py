"""Tracebacks as a user wants them: from the first frame on that is not of Penstock."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

_OURS = str(Path(__file__).parent) + os.sep


def users_traceback(error: BaseException) -> str:
    """An exception's traceback, without the frames of Penstock that led to the code which raised.

    Where there are no others it is the whole, or nothing if a file could not be compiled, as that error names it.
    """
    shown = error.__traceback__
    while shown is not None and shown.tb_frame.f_code.co_filename.startswith((_OURS, "<frozen importlib")):
        shown = shown.tb_next
    if shown is None and not isinstance(error, SyntaxError):
        shown = error.__traceback__
    return "".join(traceback.format_exception(type(error), error, shown))
