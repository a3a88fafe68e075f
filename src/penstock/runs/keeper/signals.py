"""Signals that come to a run: each process gets one once, from who sends it to all, or else from the keeper."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable

from penstock.linux.process import NOTICES, SENT, Received, handles, read_signals, signals_as_file, survives, who

STOP = signal.SIGRTMIN
"""``penstock runs stop`` sends it to a keeper, which heeds no other."""
_ALL_S = 0.5
"""Who signals all processes of a run, as Slurm does, has reached its keeper by then."""
_MISSED_S = 10.0
"""A command that lives so long after a signal to all that it would die of has not got it, or takes long to end."""
_AGAIN_S = 1.0
_NOTICE_S = 60.0
"""What a run leaves behind has this long for what it does at a notice."""


class Signals:
    """What a keeper knows of the signals that come to its run.

    Its own copy of a signal tells that all of the run got it. What the launcher passes on waits for that.
    """

    def __init__(self) -> None:
        self.fd = signals_as_file((signal.SIGCHLD, STOP, *SENT))
        self.why: dict[int, str] = {}  # of each signal that has come
        self._due_s: dict[int, float] = {}  # when each is to be given to the command
        self._came_s: dict[int, float] = {}  # when each last came to the run
        self._told: dict[int, tuple[int, float]] = {}  # the signal that each process got last, and when
        self._reached: dict[int, bool] = {}  # of each that came to the keeper too: whether the command has had it

    def read(self, command: int, processes: Callable[[], Iterable[int]]) -> list[Received]:
        """Return what came for the keeper; of other signals, note that these processes have got them.

        A command has had what it heeded when that came: while Python ends it heeds none, and would die of another.
        """
        received = read_signals(self.fd)
        for number, pid in received:
            if number in SENT:
                was_given = number not in self._reached and self._told.get(command, (0, 0.0))[0] == number
                self._reached[number] = was_given or number in NOTICES or survives(command, number)
                self._came_s[number] = time.monotonic()
                self._due_s[number] = self._came_s[number] + _MISSED_S
                self.why.setdefault(number, f"{signal.Signals(number).name} from {who(pid)}")
                self.tell(number, processes())
        return [each for each in received if each.number == STOP]

    def ask(self, number: int, why: str) -> None:
        """Take a signal that the launcher passes on; a notice again after a second, another only once."""
        now_s = time.monotonic()
        again_s = _AGAIN_S if number in NOTICES else float("inf")
        self.why[number] = why
        if now_s - self._came_s.get(number, float("-inf")) >= again_s:
            self._came_s[number] = now_s
            self._reached.pop(number, None)
            self._due_s[number] = now_s + _ALL_S

    def tell(self, number: int, processes: Iterable[int]) -> None:
        """Note that processes have got a signal."""
        self._told |= dict.fromkeys(processes, (number, time.monotonic()))

    def due(self) -> list[int]:
        """Return the signals that are to be given to the command now."""
        numbers = [number for number, due_s in self._due_s.items() if time.monotonic() >= due_s]
        for number in numbers:
            del self._due_s[number]
        return numbers

    @property
    def next_s(self) -> float | None:
        """When ``due`` has something."""
        return min(self._due_s.values(), default=None)

    def has_reached(self, number: int) -> bool:
        """Return whether the command has got a signal from who sent it to all."""
        return self._reached.get(number, False)

    def heeds(self, pid: int) -> bool:
        """Return whether a process may still do what it does at a signal that it has got: a notice ends nobody."""
        number, told_s = self._told.get(pid, (0, 0.0))
        is_over = number in NOTICES and time.monotonic() >= told_s + _NOTICE_S
        return number > 0 and not is_over and handles(pid, number)
