"""Ctrl-C at every place of Penstock's code where CPython can raise it, or at random moments."""

from __future__ import annotations

import dis
import os
import random
import signal
import sys
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import penstock

OURS = str(Path(penstock.__file__).parent)


class Place(NamedTuple):
    """An instruction before which an exception can come."""

    file: str
    line: int
    offset: int


class Visits:
    """The places that this thread comes by; at one of them, once, a KeyboardInterrupt is raised.

    CPython raises it after a call, at a function's beginning and where a loop goes back.
    """

    def __init__(self, at: Place | None = None) -> None:
        self.places: dict[Place, None] = {}
        self.raised = False
        self._at = at
        self._last: dict[int, int] = {}  # by the frame's identity: frames keep what they refer to

    def __enter__(self) -> Visits:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _argument: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(OURS):
            return None
        frame.f_trace_opcodes = True
        if event in ("return", "exception"):  # else an exception would come where one is handled
            self._last.pop(id(frame), None)
        elif event == "opcode":
            before, self._last[id(frame)] = self._last.get(id(frame), -1), frame.f_lasti
            if before in _raising(code):
                place = Place(code.co_filename, frame.f_lineno, frame.f_lasti)
                self.places[place] = None
                if place == self._at and not self.raised:
                    self.raised = True
                    raise KeyboardInterrupt
        return self._trace


@cache
def _raising(code: CodeType) -> frozenset[int]:
    """The instructions after which an exception can come."""
    names = {op.offset: op.opname for op in dis.get_instructions(code)}
    return frozenset(
        offset
        for offset, name in names.items()
        if name == "RESUME" or "BACKWARD" in name or (name.startswith("CALL") and name != "CALL_INTRINSIC_1")
    )


class Alarms:
    """Raises a KeyboardInterrupt at random moments, by a signal.

    Attributes:
        came: How many have been raised.
    """

    def __init__(self, choose: random.Random, most_s: float) -> None:
        self.came = 0
        self._choose, self._most_s = choose, most_s

    def __enter__(self) -> Alarms:
        self._before = signal.signal(signal.SIGALRM, self._raise)
        return self

    def __exit__(self, *_: object) -> None:
        self.disarm()
        signal.signal(signal.SIGALRM, self._before)

    def arm(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._choose.uniform(1e-5, self._most_s))

    def disarm(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _raise(self, _number: int, _frame: Any) -> None:
        self.came += 1
        raise KeyboardInterrupt


def open_files() -> dict[int, str]:
    """What this process has open."""
    found: dict[int, str] = {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:  # the listing's own
            continue
    return found
