"""The files that a benchmark is saved to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from penstock.errors import BadSetting
from penstock.terminal import printable


def check_writable(file: Path) -> None:
    """Before anything is measured: nobody waits for minutes to be told."""
    folder = file.absolute().parent
    if not folder.is_dir():
        raise BadSetting(f"{file}: its directory does not exist")
    if file.is_dir():
        raise BadSetting(f"{file} is a directory; give the name of a file")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise BadSetting(f"you may not write {file}; give another place")


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
