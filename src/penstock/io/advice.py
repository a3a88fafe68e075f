"""Which mechanism to read with, under which setting, what that costs, and what to do if none suffices.

Between two measured sizes a read's time and CPU time are interpolated. Below the smallest size a read takes
the time of that size; above the largest, bytes come at the rate of that size.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from statistics import median
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from penstock.basics.sizes import size_text
from penstock.errors import BadSetting
from penstock.io.files import DIRECT_ALIGNMENT
from penstock.io.gds import PEER_TO_PEER
from penstock.io.measurements import Measurement
from penstock.io.open import MECHANISMS
from penstock.io.queue import CPU_SERVED

HEADROOM = 1.1
"""Headroom over the needed rate: the speed of storage varies from minute to minute."""
SAME = 1.03
"""Figures whose ratio is at most this are taken to be equal."""
_ANY_SIZE = frozenset({"posix", "object"})
"""Mechanisms that read exactly what is asked for; others read whole pages."""
_SAME_PLACE = {"host": ("host", "pinned"), "cuda": ("cuda", "cuda:0"), "cuda:0": ("cuda", "cuda:0")}


class Requirement(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be read, and what may be spent on it."""

    sample_bytes: int  # size of one sample, which one random read brings
    rate_bytes_per_s: float | None = None  # rate that the trainers need; None for the fastest
    access: Literal["random", "sequential"] = "random"  # one sample a read; or reads of any size
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


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A mechanism under one setting, and what it would do for a need."""

    mech: str  # mechanism, as ``penstock.io.open.open_reader`` takes it
    qd: int  # reads under way
    threads: int  # threads; on the GPU for ``"gpu"``
    bs_bytes: int  # size of one read
    dest: str  # destination of the bytes when it was measured
    mb_s: float  # throughput within the need's cores, in 10^6 bytes of samples per second
    full_mb_s: float  # throughput with as many cores as it takes
    cpu_s_per_gib: float  # CPU time for each GiB of samples
    cores: float  # cores that it takes at the need's rate, or at ``mb_s`` if that is less or there is no rate
    sm_share: float | None  # most of the GPU's multiprocessors that it takes, 0 to 1; None if none, or not known
    basis: Literal["measured", "interpolated", "extrapolated"]  # at this size, between two, or beyond all

    def cores_at(self, mb_s: float) -> float:
        """Return the cores that it takes at a rate."""
        return mb_s * 1e6 / 2**30 * self.cpu_s_per_gib

    def __str__(self) -> str:
        threads = f", {self.threads} threads" if self.threads > 1 else ""
        return f"{self.mech}, depth {self.qd}{threads}"


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The setting to read with for a need, and why."""

    need: Requirement
    choice: Setting  # the setting to read with
    suffices: bool  # whether it is expected to reach the need's rate; true without a rate
    headroom: float | None  # throughput beyond that rate, as a part of it; below 0 if it falls short
    reasons: list[str]
    alternatives: list[Setting]  # the best setting of each other mechanism
    remedies: list[str]  # what to do if nothing suffices; empty if the choice does


def advise(rows: Iterable[Measurement], need: Requirement) -> Advice:
    """Choose the best setting for a need, from measurements.

    With a rate: of the settings that reach it with a tenth to spare, the one that takes the least CPU time; if
    none does, the fastest, which may still reach it. Without a rate: the fastest within the cores. Among equals
    (3%) the one with less CPU time, or, if that was compared, with fewer reads under way.
    """
    usable, left_out = _usable([*rows], need)
    choices = _settings(usable, need)
    choice = _best(choices, need)
    rate = need.rate_mb_s
    suffices = rate is None or choice.mb_s >= rate
    others = {each.mech for each in choices} - {choice.mech}
    best = [_best([each for each in choices if each.mech == mech], need) for mech in sorted(others)]
    return Advice(
        need=need,
        choice=choice,
        suffices=suffices,
        headroom=None if rate is None else choice.mb_s / rate - 1,
        reasons=[*_why(choice, choices, need), *left_out],
        alternatives=sorted(best, key=lambda each: each.mb_s, reverse=True),
        remedies=[] if rate is None or suffices else [*_remedies(usable, choices, choice, need, rate)],
    )


def _best(choices: Sequence[Setting], need: Requirement) -> Setting:
    if enough := _enough(choices, need):
        least = min(each.cpu_s_per_gib for each in enough)
        equals = [each for each in enough if each.cpu_s_per_gib <= least * SAME]
        return min(equals, key=lambda each: (each.qd, each.threads, each.cpu_s_per_gib))
    choices = [each for each in choices if each.mb_s >= (need.rate_mb_s or 0.0)] or choices
    most = max(each.mb_s for each in choices)
    equals = [each for each in choices if each.mb_s * SAME >= most]
    return min(equals, key=lambda each: (each.cpu_s_per_gib, each.qd, each.threads))


