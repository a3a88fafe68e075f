"""What is read: an existing file or device, an object, or a temporary scratch file."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import numpy as np

from penstock.basics.sizes import size_text
from penstock.errors import BadSetting
from penstock.io.files import disk_path, open_file

_PIECE_BYTES = 16 << 20


class Target(NamedTuple):
    """A file, device or object to be read, never written.

    Attributes:
        path: Path that a reader opens.
        name: Name for a person.
        nbytes: Its size; None for an object or a disk under BaM's kernel module, whose size the reader knows.
    """

    path: str
    name: str
    nbytes: int | None

    @property
    def is_file(self) -> bool:
        return self.nbytes is not None


def is_url(path: str) -> bool:
    """Whether a path is a URL of an object."""
    return re.match(r"[a-z][a-z0-9+.-]*://", path, re.IGNORECASE) is not None


@contextmanager
def target(path: str, scratch_bytes: int) -> Generator[Target]:
    """Open what is to be read.

    In a directory, make a file of random bytes without a name: it is gone with
    this process, however that ends.

    Raises:
        BadSetting: it does not exist, is empty, must not be read, or there is no room for a scratch file.
    """
    if is_url(path) or disk_path(path):
        yield Target(path, path, None)
        return
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = error.strerror if isinstance(error, OSError) else error
        raise BadSetting(f"{path}: {why}. Give a file to read, or a directory for a scratch file") from None
    if stat.S_ISDIR(mode):
        yield from _scratch(path, scratch_bytes)
    elif stat.S_ISREG(mode) or stat.S_ISBLK(mode):
        yield Target(path, path, _size(path))
    else:
        raise BadSetting(f"{path} is neither a file, nor a block device, nor a directory")


def _size(path: str) -> int:
    try:
        fd, nbytes = open_file(path, direct=False)
    except OSError as error:
        raise BadSetting(f"{path} cannot be read: {error.strerror}") from None
    os.close(fd)
    if nbytes == 0:
        raise BadSetting(
            f"{path} is empty: there is nothing to read. Give a directory to have a scratch file made"
        )
    return nbytes


def _scratch(directory: str, nbytes: int) -> Generator[Target]:
    if os.path.realpath(directory).split("/")[1:2] == ["dev"]:
        raise BadSetting(f"{directory} lies under /dev, where this writes nothing; give a directory on a disk")
    free = shutil.disk_usage(directory).free
    if nbytes > 0.9 * free:
        raise BadSetting(
            f"{directory} has {size_text(free)} free: too little for a scratch file of {size_text(nbytes)}; "
            "give a smaller --size"
        )
    with ExitStack() as stack:
        try:
            file = stack.enter_context(tempfile.TemporaryFile(dir=directory))
            random = np.random.default_rng()
            for start in range(0, nbytes, _PIECE_BYTES):
                file.write(random.bytes(min(_PIECE_BYTES, nbytes - start)))
            file.flush()
            os.fsync(file.fileno())
        except OSError as error:
            raise BadSetting(f"{directory}: no scratch file can be written there: {error.strerror}") from None
        name = f"a scratch file of {size_text(nbytes)} in {directory}"
        yield Target(f"/proc/{os.getpid()}/fd/{file.fileno()}", name, nbytes)
