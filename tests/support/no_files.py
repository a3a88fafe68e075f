"""What may lie where a file is expected."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path


def _bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


NO_FILES: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "socket": _bound,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "link to nothing": lambda path: path.symlink_to("nothing"),
}
"""Puts one at a path, by its name."""
