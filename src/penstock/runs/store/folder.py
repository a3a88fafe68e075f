"""The folder of the store: where it is, that it is this user's alone, what its runs take, and which of them go."""

from __future__ import annotations

import os
import shlex
import sqlite3
import stat
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from penstock.errors import InsecureDirectory, StoreUnusable
from penstock.linux.files import file_system, user_folder
from penstock.runs.record import RunRecord

_OVER_A_NETWORK = {"9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "smb3"}
_REMEDY = "set PENSTOCK_STORE, or --store, to a folder of your own"


def chosen_folder(variable: str = "PENSTOCK_STORE", name: str = "runs") -> Path:
    """Return the folder that a variable names, else ``penstock/NAME`` in the user's data directory.

    That is ``$XDG_DATA_HOME``, or ``~/.local/share``.
    """
    if chosen := os.environ.get(variable):
        return Path(chosen).absolute()
    return user_folder("XDG_DATA_HOME", "~/.local/share") / name


def private_folder(folder: Path) -> None:
    """Make a folder with mode 0700, or check that it is this user's alone."""
    with usable(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        seen = folder.stat()
        if seen.st_uid != os.getuid():
            raise InsecureDirectory(
                f"the store {folder} belongs to uid {seen.st_uid}, you are uid {os.getuid()}: {_REMEDY}"
            )
        if seen.st_mode & 0o077 and any(folder.iterdir()):
            raise InsecureDirectory(
                f"the store {folder} has mode {stat.S_IMODE(seen.st_mode):04o}, others may enter it: "
                f"chmod 700 {shlex.quote(str(folder))}, or {_REMEDY}"
            )
        if seen.st_mode & 0o077:
            folder.chmod(0o700)


@contextmanager
def usable(path: Path) -> Generator[None]:
    """Turn an error at a file of the store, such as a full disk, into one with a remedy."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        why = getattr(error, "strerror", None) or error
        raise StoreUnusable(
            f"the store cannot use {path}: {why}. Make room if its disk is full, or {_REMEDY}"
        ) from error


def network_file_system(folder: Path, mounts: Path | None = None) -> str | None:
    """Return the type of the file system that a folder lies on, if it is one over a network or in user space."""
    kind = file_system(folder, mounts)
    return kind if kind in _OVER_A_NETWORK or kind.split(".")[0] == "fuse" else None


KEPT_DAYS = 7
"""For how long a deleted run can be brought back."""


class Removed(NamedTuple):
    """A run that was removed, and the bytes that it took on the disk."""

    run: RunRecord
    nbytes: int


def forgotten_s() -> float:
    """Return the moment before which deleted runs cannot be brought back, in seconds since 1970."""
    return time.time() - KEPT_DAYS * 86400


def disk_bytes(folder: Path) -> int:
    """Return what a folder's files take on the disk."""
    nbytes = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            nbytes += path.lstat().st_blocks * 512
    return nbytes


def pruned(
    runs: Sequence[Removed], ends: Mapping[str, float], keep_s: float | None, max_bytes: int | None
) -> list[Removed]:
    """Choose what is removed, the oldest first, until those left are young and small enough.

    ``ends`` says when those ended that may be removed, by their ids, in seconds since 1970. A run is kept for
    ``keep_s`` after its end, if the folders of all take ``max_bytes`` at most.
    """
    total = sum(nbytes for _, nbytes in runs)
    chosen: list[Removed] = []
    for each in sorted((each for each in runs if each.run.id in ends), key=lambda each: ends[each.run.id]):
        too_old = keep_s is not None and ends[each.run.id] < time.time() - keep_s
        if too_old or (max_bytes is not None and total > max_bytes):
            chosen.append(each)
            total -= each.nbytes
    return chosen
