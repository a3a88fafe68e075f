"""What a user needs to read, and what each measured setting would do for it, also at sizes that were not measured.

Between two sizes a read's time and CPU time are interpolated linearly. Below the
smallest size a read takes the time of that size; above the largest, bytes come at
the rate of that size.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal, NamedTuple

import msgspec

from penstock.errors import BadSetting
from penstock.io.advice.measurements import Measurement
from penstock.io.files import DIRECT_ALIGNMENT
from penstock.io.queue import CPU_SERVED

MEASURED = "measured here"

HEADROOM = 1.1
"""Headroom over the needed rate: the speed of storage varies from minute to minute."""


def published(source: str) -> str:
    """Return the tag of a statement that others have measured."""
    return f"published ({source})"


class Reason(msgspec.Struct, frozen=True):
    """A statement and its source: ``"measured here"`` or ``"published (source)"``."""

    text: str
    tag: str = MEASURED


class Requirement(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be read, and what may be spent on it."""

    sample_bytes: int  # size of one sample, which one random read brings
    rate_bytes_per_s: float | None = None  # rate that the trainers need; None for the fastest
    access: Literal["random", "sequential"] = "random"
    """``"random"`` (one sample per read) or ``"sequential"`` (reads of any size)."""
    cores: float | None = None  # CPU cores that reading may take; None for any number
    gpu_share: float | None = None  # part of the GPU's multiprocessors that reading may take, 0 to 1; None for any
    dest: str = "host"  # ``"host"``, or a GPU such as ``"cuda:0"``
    dataset_bytes: int | None = None  # size of all samples; None if not known
    memory_bytes: int = 0  # memory that could hold them; 0 if not known

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
    """A mechanism under one setting, and what it would do for a need."""

    mech: str  # mechanism, as ``penstock.io.open.open_reader`` takes it
    qd: int  # reads under way
    threads: int  # threads; on the GPU for ``"gpu"``
    bs_bytes: int  # size of one read
    dest: str  # destination of the bytes when it was measured
    mb_s: float  # throughput within the need's cores, in 10^6 bytes of samples per second
    full_mb_s: float  # throughput with as many cores as it takes
    cpu_us_per_read: float  # CPU time of one read
    cpu_s_per_gib: float  # CPU time for each GiB of samples
    cores: float  # cores that it takes at the need's rate, or at ``mb_s`` if that is less or there is no rate
    sm_share: float | None
    """Most of the GPU's multiprocessors that it takes, 0 to 1; None if it takes none, or not known."""
    basis: Literal["measured", "interpolated", "extrapolated"]
    """``"measured"`` at this size, ``"interpolated"`` between two, ``"extrapolated"`` beyond all."""
    measured_bytes: tuple[int, ...]  # the measured sizes that this comes from
    cold: bool  # whether nothing came from the page cache
    path_taken: str  # what carries the bytes

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


_ANY_SIZE = frozenset({"posix", "object"})
"""Mechanisms that read exactly what is asked for; others read whole pages."""


def _same_place(dest: str) -> tuple[str, ...]:
    """Return the destinations whose rows stand for this one."""
    return next((same for same in (("host", "pinned"), ("cuda", "cuda:0")) if dest in same), (dest,))


class _Way(NamedTuple):
    mech: str
    qd: int
    threads: int
    dest: str
    cold: bool


class _Read(NamedTuple):
    us: float
    cpu_us: float


def predict(rows: Iterable[Measurement], need: Requirement) -> tuple[list[Setting], list[Reason]]:
    """Return a prediction for each setting that may serve this need, and remarks on rows left out."""
    usable, reasons = _usable(list(rows), need)
    ways: dict[tuple[_Way, bool], list[Measurement]] = defaultdict(list)
    for row in usable:
        cold = row.cold or row.mech != "posix"  # others bypass the page cache
        ways[_Way(row.mech, row.qd, row.threads, row.dest, cold), row.copy_included].append(row)
    choices = [choice for (way, _), of_it in ways.items() for choice in _choices(way, of_it, need)]
    return choices, reasons


def _choices(way: _Way, rows: list[Measurement], need: Requirement) -> list[Setting]:
    by_size: dict[int, list[Measurement]] = defaultdict(list)
    for row in rows:
        by_size[row.bs_bytes].append(row)
    reads = {
        size: _Read(median(1e6 / row.iops for row in same), median(row.cpu_us_per_op for row in same))
        for size, same in sorted(by_size.items())
    }
    # A sequential reader chooses its read size, so the measured ones will do.
    sizes = [need.sample_bytes] if need.access == "random" else list(reads)
    return [_choice(way, rows, reads, size, need) for size in sizes]


