"""Which mechanism to read with, under which setting, what that costs, and what to do if none suffices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from penstock.basics.sizes import size_text
from penstock.errors import BadSetting
from penstock.io.advice.measurements import Measurement
from penstock.io.advice.prediction import HEADROOM, Reason, Requirement, Setting, predict, published
from penstock.io.open import MECHANISMS

SAME = 1.03
"""Figures whose ratio is at most this are taken to be equal."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The setting to read with for a need, and why."""

    need: Requirement
    choice: Setting  # the setting to read with
    suffices: bool  # whether it is expected to reach the need's rate; true without a rate
    headroom: float | None
    """Throughput beyond that rate, as a part of it; below 0 if it falls short. None without a rate."""
    reasons: list[Reason]  # reasons, each tagged with its source
    alternatives: list[Setting]  # the best setting of each other mechanism
    remedies: list[Reason]  # what to do if nothing suffices, also tagged; empty if the choice does


def advise(rows: Iterable[Measurement], need: Requirement) -> Advice:
    """Choose the best setting for a need, from measurements.

    With a rate: of the settings that reach it with a tenth to spare, the one
    that takes the least CPU time; if none does, the fastest, which may still
    reach it. Without a rate: the fastest within the cores. Among equals (3%)
    the one with less CPU time, or, if that was compared, with fewer reads
    under way.
    """
    rows = list(rows)
    choices, reasons = predict(rows, need)
    choice = _best(choices, need)
    rate = need.rate_mb_s
    suffices = rate is None or choice.mb_s >= rate
    mechanisms = {other.mech for other in choices} - {choice.mech}
    others = [_best([other for other in choices if other.mech == mech], need) for mech in sorted(mechanisms)]
    return Advice(
        need=need,
        choice=choice,
        suffices=suffices,
        headroom=None if rate is None else choice.mb_s / rate - 1,
        reasons=[*_why(choice, choices, need), *reasons],
        alternatives=sorted(others, key=lambda other: _order(other, need), reverse=True),
        remedies=[] if suffices else remedies(rows, choices, choice, need),
    )


def _best(choices: Sequence[Setting], need: Requirement) -> Setting:
    enough = _enough(choices, need)
    if enough:
        least = min(other.cpu_s_per_gib for other in enough)
        equals = [other for other in enough if other.cpu_s_per_gib <= least * SAME]
        return min(equals, key=lambda other: (other.qd, other.threads, other.cpu_s_per_gib))
    rate = need.rate_mb_s or 0.0
    choices = [other for other in choices if other.mb_s >= rate] or choices
    most = max(other.mb_s for other in choices)
    equals = [other for other in choices if other.mb_s * SAME >= most]
    return min(equals, key=lambda other: (other.cpu_s_per_gib, other.qd, other.threads))


def _enough(choices: Sequence[Setting], need: Requirement) -> list[Setting]:
    """Return the settings that reach the rate with room to spare."""
    rate = need.rate_mb_s
    return [] if rate is None else [other for other in choices if other.mb_s >= rate * HEADROOM]


def _order(choice: Setting, need: Requirement) -> tuple[bool, float]:
    enough = bool(_enough([choice], need))
    return enough, -choice.cpu_s_per_gib if enough else choice.mb_s


def _why(choice: Setting, choices: Sequence[Setting], need: Requirement) -> Iterator[Reason]:
    yield Reason(_reached(choice))
    cost = f"{choice.cpu_s_per_gib:.2g} s"
    if enough := _enough(choices, need):
        yield Reason(
            f"{len(enough)} of {len(choices)} settings reach the rate with 10% to spare; this one takes the least "
            f"CPU time: {cost} for each GiB"
        )
    else:
        yield Reason(
            f"the fastest of {len(choices)} settings within the cores, at {cost} of CPU time for each GiB"
        )
    if choice.full_mb_s > choice.mb_s:
        yield Reason(
            f"it could reach {choice.full_mb_s:,.0f} MB/s with {choice.full_cores:.2g} cores: "
            f"{need.cores:g} hold it to {choice.mb_s:,.0f}"
        )


def _reached(choice: Setting) -> str:
    at = " and ".join(size_text(nbytes) for nbytes in choice.measured_bytes)
    how = {
        "measured": f"as measured at {at}",
        "interpolated": f"interpolated between {at}",
        "extrapolated": f"beyond what was measured: taken from reads of {at}",
    }
    return (
        f"{choice} reads {size_text(choice.bs_bytes)} at a time at {choice.full_mb_s:,.0f} MB/s, "
        + how[choice.basis]
    )


AISIO = published("xnvme.io/aisio")
_GPU_THREADS = ((4 << 10, 512), (16 << 10, 128), (64 << 10, 32))
"""(size of read, GPU threads that reach 45 GB/s from that size on)."""

_PACKED_BYTES = (64 << 10, 256 << 10, 1 << 20, 4 << 20)


def remedies(
    rows: Sequence[Measurement], choices: Sequence[Setting], best: Setting, need: Requirement
) -> list[Reason]:
    """List the remedies that the rows or published measurements suggest, the easiest first."""
    assert need.rate_mb_s is not None
    return [
        *_pack(rows, best, need, need.rate_mb_s),
        *_cache(rows, best, need),
        *_cores(choices, need, need.rate_mb_s),
        *_other_ways(best, need, need.rate_mb_s),
    ]


