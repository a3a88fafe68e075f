"""What a feeder says of a source that failed."""

from __future__ import annotations

import re


def cause(error: Exception) -> str:
    """An exception's type and message; of one that a torch worker raised, those of the original and where."""
    caught = re.match(r"Caught (\w+) (in .*?)\.\nOriginal Traceback", str(error))
    if caught is None:
        return f"{type(error).__name__}: {error}"
    kind, where = caught.groups()
    *_, original = re.split(rf"\n(?=[\w.]*\b{kind}\b)", str(error).rstrip())
    return f"{original} ({where})"
