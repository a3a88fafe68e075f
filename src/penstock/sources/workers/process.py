"""A process that does tasks of this one: a new Python, its start, what it is asked, and how it ends."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any, NoReturn

from penstock.basics.packages import import_path
from penstock.errors import ReadFailed, SourceError
from penstock.linux.fork import close_in_children
from penstock.linux.process import in_words
from penstock.sources.workers import Steps

_PROGRAM = """import sys
sys.path[:] = sys.argv[3:]
from importlib import import_module
import_module(sys.argv[1]).main(int(sys.argv[2]))"""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
QUEUED = 2
"""Tasks that a worker has: the one at hand, and the next."""
CANNOT_START, READY = -1, -2
"""Numbers of what a process answers that is of no task: that it cannot work, or can."""
SMALL_BYTES = 64 << 10
"""What a process that is at work can be sent: of more, who sends it would wait."""
_SIGN_S = 1.0


class Worker:
    """One process, and the numbers of the tasks that it has."""

    def __init__(self, pid: int, connection: Connection[Any, Any]) -> None:
        self.pid = pid
        self.connection = connection
        self.has: deque[int] = deque()
        self.is_new = True  # whether it has done none yet
        self._since_s = 0.0  # when it began the one at hand

    def take(self, numbers: Sequence[int]) -> None:
        """Take note of tasks that it is given."""
        if not self.has:
            self._since_s = monotonic()
        self.has.extend(numbers)

    def done(self, number: int) -> float:
        """Take note of a task that it has done; return how many seconds that took."""
        self.has.remove(number)
        began_s, self._since_s = self._since_s, monotonic()
        return self._since_s - began_s

    def ended(self) -> str:
        """Wait for its end; return how that came."""
        self.connection.close()
        try:
            return in_words(os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]))
        except ChildProcessError:  # somebody else has waited for it
            return "ended"


def start_process(
    module: str, files: Sequence[int], environment: Mapping[str, str]
) -> tuple[int, Connection[Any, Any]]:
    """Start a new Python that calls ``main(fd)`` of a module; return its pid, and the other end of that socket.

    ``files`` are descriptors that are open there under the same numbers; ``environment`` is what its environment
    has besides this process's.
    """
    ours, theirs = socket.socketpair()
    with theirs, ours:
        passed = [theirs.fileno(), *files]
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", "-c", _PROGRAM, module, str(theirs.fileno()), *import_path()],
            {**os.environ, **environment},
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, fd) for fd in passed],  # which leaves them open there
            **_apart(),
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM],
        )
        connection: Connection[Any, Any] = Connection(ours.detach())
    close_in_children(connection)
    return pid, connection


def _apart() -> Mapping[str, Any]:
    """Return what keeps a Ctrl-C in the terminal, which is not for it, from a new process.

    A feeder has no terminal: its workers are of its session, and share the CPU with it, also where it yields.
    """
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return {"setpgroup": 0}
    return {"setsid": True}  # else the terminal would stop it when it reads or prints


def serve(fd: int, make: Callable[..., Callable[[Any], Steps[Any]]]) -> None:
    """Be a worker: do tasks until the process that gives them ends.

    The first step of a task is done as soon as it comes, if need be amid the steps of the one before.
    ``make`` makes, from the arguments of ``prepare``, the function that does a task in steps; ``fd`` is a socket
    to that process.
    """
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        connection, work = _begun(fd, make)
        begun: deque[tuple[int, Steps[Any]]] = deque()
        while True:
            if not begun or (len(begun) < QUEUED and connection.poll()):
                number, task = connection.recv()
                begun.append((number, work(task)))
                doing = begun[-1]
            else:
                doing = begun[0]
            if (answer := _answer(*doing)) is not None:
                begun.remove(doing)
                connection.send(answer)
    os._exit(0)


class FarFailed(Exception):
    """A far side cannot go on; the message has why."""


def serve_batches(fd: int, make: Callable[..., Callable[[Any], Steps[Any]]]) -> None:
    """Be a far side: do batches of tasks until the process that gives them ends, and answer one task at a time.

    The first steps of all tasks of a batch are done before their others; ``make`` and ``fd`` are as for ``serve``.
    """
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        connection, work = _begun(fd, make)
        connection.send((READY, True, None))
        while True:
            given = [(number, work(task)) for number, task in map(pickle.loads, connection.recv())]
            try:
                first = [_answer(*each) for each in given]
                for each, answer in zip(given, first, strict=True):
                    connection.send(answer or _whole_answer(*each, connection))
            except FarFailed as error:
                _fail(connection, str(error))
    os._exit(0)


def _whole_answer(number: int, steps: Steps[Any], connection: Connection[Any, Any]) -> tuple[int, bool, Any]:
    """Do the rest of a task's steps, with signs of life where they take long."""
    said_s = monotonic()
    while (answer := _answer(number, steps)) is None:
        if monotonic() - said_s > _SIGN_S:
            connection.send((READY, True, None))
            said_s = monotonic()
    return answer


def _begun(fd: int, make: Callable[..., Any]) -> tuple[Connection[Any, Any], Any]:
    """Return the socket to the process that gives tasks, and the function that does them."""
    connection: Connection[Any, Any] = Connection(fd)
    setup = connection.recv_bytes()
    try:
        return connection, make(*pickle.loads(setup))
    except Exception as error:  # such as a user's function that cannot be found here
        what = f"a worker process cannot start: {type(error).__name__}: {error}"
        _fail(connection, str(error) if isinstance(error, FarFailed) else what)


def _fail(connection: Connection[Any, Any], what: str) -> NoReturn:
    connection.send((CANNOT_START, False, SourceError(what, traceback.format_exc())))
    os._exit(0)


def _answer(number: int, steps: Steps[Any]) -> tuple[int, bool, Any] | None:
    """Do a task's next step; return the task's answer if that was its last."""
    try:
        next(steps)
    except StopIteration as done:
        return number, True, done.value
    except FarFailed:
        raise
    except (SourceError, ReadFailed) as error:
        return number, False, error
    except Exception as error:  # which may be one that cannot travel
        return number, False, SourceError(f"{type(error).__name__}: {error}", traceback.format_exc())
    return None
