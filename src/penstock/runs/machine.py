"""Describes the machine that figures were measured on, without its name or owner."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from penstock._version import __version__

_LIBRARIES = ("numpy", "msgspec", "torch", "simplejpeg", "opencv-python-headless")


class Machine(msgspec.Struct, frozen=True):
    """Hardware, system and versions at one moment."""

    date: str
    cpu: str
    cores: int  # cores that this process may run on
    memory_bytes: int
    gpus: list[str]
    system: str
    kernel: str
    python: str
    libraries: dict[str, str]
    penstock: str
    load_before: float  # runnable processes over the last minute; near 0 if the machine was idle


def describe() -> Machine:
    """Describe this machine now."""
    return Machine(
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus=_gpus(),
        system=platform.system(),
        kernel=platform.release().split("-")[0],
        python=platform.python_version(),
        libraries=_versions(),
        penstock=__version__,
        load_before=round(os.getloadavg()[0], 2),
    )


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def _gpus() -> list[str]:
    names: list[str] = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        with suppress(OSError):
            lines = path.read_text().splitlines()
            names.extend(line.split(":", 1)[1].strip() for line in lines if line.startswith("Model:"))
    return names


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in _LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
