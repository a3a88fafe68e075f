"""A run as the store keeps it."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from penstock.runs.plan import RunPlan

Status = Literal["waiting", "running", "finished", "failed", "out_of_memory", "timed_out", "killed", "lost"]
STATUSES: tuple[Status, ...] = get_args(Status)
ENDED = frozenset(STATUSES) - {"waiting", "running"}
"""A run that has one of these has ended, and keeps it."""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        id: Its key in the store; short enough to type.
        group: Name of its group.
        group_id: Key of its group: two groups may have one name.
        mode: Mode of its group.
        index: Its place in its group, from 0.
        status: What has become of it; "lost" if its keeper died without a word.
        exit_code: Its exit code, 128 + n for signal n; None until it has ended, or if nobody knows.
        reason: Why it was ended, or the last line that a crash printed; else empty.
        began: When it started, in seconds since 1970; None while it waits.
        seconds: How long it has run, or ran.
        keeper: Process that keeps it, and when that started in clock ticks since boot; None while it waits.
        pid: Process of its command; None while it waits.
    """

    id: str
    name: str
    group: str
    group_id: str
    mode: str
    index: int
    status: Status
    exit_code: int | None = None
    reason: str = ""
    began: float | None = None
    seconds: float | None = None
    plan: RunPlan
    keeper: tuple[int, int] | None = None
    pid: int | None = None
