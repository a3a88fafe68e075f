"""What became of a run, from how its command ended."""

from __future__ import annotations

import signal
from typing import NamedTuple

_ASKED_FOR = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL)
"""Signals that somebody sends to end a process, rather than the process's own fault."""

_NO_MEMORY = (b"CUDA out of memory", b"OutOfMemoryError")


class Verdict(NamedTuple):
    """What is recorded of a run that has ended."""

    status: str
    exit_code: int | None
    reason: str


def verdict(returned: int, *, ended_as: str, why: str, recent: bytes, oom_killed: bool) -> Verdict:
    """Judge a run whose command has ended.

    Args:
        returned: Its exit code; negative for a signal.
        ended_as: "timed_out" or "killed" if its keeper ended it; "signalled" if it was sent a signal that it may
            have obeyed or not; else empty.
        why: Who did so; else empty.
        recent: The last that it printed.
        oom_killed: Whether the kernel's OOM killer ended a process beside it, or it, while it ran.
    """
    code = returned if returned >= 0 else 128 - returned
    if ended_as in ("timed_out", "killed"):
        return Verdict(ended_as, code, why)
    if returned == 0:
        return Verdict("finished", 0, "")
    if ended_as == "signalled":
        return Verdict("killed", code, why)
    if oom_killed and code == 128 + signal.SIGKILL:
        return Verdict("out_of_memory", code, "the kernel's OOM killer ended it: its cgroup has no memory left")
    lines = [line.strip() for line in recent.splitlines() if line.strip()]
    for line in reversed(lines):
        if any(words in line for words in _NO_MEMORY):
            return Verdict("out_of_memory", code, _text(line))
    if -returned in _ASKED_FOR:
        return Verdict("killed", code, f"died of {_name(-returned)}, which penstock did not send")
    if returned < 0:
        return Verdict("failed", code, f"died of {_name(-returned)}")
    return Verdict("failed", code, _text(lines[-1]) if lines else f"ended with exit code {code}")


def _name(number: int) -> str:
    """Return a signal's name; a real-time signal has only a number."""
    return next((each.name for each in signal.Signals if each == number), f"signal {number}")


def _text(line: bytes) -> str:
    return line[:1000].decode(errors="replace")
