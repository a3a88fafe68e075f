"""The files that a benchmark is saved to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from penstock.basics.packages import require
from penstock.basics.terminal import printable
from penstock.errors import BadSetting

_PICTURES = (".png", ".svg", ".pdf")


def check_writable(file: Path) -> None:
    """Raise BadSetting if a file cannot be written, before minutes of measuring."""
    folder = file.absolute().parent
    if not folder.is_dir():
        raise BadSetting(f"{file}: its directory does not exist")
    if file.is_dir():
        raise BadSetting(f"{file} is a directory; give the name of a file")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise BadSetting(f"you may not write {file}; give another place")


def check_picture(file: Path) -> None:
    """Check a picture's name, and that matplotlib is installed, before anything is measured.

    Raises:
        BadSetting: the name has no known suffix.
        PackageMissing: matplotlib is not installed.
    """
    if file.suffix.lower() not in _PICTURES:
        raise BadSetting(f"--plot {file}: its name ends in one of {', '.join(_PICTURES)}")
    require("--plot", "demo", "matplotlib")


def saved(file: Path, write: Callable[[], object], console: Console) -> None:
    """Write a file, and say so.

    Raises:
        BadSetting: it could not be written.
    """
    try:
        write()
    except OSError as error:
        raise BadSetting(f"{file} could not be written: {error.strerror}") from None
    console.print(f"saved: {printable(str(file))}", soft_wrap=True)
