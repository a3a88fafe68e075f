"""What ``penstock bench io`` measures: a row for each mechanism and setting, and files of rows."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock.errors import BadSetting
from penstock.io.files import open_file
from penstock.linux.files import cache_folder, written_whole


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One mechanism under one setting, and its figures; 0 before it is measured, or where that failed."""

    mech: str  # as ``penstock.io.open.open_reader`` takes it; another tool's has a colon
    bs_bytes: int  # size of one read
    qd: int  # reads under way
    threads: int  # threads that wait for the kernel, or begin reads on the GPU for ``"gpu"``
    pattern: str  # ``"random"`` or ``"sequential"``
    dest: str = "host"  # ``"host"``, ``"pinned"``, or a GPU such as ``"cuda:0"``
    cold: bool = False  # whether the page cache was empty of the file
    iops: float = 0.0  # reads per second
    mb_s: float = 0.0  # throughput in 10^6 bytes per second
    cpu_us_per_op: float = 0.0  # CPU time of the process, user and kernel, for each read
    cpu_s_per_gib: float = 0.0  # CPU time for each GiB
    sm_share: float | None = None  # busy part of the GPU's multiprocessors, 0 to 1, by NVML; None if not known
    path_taken: str = ""  # what carried the bytes
    repeat: int = 0  # number of the repetition, from 0
    note: str = ""  # what to know about the row; the error, if there is no measurement
    machine: str = ""  # CPU, cores, GPUs and kernel, in words
    date: str = ""  # when it was measured, UTC

    def __str__(self) -> str:
        threads = f", {self.threads} threads" if self.threads > 1 else ""
        return f"{self.mech}, {self.bs_bytes:,} bytes, depth {self.qd}{threads}, {self.pattern}, to {self.dest}"

    def measured(self, ops: int, elapsed_s: float, cpu_s: float) -> Measurement:
        """Return this row with the figures of ``ops`` reads, in six digits: the rest is noise."""
        figures = {
            "iops": ops / elapsed_s,
            "mb_s": ops * self.bs_bytes / elapsed_s / 1e6,
            "cpu_us_per_op": 1e6 * cpu_s / ops,
            "cpu_s_per_gib": cpu_s / (ops * self.bs_bytes) * 2**30,
        }
        return msgspec.structs.replace(self, **{name: float(f"{each:.6g}") for name, each in figures.items()})


def read_benchmark(path: str | Path) -> list[Measurement]:
    """Read a file of rows."""
    try:
        fd, _ = open_file(str(path), direct=False)
        with open(fd, "rb") as file:
            rows = msgspec.json.decode(file.read(), type=list[Measurement])
    except OSError as error:
        raise BadSetting(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BadSetting(
            f"{path} is no file of penstock bench io ({error}); give what its --json has saved"
        ) from None
    if not rows:
        raise BadSetting(f"{path} holds no row; measure with: penstock bench io PATH --json FILE")
    return rows


def saved_at(data: str | Path) -> Path:
    """Return the path at which the benchmark of ``data``'s file system is kept, if there is one.

    One file for each machine and file system, in ``$XDG_CACHE_HOME/penstock``.
    """
    return cache_folder() / f"io-{platform.node()}-{_file_system_id(data)}.json"


def _file_system_id(data: str | Path) -> str:
    """Return a file system's UUID, which lasts from boot to boot; without one, the kernel's id."""
    device = os.stat(data).st_dev
    for link in Path("/dev/disk/by-uuid").glob("*"):
        with suppress(OSError):
            if link.stat().st_rdev == device:
                return link.name
    return f"{os.statvfs(data).f_fsid:x}"


def saved_rows(data: str | Path) -> list[Measurement] | None:
    """Return what was measured on ``data``'s file system; None if nothing was."""
    path = saved_at(data)
    return read_benchmark(path) if path.exists() else None


def save(rows: list[Measurement], data: str | Path) -> Path:
    """Keep what was measured on ``data``'s file system, replacing what was kept; return the path."""
    path = saved_at(data)
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as half:
        half.write_bytes(msgspec.json.encode(rows))
    return path
