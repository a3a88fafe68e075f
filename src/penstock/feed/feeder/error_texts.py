"""How a feeder describes the failure of its source."""

from __future__ import annotations

import re


def cause(error: Exception) -> str:
    """Return an exception's type and message; for a torch worker's, those of the original, and which worker."""
    caught = re.match(r"Caught (\w+) (in .*?)\.\nOriginal Traceback", str(error))
    if caught is None:
        return f"{type(error).__name__}: {error}"
    kind, where = caught.groups()
    *_, original = re.split(rf"\n(?=[\w.]*\b{kind}\b)", str(error).rstrip())
    return f"{original} ({where})"