def _choice(way: _Way, rows: list[Measurement], reads: dict[int, _Read], asked: int, need: Requirement) -> Setting:
    unit = 1 if way.mech in _ANY_SIZE else DIRECT_ALIGNMENT
    nbytes = -(-asked // unit) * unit
    read, used = _at(reads, nbytes)
    full_mb_s = asked / read.us
    cpu_bound = 1.0 if need.cores is None else min(1.0, need.cores * read.us / max(read.cpu_us, 1e-9))
    mb_s = full_mb_s * cpu_bound
    wanted = mb_s if need.rate_mb_s is None else min(mb_s, need.rate_mb_s)
    return Setting(
        **way._asdict(),
        bs_bytes=nbytes,
        mb_s=mb_s,
        full_mb_s=full_mb_s,
        cpu_us_per_read=read.cpu_us,
        cpu_s_per_gib=read.cpu_us / asked * 2**30 / 1e6,
        cores=wanted * read.cpu_us / asked,
        sm_share=max((row.sm_share for row in rows if row.sm_share is not None), default=None),
        basis="interpolated" if len(used) > 1 else "measured" if used == (nbytes,) else "extrapolated",
        measured_bytes=used,
        path_taken=rows[0].path_taken,
    )


def _at(reads: dict[int, _Read], nbytes: int) -> tuple[_Read, tuple[int, ...]]:
    """Return a read of this size, and the sizes that it is inferred from."""
    sizes = list(reads)
    i = bisect_left(sizes, nbytes)
    if i == len(sizes):
        last = sizes[-1]
        return _Read(reads[last].us * nbytes / last, reads[last].cpu_us * nbytes / last), (last,)
    above = sizes[i]
    if i == 0 or above == nbytes:
        return reads[above], (above,)
    below = sizes[i - 1]
    part = (nbytes - below) / (above - below)
    (us, cpu_us), (more_us, more_cpu_us) = reads[below], reads[above]
    return _Read(us + part * (more_us - us), cpu_us + part * (more_cpu_us - cpu_us)), (below, above)


def _usable(rows: list[Measurement], need: Requirement) -> tuple[list[Measurement], list[Reason]]:
    """Return the rows that are about this need, and why others were left out."""
    ours = [row for row in rows if ":" not in row.mech]  # "fio:io_uring" is another tool's
    real = [row for row in ours if CPU_SERVED not in row.path_taken]
    works = [row for row in real if row.iops > 0 and row.mb_s > 0]
    reasons = _failures(real, works, need)
    if len(real) < len(ours):
        reasons.append(Reason("gpu was served by the CPU, as files are for tests: left out"))
    found = [row for row in works if row.dest in _same_place(need.dest)]
    if not found and need.dest != "host":
        found = [row for row in works if row.dest in _same_place("host")]
        if found:
            text = f"no row reads into {need.dest}: these read into host memory, without the copy"
            reasons.append(Reason(text))
    there = found
    found = [row for row in there if row.pattern == need.access]
    if not found and need.access == "sequential":
        found = there
        reasons.append(Reason("no row reads sequentially: random reads stand in, and are no faster"))
    there = found
    found = [row for row in there if row.cold or row.mech != "posix" or need.fits_memory]
    if len(found) < len(there):
        fits = "as the data do not fit there" if need.dataset_bytes else "unless --dataset says that the data fit"
        reasons.append(Reason(f"posix was measured from the page cache: left out, {fits}"))
    there = found
    found = [row for row in there if need.gpu_share is None or _share(row) <= need.gpu_share]
    if len(found) < len(there):
        least = min(_share(row) for row in there if _share(row) > (need.gpu_share or 0))
        share = "an unknown part" if least == float("inf") else f"at least {least:.0%}"
        text = f"settings that take {share} of the GPU, more than {need.gpu_share:.0%}, are left out"
        reasons.append(Reason(text))
    if not found:
        raise BadSetting(_nothing(rows, works, need, reasons))
    return found, reasons


def _share(row: Measurement) -> float:
    if row.sm_share is None:
        return 0.0 if row.gpu_threads is None else float("inf")
    return row.sm_share


def _failures(ours: list[Measurement], works: Sequence[Measurement], need: Requirement) -> list[Reason]:
    """Return which mechanisms do not work here, and which were not measured to the need's destination."""
    working = {row.mech for row in works}
    tried: dict[str, list[Measurement]] = defaultdict(list)
    for row in ours:
        if row.mech not in working:
            tried[row.mech].append(row)
    reasons: list[Reason] = []
    for mech, rows in sorted(tried.items()):
        there = [row for row in rows if row.dest in _same_place(need.dest)]
        if there:
            text = f"{mech} to {there[0].dest} does not work here: {there[0].note or 'it moved nothing'}"
        else:
            how = f"penstock bench io --mech {mech} --dest {need.dest}"
            text = f"{mech} was not measured to {need.dest}: {how} does that"
        reasons.append(Reason(text))
    return reasons


def _nothing(rows: list[Measurement], works: list[Measurement], need: Requirement, reasons: list[Reason]) -> str:
    has = sorted({f"{row.mech} {row.pattern} to {row.dest}" for row in works})
    what = f"no row of the benchmark is about {need.access} reads to {need.dest} with what may be spent"
    why = "".join(f"; {reason.text}" for reason in reasons)
    return f"{what}; of {len(rows)} rows those that worked are: {', '.join(has) or 'none'}{why}"
