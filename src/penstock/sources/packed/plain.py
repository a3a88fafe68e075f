"""Plain reads of a packed data set's files, through the page cache."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from penstock.contracts import ByteArray
from penstock.errors import ReadFailed
from penstock.io.files import open_file


def read_bytes(path: Path, offset: int = 0, nbytes: int | None = None) -> ByteArray:
    """Read bytes of a file from ``offset``, up to its end unless ``nbytes`` come before.

    Raises:
        FileNotFoundError: there is no such file.
        ReadFailed: the system refuses, the disk fails, or it is no regular file.
    """
    try:
        fd, size = open_file(str(path), direct=False)
        try:
            content = np.empty(max(0, size - offset) if nbytes is None else nbytes, np.uint8)
            done = 0
            while came := os.preadv(fd, [content[done:].data], offset + done):
                done += came
            return content[:done]
        finally:
            os.close(fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ReadFailed(f"{path} cannot be read: {error.strerror}", str(path), offset, error.errno or 0) from None
