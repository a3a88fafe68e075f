"""Disks under BaM's kernel module, which a GPU could ring by itself: found, and refused with what is missing."""

from __future__ import annotations

from glob import glob

from penstock.errors import ReaderUnavailable

_DEVICES = "/dev/libnvm"


def devices() -> list[str]:
    """The disks that the module has taken from the kernel's own driver."""
    return sorted(glob(_DEVICES + "*"))


def refuse(path: str) -> None:
    """Raise if this path is such a disk: Penstock has no code that drives one.

    Raises:
        ReaderUnavailable: it is one.
    """
    if not path.startswith(_DEVICES):
        return
    here = ", ".join(devices()) or "none"
    raise ReaderUnavailable(
        f"{path}: Penstock does not drive disks through BaM's kernel module (here: {here}). It lacks the mapping "
        "of queues and destination to bus addresses (NVM_MAP_HOST_MEMORY, NVM_MAP_DEVICE_MEMORY), the reset of "
        "the controller and its admin queue, and the creation of queues. Mount the disk and read its files: "
        "mech='gpu' then reads them by way of the CPU"
    )