def _pack(rows: Sequence[Measurement], best: Setting, need: Requirement, rate_mb_s: float) -> Iterator[Reason]:
    """Suggest larger reads, of the smallest size that suffices, or else the fastest."""
    if need.access == "sequential":
        return
    larger = [
        _fastest(rows, msgspec.structs.replace(need, sample_bytes=nbytes))
        for nbytes in sorted({*_PACKED_BYTES, *(row.bs_bytes for row in rows)})
        if need.sample_bytes < nbytes <= (need.dataset_bytes or nbytes)
    ]
    known = [choice for choice in larger if choice and choice.basis != "extrapolated" and choice.mb_s > best.mb_s]
    if not known:
        return
    enough = [choice for choice in known if choice.mb_s >= rate_mb_s * HEADROOM]
    to = enough[0] if enough else max(known, key=lambda choice: choice.mb_s)
    samples = max(2, round(to.bs_bytes / need.sample_bytes))
    yield Reason(
        f"pack the data, and read {samples:,} samples at once: {size_text(to.bs_bytes)} reads reach "
        f"{to.mb_s:,.0f} MB/s ({to}), {to.mb_s / best.mb_s:.2g} times as much"
        + ("" if enough else ", which is not enough by itself")
    )


def _cache(rows: Sequence[Measurement], best: Setting, need: Requirement) -> Iterator[Reason]:
    if need.dataset_bytes is None or not need.memory_bytes:
        return
    data, memory = size_text(need.dataset_bytes), size_text(need.memory_bytes)
    if need.fits_memory:
        warm = _fastest([row for row in rows if row.mech == "posix" and not row.cold], need)
        reached = f", {warm.mb_s:,.0f} MB/s here" if warm and warm.mb_s > best.mb_s else ""
        yield Reason(
            f"cache the data: {data} fit into {memory} of memory; after the first pass mech='posix' reads from "
            f"there{reached}"
        )
    else:
        part = need.memory_bytes / need.dataset_bytes
        yield Reason(
            f"cache what fits: {memory} of memory hold {part:.0%} of the data ({data}), so that storage has to "
            f"bring {1 - part:.0%} of the rate"
        )


def _cores(choices: Sequence[Setting], need: Requirement, rate_mb_s: float) -> Iterator[Reason]:
    if able := [choice for choice in choices if choice.full_mb_s >= rate_mb_s]:
        cheapest = min(able, key=lambda choice: choice.cpu_s_per_gib)
        yield Reason(
            f"more cores: with {cheapest.cores_at(rate_mb_s):.2g} in place of {need.cores:g}, "
            f"{cheapest} reaches the rate"
        )
    else:
        most = max(choices, key=lambda choice: choice.full_mb_s)
        yield Reason(
            f"more cores alone do not help: with as many as it takes ({most.full_cores:.2g}), the fastest setting "
            f"ends at {most.full_mb_s:,.0f} MB/s; faster storage, or more of it, would"
        )


def _other_ways(best: Setting, need: Requirement, rate_mb_s: float) -> Iterator[Reason]:
    """Suggest what Penstock does not do, or this machine has not tried."""
    reads = rate_mb_s * 1e6 / best.bs_bytes
    if best.bs_bytes <= 16 << 10:
        yield Reason(
            f"this is {reads:,.0f} reads a second: polling NVMe drives from user space reached 61.7 million of "
            "512 bytes, with 16 drives and 8 cores that did nothing else",
            AISIO,
        )
    if need.dest == "host":
        return
    if need.sample_bytes >= 4 << 10:
        yield Reason(
            "reads straight into the GPU's memory: one CPU thread and 4 drives moved about 45 GB/s in reads of "
            "4 KiB and more, with none of the GPU's multiprocessors",
            AISIO,
        )
        threads = next(count for nbytes, count in reversed(_GPU_THREADS) if nbytes <= need.sample_bytes)
        if best.mech != "gpu":
            yield Reason(
                f"reads that the GPU begins itself: {threads} of its threads for 45 GB/s at "
                f"{size_text(need.sample_bytes)}",
                AISIO,
            )
    elif need.sample_bytes <= 1 << 10:
        yield Reason(
            "reads that the GPU begins itself will not do: at 1 KiB and less they never filled the link", AISIO
        )


def _fastest(rows: Sequence[Measurement], need: Requirement) -> Setting | None:
    try:
        choices, _ = predict(rows, need)
    except BadSetting:
        return None
    return max(choices, key=lambda choice: choice.mb_s)


_SMALL_BYTES = 64 << 10
_RULE = published("Penstock, benchmarks/results/io.json")


class AutoReader(NamedTuple):
    """What to give to ``open_reader``, and why."""

    mech: str
    depth: int
    threads: int
    reason: Reason


def choose_reader(
    rows: Sequence[Measurement] | None, sample_bytes: int, *, works: Collection[str] = MECHANISMS
) -> AutoReader:
    """Choose the mechanism that reads samples of about this size at random into host memory.

    It is one of those that work for this data, ``works``. This machine's benchmark, ``penstock bench io``, decides
    if it has ``rows`` for that; else a rule: io_uring, which takes the least CPU time; without it, threads with
    O_DIRECT; without that, threads that read through the page cache.
    """
    if rows:
        # Rows that measured something else leave it to the rule, whose tag shows that it was used.
        with suppress(BadSetting):
            usable = [row for row in rows if row.mech in works]
            advice = advise(usable, Requirement(sample_bytes=sample_bytes))
            choice = advice.choice
            return AutoReader(choice.mech, choice.qd, choice.threads, advice.reasons[0])
    if "uring" in works:
        return AutoReader("uring", 128, 1, Reason("io_uring takes the least CPU time for each read", _RULE))
    if "direct" in works:
        threads = 32 if sample_bytes < _SMALL_BYTES else 8
        return AutoReader("direct", 128, threads, Reason("threads with O_DIRECT come next to io_uring", _RULE))
    return AutoReader("posix", 128, 32, Reason("nothing but the page cache can be had for these files", _RULE))
