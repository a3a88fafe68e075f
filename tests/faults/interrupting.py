"""Ctrl-C at every place of Penstock's code where CPython can raise it, or at random moments."""

from __future__ import annotations

import dis
import os
import random
import signal
import sys
import threading
from functools import cache
from itertools import pairwise
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
        if self._at and (self.raised or code.co_filename != self._at.file):
            return None
        if not (_is_ours(code) or (_is_a_conditions(code) and _is_ours(frame.f_back))):
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


def _is_ours(what: CodeType | FrameType | None) -> bool:
    code = what.f_code if isinstance(what, FrameType) else what
    return code is not None and code.co_filename.startswith(OURS)


def _is_a_conditions(code: CodeType) -> bool:
    """Whether this is a method of ``threading.Condition``: all of them are in Python."""
    return code.co_filename == threading.__file__ and code.co_qualname.startswith("Condition.")


@cache
def _raising(code: CodeType) -> frozenset[int]:
    """The instructions after which an exception can come, and be handled as one that comes before the next."""
    instructions = list(dis.get_instructions(code))
    tried = dis.Bytecode(code).exception_entries

    def handler(offset: int) -> int | None:
        return next((entry.target for entry in tried if entry.start <= offset < entry.end), None)

    return frozenset(
        one.offset
        for one, following in pairwise(instructions)
        if one.opname == "RESUME" or "BACKWARD" in one.opname or one.opname in ("CALL", "CALL_FUNCTION_EX")
        if handler(one.offset) == handler(following.offset)
    )


class Alarms:
    """Raises a KeyboardInterrupt at random moments, by a signal."""

    def __init__(self, choose: random.Random, most_s: float) -> None:
        self.came = 0  # how many have been raised
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
