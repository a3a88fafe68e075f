"""Which mechanism ``reader="auto"`` takes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from penstock.errors import BadSetting
from penstock.io.advice.advice import advise
from penstock.io.advice.measurement import Measurement
from penstock.io.advice.requirement import Reason, Requirement, published
from penstock.io.open import MECHANISMS

_SMALL_BYTES = 64 << 10
_RULE = published("Penstock, benchmarks/results/io.json")


class AutoReader(NamedTuple):
    """What to give to ``open_reader``, and why."""

    mech: str
    depth: int
    threads: int
    reason: Reason


def choose_reader(
    rows: Sequence[Measurement] | None,
    sample_bytes: int,
    *,
    access: Literal["random", "sequential"] = "random",
    cores: float | None = None,
    works: Collection[str] = MECHANISMS,
) -> AutoReader:
    """Choose the mechanism that reads samples of about this size into host memory.

    This machine's benchmark decides if it has rows for that; else a rule:
    io_uring, which takes the least CPU time; without it, threads with O_DIRECT;
    without that, threads that read through the page cache.

    Args:
        rows: What ``penstock bench io`` has measured; None if nothing.
        sample_bytes: Size of a usual sample.
        access: See ``Requirement``.
        cores: See ``Requirement``.
        works: Mechanisms that work for this data.
    """
    if rows:
        need = Requirement(sample_bytes=sample_bytes, access=access, cores=cores)
        try:
            advice = advise([row for row in rows if row.mech in works], need)
        except BadSetting:  # the rows measured something else: the rule's tag says that it was used
            return _by_rule(sample_bytes, works)
        choice = advice.choice
        return AutoReader(choice.mech, choice.qd, choice.threads, advice.reasons[0])
    return _by_rule(sample_bytes, works)


def _by_rule(sample_bytes: int, works: Collection[str]) -> AutoReader:
    if "uring" in works:
        return AutoReader("uring", 128, 1, Reason("io_uring takes the least CPU time for each read", _RULE))
    if "direct" in works:
        threads = 32 if sample_bytes < _SMALL_BYTES else 8
        return AutoReader("direct", 128, threads, Reason("threads with O_DIRECT come next to io_uring", _RULE))
    return AutoReader("posix", 128, 32, Reason("nothing but the page cache can be had for these files", _RULE))
