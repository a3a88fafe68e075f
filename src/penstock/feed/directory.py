"""The directory of a user's feeds: finds it, checks that it is private, opens it."""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.errors import DirectoryUnusable, InsecureDirectory
from penstock.linux.files import Descriptors

_ENTER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_IN_THE_WAY = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO)


def directory() -> Path:
    """Return the directory of this user's feeds, made with mode 0700 if needed.

    It is ``$PENSTOCK_DIR``, else ``penstock`` in ``$XDG_RUNTIME_DIR``, else
    ``/tmp/penstock-<uid>``. An ``XDG_RUNTIME_DIR`` that belongs to another user,
    as ``sudo -E`` leaves it, is not used.
    """
    path = _chosen()
    with usable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _opened(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) as above:
            _check_above(path.parent, os.fstat(above))
            with suppress(FileExistsError):
                os.mkdir(path.name, 0o700, dir_fd=above)
            # Checked before it is opened: open() would raise ENOTDIR or EACCES, and not why.
            _check(path, os.stat(path.name, dir_fd=above, follow_symlinks=False))
    with usable(path), entered(path):
        return path


@contextmanager
def entered(path: Path) -> Generator[int]:
    """Open the directory of feeds; its files are opened relative to this descriptor.

    Whoever renames the directory, and puts another in its place, cannot redirect
    what is done here.
    """
    with _opened(path, _ENTER) as where:
        _check(path, os.fstat(where))
        yield where


@contextmanager
def usable(path: Path) -> Generator[None]:
    """Turn an ``OSError`` in the directory of feeds into an error with a remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in _IN_THE_WAY:
            raise InsecureDirectory(
                f"what lies in the place of {error.filename or 'a file'} in {path} is not Penstock's "
                f"({error.strerror}): remove it, or set PENSTOCK_DIR to another directory"
            ) from None
        raise DirectoryUnusable(
            f"feeds cannot be kept in {path}: {error.strerror}. Make room there, or set PENSTOCK_DIR to a "
            "directory of your own on another disk"
        ) from error


def _chosen() -> Path:
    if chosen := os.environ.get("PENSTOCK_DIR"):
        return Path(chosen)
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        with suppress(OSError):
            if os.stat(runtime).st_uid == os.getuid() and os.access(runtime, os.W_OK):
                return Path(runtime) / "penstock"
    return Path(f"/tmp/penstock-{os.getuid()}")


@contextmanager
def _opened(path: Path, flags: int) -> Generator[int]:
    opened = Descriptors()
    try:
        yield opened.open(os.open, path, flags)
    finally:
        opened.close()


def _check(path: Path, seen: os.stat_result) -> None:
    if not stat.S_ISDIR(seen.st_mode):
        raise InsecureDirectory(f"{path} is not a directory; remove it, or set PENSTOCK_DIR to another")
    if seen.st_uid != os.getuid():
        raise _of_another(path, seen.st_uid)
    if seen.st_mode & 0o077:
        raise InsecureDirectory(
            f"{path} has mode {stat.S_IMODE(seen.st_mode):04o}, others may enter it: "
            f"chmod 700 {shlex.quote(str(path))}"
        )


def _check_above(path: Path, seen: os.stat_result) -> None:
    """Raise InsecureDirectory if another user could replace a directory in this one."""
    as_tmp = seen.st_mode & stat.S_ISVTX and seen.st_mode & stat.S_IWOTH
    if seen.st_uid not in (0, os.getuid()) and not as_tmp:
        raise _of_another(path, seen.st_uid)


def _of_another(path: Path, uid: int) -> InsecureDirectory:
    return InsecureDirectory(
        f"{path} belongs to uid {uid}, you are uid {os.getuid()}: whoever owns it could read your "
        "batches. Set PENSTOCK_DIR to a directory of your own"
    )
