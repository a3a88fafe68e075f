"""What a user needs to read, and what a mechanism under one setting would do for it."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from penstock.errors import BadSetting

MEASURED = "measured here"

HEADROOM = 1.1
"""Headroom over the needed rate: the speed of storage varies from minute to minute."""


def published(source: str) -> str:
    """Return the tag of a statement that others have measured."""
    return f"published ({source})"


class Reason(msgspec.Struct, frozen=True):
    """A statement and its source: ``"measured here"`` or ``"published (source)"``."""

    text: str
    tag: str


class Requirement(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be read, and what may be spent on it.

    Attributes:
        sample_bytes: Size of one sample, which one random read brings.
        rate_bytes_per_s: Rate that the trainers need; None for the fastest.
        access: ``"random"`` (one sample per read) or ``"sequential"`` (reads of any size).
        cores: CPU cores that reading may take; None for any number.
        gpu_share: Part of the GPU's multiprocessors that reading may take, 0 to 1; None for any.
        dest: ``"host"``, or a GPU such as ``"cuda:0"``.
        dataset_bytes: Size of all samples; None if not known.
        memory_bytes: Memory that could keep them; 0 if not known.

    Raises:
        BadSetting: a value is out of range, or all data are less than a sample.
    """

    sample_bytes: int
    rate_bytes_per_s: float | None = None
    access: Literal["random", "sequential"] = "random"
    cores: float | None = None
    gpu_share: float | None = None
    dest: str = "host"
    dataset_bytes: int | None = None
    memory_bytes: int = 0

    def __post_init__(self) -> None:
        if self.access not in ("random", "sequential"):
            raise BadSetting(f"access={self.access!r}: it must be random or sequential")
        if not re.fullmatch(r"host|cuda(:\d+)?", self.dest):
            raise BadSetting(f"dest={self.dest!r}: it must be host, or a GPU such as cuda:0")
        for name in ("sample_bytes", "rate_bytes_per_s", "cores", "dataset_bytes"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise BadSetting(f"{name}={value!r}: it must be a number above 0")
        if self.dataset_bytes is not None and self.dataset_bytes < self.sample_bytes:
            raise BadSetting(
                f"dataset_bytes={self.dataset_bytes:,} is less than one sample of {self.sample_bytes:,} bytes: "
                "give the size of all samples together"
            )
        if self.gpu_share is not None and not 0 <= self.gpu_share <= 1:
            raise BadSetting(f"gpu_share={self.gpu_share!r}: it must lie between 0 and 1 (0% and 100%)")

    @property
    def rate_mb_s(self) -> float | None:
        """The rate in 10^6 bytes per second."""
        return None if self.rate_bytes_per_s is None else self.rate_bytes_per_s / 1e6

    @property
    def fits_memory(self) -> bool:
        """Whether all the data stay in memory once they have been read."""
        return self.dataset_bytes is not None and self.dataset_bytes <= self.memory_bytes


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A mechanism under one setting, and what it would do for a need.

    Attributes:
        mech: Mechanism, as ``penstock.io.open.open_reader`` takes it.
        qd: Reads under way.
        threads: Threads; on the GPU for ``"gpu"``.
        bs_bytes: Size of one read.
        dest: Destination of the bytes when it was measured.
        mb_s: Throughput within the need's cores, in 10^6 bytes of samples per second.
        full_mb_s: Throughput with as many cores as it takes.
        cpu_us_per_read: CPU time of one read.
        cpu_s_per_gib: CPU time for each GiB of samples.
        cores: Cores that it takes at the need's rate, or at ``mb_s`` if that is less or there is no rate.
        sm_share: Most of the GPU's multiprocessors that it takes, 0 to 1; None if it takes none, or not known.
        basis: ``"measured"`` at this size, ``"interpolated"`` between two, ``"extrapolated"`` beyond all.
        measured_bytes: The measured sizes that this comes from.
        cold: Whether nothing came from the page cache.
        path_taken: What carries the bytes.
    """

    mech: str
    qd: int
    threads: int
    bs_bytes: int
    dest: str
    mb_s: float
    full_mb_s: float
    cpu_us_per_read: float
    cpu_s_per_gib: float
    cores: float
    sm_share: float | None
    basis: Literal["measured", "interpolated", "extrapolated"]
    measured_bytes: tuple[int, ...]
    cold: bool
    path_taken: str

    @property
    def full_cores(self) -> float:
        """Cores that it takes at ``full_mb_s``."""
        return self.cores_at(self.full_mb_s)

    def cores_at(self, mb_s: float) -> float:
        """Return the cores that it takes at a rate."""
        return mb_s * 1e6 / 2**30 * self.cpu_s_per_gib

    def __str__(self) -> str:
        threads = f", {self.threads} threads" if self.threads > 1 else ""
        return f"{self.mech}, depth {self.qd}{threads}"
