"""A folder that one process at a time works in."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import BadSetting


@contextmanager
def held(folder: Path, of: str, doing: str) -> Generator[None]:
    """Hold a folder of something for this process alone; it is made if need be, and who holds it may remove it.

    Raises:
        BadSetting: it cannot be made; or another process holds it, which is "comparing in" it, or the like.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise BadSetting(f"{folder} cannot be a folder of {of}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(fd), folder.stat()):
                raise BlockingIOError
        except (BlockingIOError, FileNotFoundError):  # it is being held, or was until now
            raise BadSetting(f"another process is {doing} {folder}: wait for it, or give another name") from None
        yield
    finally:
        os.close(fd)
