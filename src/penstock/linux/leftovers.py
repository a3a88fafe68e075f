"""Removes temporary folders of processes that were killed."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from penstock.linux.files import taken

_NEW_S = 60.0


def remove_abandoned(prefix: str) -> None:
    """Remove temporary folders whose names begin so, and which nobody has locked any more (``files.taken``).

    A new one may not be locked yet, and stays.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):  # it is another user's, or its owner lives
            if folder.stat().st_mtime < time.time() - _NEW_S:
                os.close(taken(folder, os.O_RDONLY))
                shutil.rmtree(folder)
