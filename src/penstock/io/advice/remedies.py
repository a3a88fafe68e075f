"""What to do when no setting reaches the rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from penstock.basics.sizes import size_text
from penstock.errors import BadSetting
from penstock.io.advice.measurement import Measurement
from penstock.io.advice.prediction import predict
from penstock.io.advice.requirement import HEADROOM, MEASURED, Reason, Requirement, Setting, published

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
        + ("" if enough else ", which is not enough by itself"),
        MEASURED,
    )


def _cache(rows: Sequence[Measurement], best: Setting, need: Requirement) -> Iterator[Reason]:
    if need.dataset_bytes is None or not need.memory_bytes:
        return
    data, memory = size_text(need.dataset_bytes), size_text(need.memory_bytes)
    if not need.fits_memory:
        part = need.memory_bytes / need.dataset_bytes
        yield Reason(
            f"cache what fits: {memory} of memory keep {part:.0%} of the data ({data}), so that storage has to "
            f"bring {1 - part:.0%} of the rate",
            MEASURED,
        )
        return
    warm = _fastest([row for row in rows if row.mech == "posix" and not row.cold], need)
    reached = f", {warm.mb_s:,.0f} MB/s here" if warm and warm.mb_s > best.mb_s else ""
    yield Reason(
        f"cache the data: {data} fit into {memory} of memory; after the first pass mech='posix' reads from there"
        + reached,
        MEASURED,
    )


def _cores(choices: Sequence[Setting], need: Requirement, rate_mb_s: float) -> Iterator[Reason]:
    able = [choice for choice in choices if choice.full_mb_s >= rate_mb_s]
    if able:
        cheapest = min(able, key=lambda choice: choice.cpu_s_per_gib)
        yield Reason(
            f"more cores: with {cheapest.cores_at(rate_mb_s):.2g} in place of {need.cores:g}, "
            f"{cheapest} reaches the rate",
            MEASURED,
        )
        return
    most = max(choices, key=lambda choice: choice.full_mb_s)
    yield Reason(
        f"more cores alone do not help: with as many as it takes ({most.full_cores:.2g}), the fastest setting "
        f"ends at {most.full_mb_s:,.0f} MB/s; faster storage, or more of it, would",
        MEASURED,
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
