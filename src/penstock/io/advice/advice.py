"""Which mechanism to read with, under which setting, what that costs, and what to do if none suffices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from penstock.basics.sizes import size_text
from penstock.io.advice.measurement import Measurement
from penstock.io.advice.prediction import predict
from penstock.io.advice.remedies import remedies
from penstock.io.advice.requirement import HEADROOM, MEASURED, Reason, Requirement, Setting

SAME = 1.03
"""Figures whose ratio is at most this are taken to be equal."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The setting to read with for a need, and why.

    Attributes:
        choice: The setting to read with.
        suffices: Whether it is expected to reach the need's rate; true without a rate.
        headroom: Throughput beyond that rate, as a part of it; below 0 if it falls short. None without a rate.
        reasons: Reasons, each tagged with its source.
        alternatives: The best setting of each other mechanism.
        remedies: What to do if nothing suffices, also tagged; empty if the choice does.
    """

    need: Requirement
    choice: Setting
    suffices: bool
    headroom: float | None
    reasons: list[Reason]
    alternatives: list[Setting]
    remedies: list[Reason]


def advise(rows: Iterable[Measurement], need: Requirement) -> Advice:
    """Choose the best setting for a need, from measurements.

    With a rate: of the settings that reach it with a tenth to spare, the one
    that takes the least CPU time; if none does, the fastest, which may still
    reach it. Without a rate: the fastest within the cores. Among equals (3%)
    the one with less CPU time, or, if that was compared, with fewer reads
    under way.

    Raises:
        BadSetting: no row tells anything about this need.
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


def _why(choice: Setting, choices: Sequence[Setting], need: Requirement) -> list[Reason]:
    found = [_reached(choice)]
    enough = _enough(choices, need)
    if enough:
        found.append(
            f"{len(enough)} of {len(choices)} settings reach the rate with 10% to spare; "
            f"this one takes the least CPU time: {choice.cpu_s_per_gib:.2g} s for each GiB"
        )
    else:
        found.append(
            f"the fastest of {len(choices)} settings within the cores, at {choice.cpu_s_per_gib:.2g} s "
            "of CPU time for each GiB"
        )
    if choice.full_mb_s > choice.mb_s:
        found.append(
            f"it could reach {choice.full_mb_s:,.0f} MB/s with {choice.full_cores:.2g} cores: "
            f"{need.cores:g} hold it to {choice.mb_s:,.0f}"
        )
    return [Reason(text, MEASURED) for text in found]


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
