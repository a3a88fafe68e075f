"""Names of disks under BaM's kernel module: ``/dev/libnvm0``, and ``/dev/libnvm0n2`` for another namespace."""

from __future__ import annotations

import re
from glob import glob
from typing import NamedTuple

from penstock.errors import ReaderUnavailable

_PATH = re.compile(r"(/dev/libnvm\d+)(?:n([1-9]\d*))?")


class DiskPath(NamedTuple):
    """A namespace of a disk.

    Attributes:
        device: The kernel module's file.
        nsid: Number of the namespace, from 1; the module has no files for namespaces, only Penstock names them.
    """

    device: str
    nsid: int


def disk_path(path: str) -> DiskPath | None:
    """Parse the path of a disk under the module; None for another path."""
    named = _PATH.fullmatch(path)
    return DiskPath(named[1], int(named[2] or 1)) if named else None


def devices() -> list[str]:
    """List the disks that the module has taken from the kernel's own driver."""
    return sorted(path for path in glob("/dev/libnvm*") if disk_path(path))


def refuse_disk(path: str) -> None:
    """Refuse a disk under the module.

    Raises:
        ReaderUnavailable: the path names such a disk.
    """
    if disk_path(path):
        raise ReaderUnavailable(
            f"{path} is a disk under BaM's kernel module: the kernel has no blocks and no files of it",
            "read it with mech='gpu'",
        )
