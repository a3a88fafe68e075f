"""Files of ``penstock bench io``: reads one, and keeps this machine's own."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock.errors import BadSetting
from penstock.io.advice.measurement import Measurement
from penstock.io.files import open_file
from penstock.linux.cache_folder import cache_folder


class Benchmark(msgspec.Struct, frozen=True):
    """Content of a file of ``penstock bench io``."""

    rows: list[Measurement]

    @property
    def origin(self) -> str:
        """Where and when it was measured, for a person; empty if not known."""
        return ", ".join(part for part in (self.rows[0].machine, self.rows[0].date) if part)


def read_benchmark(path: str | Path) -> Benchmark:
    """Read a file of rows: a list of them, or an object that has them under ``rows``.

    Raises:
        BadSetting: it cannot be read, is no such file, or holds no row.
    """
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
    part = path.with_suffix(f".{os.getpid()}")
    try:
        part.write_bytes(msgspec.json.encode(rows))
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return path