def _enough(choices: Sequence[Setting], need: Requirement) -> list[Setting]:
    """Return the settings that reach the rate with room to spare."""
    rate = need.rate_mb_s
    return [] if rate is None else [each for each in choices if each.mb_s >= rate * HEADROOM]


def _settings(rows: Iterable[Measurement], need: Requirement) -> list[Setting]:
    """Return what each measured setting would do for a need."""
    of_setting: dict[tuple[str, int, int, str, bool], list[Measurement]] = defaultdict(list)
    for row in rows:
        cold = row.cold or row.mech != "posix"  # others bypass the page cache
        of_setting[row.mech, row.qd, row.threads, row.dest, cold].append(row)
    # A sequential reader chooses its read size, so the measured ones will do.
    return [
        _setting(same, asked, need)
        for same in of_setting.values()
        for asked in ([need.sample_bytes] if need.access == "random" else sorted({row.bs_bytes for row in same}))
    ]


def _setting(rows: Sequence[Measurement], asked: int, need: Requirement) -> Setting:
    first = rows[0]
    unit = 1 if first.mech in _ANY_SIZE else DIRECT_ALIGNMENT
    nbytes = -(-asked // unit) * unit
    sizes = sorted({row.bs_bytes for row in rows})

    def read(figure: Callable[[Measurement], float]) -> float:
        measured = [median(figure(row) for row in rows if row.bs_bytes == size) for size in sizes]
        return float(np.interp(nbytes, sizes, measured)) * max(1.0, nbytes / sizes[-1])

    us, cpu_us = read(lambda row: 1e6 / row.iops), read(lambda row: row.cpu_us_per_op)
    inside = sizes[0] < nbytes < sizes[-1]
    full_mb_s = mb_s = asked / us
    if need.cores is not None and cpu_us > need.cores * us:
        mb_s = asked * need.cores / cpu_us
    return Setting(
        mech=first.mech,
        qd=first.qd,
        threads=first.threads,
        dest=first.dest,
        bs_bytes=nbytes,
        mb_s=mb_s,
        full_mb_s=full_mb_s,
        cpu_s_per_gib=cpu_us / asked * 2**30 / 1e6,
        cores=min(mb_s, need.rate_mb_s or mb_s) * cpu_us / asked,
        sm_share=max((row.sm_share for row in rows if row.sm_share is not None), default=None),
        basis="measured" if nbytes in sizes else "interpolated" if inside else "extrapolated",
    )


def _usable(rows: Sequence[Measurement], need: Requirement) -> tuple[list[Measurement], list[str]]:
    """Return the rows that are about this need, and why others were left out."""
    ours = [row for row in rows if row.mech in MECHANISMS]
    works = [row for row in ours if not _refusal(row)]
    working = {row.mech for row in works}
    places = _SAME_PLACE.get(need.dest, (need.dest,))
    left_out = [*dict.fromkeys(_refusal(row) for row in ours if row.mech not in working and row.dest in places)]
    found = [row for row in works if row.dest in places]
    if not found and need.dest != "host":
        left_out.append(f"no row reads into {need.dest}: these read into host memory, without the copy")
        found = [row for row in works if row.dest in _SAME_PLACE["host"]]
    if need.access == "random" or any(row.pattern == "sequential" for row in found):
        found = [row for row in found if row.pattern == need.access]
    else:
        left_out.append("no row reads sequentially: random reads stand in, and are no faster")
    if any(_warm(row, need) for row in found):
        fits = "as the data do not fit there" if need.dataset_bytes else "unless --dataset says that the data fit"
        left_out.append(f"posix was measured from the page cache: left out, {fits}")
    most = 1.0 if need.gpu_share is None else need.gpu_share
    if any(_gpu_share(row) > most for row in found):
        left_out.append(f"settings that take more than {most:.0%} of the GPU, or an unknown part, are left out")
    found = [row for row in found if not _warm(row, need) and _gpu_share(row) <= most]
    if not found:
        has = sorted({f"{row.mech} {row.pattern} to {row.dest}" for row in works})
        raise BadSetting(
            f"no row of the benchmark is about {need.access} reads to {need.dest} with what may be spent; of "
            f"{len(rows)} rows those that worked are: {', '.join(has) or 'none'}" + "; ".join(["", *left_out])
        )
    return found, left_out


def _warm(row: Measurement, need: Requirement) -> bool:
    """Whether reads came from the page cache, and the data are larger, or may be."""
    fits = need.dataset_bytes is not None and need.dataset_bytes <= need.memory_bytes
    return row.mech == "posix" and not row.cold and not fits


def _gpu_share(row: Measurement) -> float:
    return row.sm_share if row.sm_share is not None else float(row.mech == "gpu")


def _refusal(row: Measurement) -> str:
    """Return why what a row measured is never advised; empty if it may be."""
    if not (row.iops > 0 and row.mb_s > 0):
        return f"{row.mech} to {row.dest} does not work here: {row.note or 'it moved nothing'}"
    if CPU_SERVED in row.path_taken:
        return "gpu was served by the CPU, as files are for tests: left out"
    if row.mech == "gds" and PEER_TO_PEER not in row.path_taken:
        return "gds does not read peer to peer here, but through host memory, at a high cost in CPU time: left out"
    return ""


def _why(choice: Setting, choices: Sequence[Setting], need: Requirement) -> Iterator[str]:
    how = {"measured": "measured", "interpolated": "interpolated between measured sizes"}
    yield (
        f"reads of {size_text(choice.bs_bytes)} at {choice.full_mb_s:,.0f} MB/s with "
        f"{choice.cores_at(choice.full_mb_s):.2g} cores: "
        + how.get(choice.basis, "beyond what was measured, taken from the nearest size")
    )
    if enough := _enough(choices, need):
        yield f"{len(enough)} of {len(choices)} settings reach the rate and 10% more; this takes the least CPU"
    else:
        yield f"the fastest of {len(choices)} settings within the cores"


def _remedies(
    rows: Sequence[Measurement], choices: Sequence[Setting], best: Setting, need: Requirement, rate_mb_s: float
) -> Iterator[str]:
    """Yield what the rows suggest, the easiest first."""
    larger = [
        max(_settings(rows, msgspec.structs.replace(need, sample_bytes=nbytes)), key=lambda each: each.mb_s)
        for nbytes in sorted({row.bs_bytes for row in rows})
        if need.access == "random" and need.sample_bytes < nbytes <= (need.dataset_bytes or nbytes)
    ]
    if faster := [each for each in larger if each.mb_s > best.mb_s]:
        to = (_enough(faster, need) or [max(faster, key=lambda each: each.mb_s)])[0]
        yield (
            f"pack the data, and read {max(2, round(to.bs_bytes / need.sample_bytes)):,} samples at once: "
            f"{size_text(to.bs_bytes)} reads reach {to.mb_s:,.0f} MB/s ({to})"
            + ("" if to.mb_s >= rate_mb_s * HEADROOM else ", which is not enough by itself")
        )
    if need.dataset_bytes and need.memory_bytes:
        data, memory = size_text(need.dataset_bytes), size_text(need.memory_bytes)
        part = need.memory_bytes / need.dataset_bytes
        yield (
            f"cache the data: {data} fit into {memory} of memory"
            if part >= 1
            else f"cache what fits: {memory} of memory hold {part:.0%} of the data ({data})"
        )
    if able := [each for each in choices if each.full_mb_s >= rate_mb_s]:
        cheapest = min(able, key=lambda each: each.cpu_s_per_gib)
        cores = f"{cheapest.cores_at(rate_mb_s):.2g} in place of {need.cores:g}"
        yield f"more cores: with {cores}, {cheapest} reaches the rate"
    else:
        most = max(choices, key=lambda each: each.full_mb_s)
        yield (
            f"faster storage, or more of it: more cores alone do not help, as the fastest setting ends at "
            f"{most.full_mb_s:,.0f} MB/s with as many as it takes ({most.cores_at(most.full_mb_s):.2g})"
        )


class AutoReader(NamedTuple):
    """What to give to ``open_reader``, and why."""

    mech: str
    depth: int
    threads: int
    why: str


def choose_reader(
    rows: Sequence[Measurement] | None, sample_bytes: int, *, works: Collection[str] = MECHANISMS
) -> AutoReader:
    """Choose the mechanism that reads samples of about this size at random into host memory.

    It is one of those that work for this data, ``works``. This machine's benchmark decides if it has ``rows`` for
    that; else a rule (benchmarks/results/io.json): io_uring takes the least CPU time, O_DIRECT comes next.
    """
    # Rows that measured something else leave it to the rule.
    with suppress(BadSetting):
        usable = [row for row in rows or () if row.mech in works]
        choice = advise(usable, Requirement(sample_bytes=sample_bytes)).choice
        return AutoReader(choice.mech, choice.qd, choice.threads, "measured here")
    mech = next((mech for mech in ("uring", "direct") if mech in works), "posix")
    threads = 1 if mech == "uring" else 8 if mech == "direct" and sample_bytes >= 64 << 10 else 32
    return AutoReader(mech, 128, threads, "not measured here")
