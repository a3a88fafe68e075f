"""A run's command: how it is started, which signals it gets, and what its end means.

Each process gets a signal once: from who sends it to all of the run, or else from the keeper.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import termios
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, NoReturn

from penstock.linux.process import (
    NOTICES,
    SENT,
    Received,
    die_with_parent,
    handles,
    read_signals,
    signals_as_file,
    survives,
    who,
)
from penstock.runs.keeper.link import Assignment


class RunningCommand(NamedTuple):
    """A command that runs."""

    pid: int  # its process, which leads a process group
    outputs: dict[int, int]
    """Descriptors of what it prints, each with the number of the descriptor that it prints to."""
    terminal: int | None  # the keeper's side of its terminal, if it has one


def start(assignment: Assignment) -> RunningCommand:
    """Start a run's command."""
    given, outputs = [0, 1, 2], dict[int, int]()
    terminal, theirs = os.openpty() if any(assignment.terminal) else (None, None)
    if terminal is not None:
        outputs[terminal] = 1
        resize(terminal, assignment.size)
    for number, wanted in enumerate(assignment.terminal):
        if wanted and theirs is not None:
            given[number] = theirs
        elif number == 2 and assignment.merged:
            given[2] = given[1]
        elif number > 0:
            reading, given[number] = os.pipe()
            outputs[reading] = number
    failing, failed = os.pipe()
    keeper = os.getpid()
    if (pid := os.fork()) == 0:
        _become(assignment, given, theirs, failed, keeper)
    for fd in {*given, failed} - {0, 1, 2}:
        os.close(fd)
    for fd in outputs:
        os.set_blocking(fd, False)
    with open(failing) as report:
        error = report.read()
    if error:
        os.waitpid(pid, 0)
        for fd in outputs:
            os.close(fd)
        raise OSError(int(error), os.strerror(int(error)))
    return RunningCommand(pid, outputs, terminal)


def resize(terminal: int, size: Sequence[int]) -> None:
    """Set a terminal's columns and lines; the kernel signals what runs there."""
    columns, lines = size
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))


def _become(assignment: Assignment, given: list[int], terminal: int | None, failed: int, keeper: int) -> NoReturn:
    try:
        if terminal is None:
            os.setpgid(0, 0)
        else:
            os.setsid()
            fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        die_with_parent(keeper)
        for number, fd in enumerate(given):
            os.dup2(fd, number)
        for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored_by_python, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.chdir(assignment.directory)
        os.execvpe(assignment.command[0], assignment.command, assignment.environment)
    except OSError as error:
        os.write(failed, str(error.errno).encode())
    finally:
        os._exit(127)


_ASKED_FOR = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL)
"""Signals that somebody sends to end a process, rather than the process's own fault."""

_NO_MEMORY = (b"CUDA out of memory", b"OutOfMemoryError")


class Verdict(NamedTuple):
    """What is recorded of a run that has ended."""

    status: str
    exit_code: int | None
    reason: str


def verdict(returned: int, *, ended_as: str, why: str, recent: bytes, oom_killed: bool) -> Verdict:
    """Judge a run whose command has ended; ``returned`` is its exit code, negative for a signal.

    ``ended_as`` is "timed_out" or "killed" if its keeper ended it, and "signalled" if it was sent a signal that it
    may have obeyed or not; ``why`` says who did so. Both are empty otherwise. ``recent`` is the last that it
    printed. ``oom_killed`` says whether the kernel's OOM killer ended it, or a process beside it, while it ran.
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
