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
    """A measurement of one mechanism under one setting."""

    mech: str
    """``"posix"``, ``"direct"``, ``"uring"``, ``"gds"``, ``"gpu"``, ``"object"``, or another tool's, such as
    ``"fio:io_uring"``."""
    bs_bytes: int  # size of one read
    qd: int  # reads under way
    threads: int  # threads of the process that waited for the kernel; on the device for ``"gpu"``
    pattern: str  # ``"random"`` or ``"sequential"``
    dest: str = "host"  # ``"host"``, ``"pinned"``, or a GPU such as ``"cuda:0"``
    cold: bool = False  # whether the page cache was empty of the file
    runtime_s: float = 0.0  # how long it was measured
    iops: float = 0.0  # reads per second
    mb_s: float = 0.0  # throughput in 10^6 bytes per second
    p50_us: float | None = None
    """Median time from submission to completion; None where the tool does not report it."""
    p99_us: float | None = None  # 99th percentile
    p999_us: float | None = None  # 99.9th percentile
    cpu_us_per_op: float = 0.0  # CPU time of the process, user and kernel, for each read
    cpu_s_per_gib: float = 0.0  # CPU time for each GiB
    cores_busy: float = 0.0  # CPU time over elapsed time
    gpu_threads: int | None = None  # threads of the GPU that began reads; None if it began none
    sm_share: float | None = None
    """Part of the GPU's multiprocessors that were busy, 0 to 1, or the most that can have been; the note names it.
    None if not known."""
    copy_included: bool = False  # whether these numbers include a copy to the GPU
    path_taken: str = ""  # what carried the bytes
    repeat: int = 0  # number of the repetition, from 0
    note: str = ""  # what to know about the row; the error, if there is no measurement
    machine: str = ""  # CPU, cores, GPUs and kernel, in words
    date: str = ""  # when it was measured, UTC


class Benchmark(msgspec.Struct, frozen=True):
    """Content of a file of ``penstock bench io``."""

    rows: list[Measurement]

    @property
    def origin(self) -> str:
        """Where and when it was measured, for a person; empty if not known."""
        return ", ".join(part for part in (self.rows[0].machine, self.rows[0].date) if part)


def read_benchmark(path: str | Path) -> Benchmark:
    """Read a file of rows: a list of them, or an object that has them under ``rows``."""
    try:
        fd, _ = open_file(str(path), direct=False)
        with open(fd, "rb") as file:
            text = file.read()
    except OSError as error:
        raise BadSetting(f"{path} cannot be read: {error.strerror}") from None
    try:
        found = msgspec.json.decode(text, type=Benchmark | list[Measurement])
    except ValueError as error:
        raise BadSetting(
            f"{path} is no file of penstock bench io ({error}); give what its --json has saved"
        ) from None
    benchmark = found if isinstance(found, Benchmark) else Benchmark(found)
    if not benchmark.rows:
        raise BadSetting(f"{path} holds no row; measure with: penstock bench io PATH --json FILE")
    return benchmark


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
    return read_benchmark(path).rows if path.exists() else None


def save(rows: list[Measurement], data: str | Path) -> Path:
    """Keep what was measured on ``data``'s file system, replacing what was kept; return the path."""
    path = saved_at(data)
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as half:
        half.write_bytes(msgspec.json.encode(rows))
    return path
