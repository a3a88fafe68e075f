"""Workers that are processes of this machine: each is a new Python without torch, and does one task after another.

They are not forked: a process that has used OpenCV leaves its children locks that nobody opens.
"""

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
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

from penstock.basics.packages import import_path
from penstock.basics.pickling import FilePickler
from penstock.errors import BadSetting, ReadFailed, SourceError
from penstock.linux.fork import close_in_children
from penstock.linux.process import in_words
from penstock.sources.workers import Steps

Task = TypeVar("Task")
Result = TypeVar("Result")

_PROGRAM = """import sys
sys.path[:] = sys.argv[3:]
from importlib import import_module
import_module(sys.argv[1]).main(int(sys.argv[2]))"""
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_QUEUED = 2
"""Tasks that a worker has: the one at hand, and the next."""
_MOST_DEATHS = 3
_SMALL_BYTES = 64 << 10
_CANNOT_START = -1
_FINISH_S = 10.0


class _Worker:
    """One process, and the numbers of the tasks that it has."""

    def __init__(self, pid: int, connection: Connection[Any, Any]) -> None:
        self.pid = pid
        self.connection = connection
        self.has: deque[int] = deque()

    def ended(self) -> str:
        """Wait for its end; return how that came."""
        self.connection.close()
        try:
            return in_words(os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]))
        except ChildProcessError:  # somebody else has waited for it
            return "ended"


class WorkerPool(Generic[Task, Result]):
    """Processes that do tasks.

    One that dies is replaced, and its tasks are done again by others; only a task at which three died is an error.
    They end with this process.
    """

    def __init__(self, count: int, module: str) -> None:
        self._count = count  # how many processes
        self._module = module  # module whose ``main(fd)`` they run, which calls ``serve``
        self._setup = b""
        self._files: Sequence[int] = ()
        self._pid = os.getpid()
        self._broken: SourceError | None = None  # why processes cannot start
        self._vain = 0  # processes that died without a task, since the last result
        self._workers: list[_Worker] = []
        self._waiting: deque[int] = deque()  # numbers of tasks that no worker has
        self._tasks: dict[int, tuple[Task, bytes]] = {}  # those that are not done, and how they are sent
        self._deaths: dict[int, int] = {}
        self._results: dict[int, tuple[bool, Any]] = {}

    @property
    def capacity(self) -> int:
        """Tasks that can be under way without one waiting for a process."""
        return self._count * _QUEUED

    def prepare(self, setup: tuple[Any, ...], files: Sequence[int]) -> None:
        """Tell what processes that start from now on are given: arguments for ``serve``, and open files."""
        try:
            self._setup = FilePickler.pickled(setup)
        except Exception as error:  # whatever a user's object raises
            raise BadSetting(
                f"decode= cannot be sent to the worker processes: {error}. Make it a function that holds no "
                "locks, files or connections"
            ) from None
        self._files = files

    def submit(self, number: int, task: Task) -> None:
        """Have a task done, whose result is asked for by ``number``."""
        self._tasks[number] = task, pickle.dumps((number, task))
        self._waiting.append(number)
        self._hand_out()

    def result(self, number: int) -> Result:
        """Wait for a task's result."""
        while number not in self._results:
            if self._broken is not None:
                raise self._broken
            self._hear(None)
        done, result = self._results.pop(number)
        if not done:
            raise result
        return result

    def settle(self) -> None:
        """Give up the tasks that have not begun, and wait for the others: after that nothing is written.

        Processes that take longer than ten seconds are killed.
        """
        try:
            for number in self._waiting:
                del self._tasks[number]
            self._waiting.clear()
            while self._tasks:
                if self._broken is not None or not self._hear(_FINISH_S):
                    self.close()
        except BaseException:  # another Ctrl-C
            self.close()
            raise
        self._results.clear()
        self._deaths.clear()

    def close(self) -> None:
        """End the processes, if they are this process's; a forked child's copy only forgets them."""
        if os.getpid() != self._pid:
            self._workers.clear()
        for worker in self._workers:
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
        for worker in self._workers:
            worker.ended()
        self._workers.clear()
        self._tasks.clear()
        self._waiting.clear()
        self._results.clear()
        self._deaths.clear()
        self._broken, self._vain = None, 0

    def _hand_out(self) -> None:
        """Give tasks to the processes that have the fewest."""
        while len(self._workers) < self._count:
            self._workers.append(self._started())
        while self._waiting:
            worker = min(self._workers, key=lambda each: len(each.has))
            if len(worker.has) >= _QUEUED:
                return
            number = self._waiting[0]
            _, message = self._tasks[number]
            # One that is at work reads no large message, and the process that sends it would wait.
            if worker.has and len(message) > _SMALL_BYTES:
                return
            self._waiting.popleft()
            worker.has.append(number)
            with suppress(OSError):  # it has died, as the next wait finds
                worker.connection.send_bytes(message)

    def _hear(self, most_s: float | None) -> bool:
        """Wait for a result or the end of a process; return whether anything came in time."""
        ready = wait([worker.connection for worker in self._workers], most_s)
        for worker in [each for each in self._workers if each.connection in ready]:
            try:
                number, done, result = worker.connection.recv()
            except (EOFError, OSError):
                self._bury(worker)
                continue
            if number == _CANNOT_START:
                self._broken = result
                continue
            self._vain = 0
            worker.has.remove(number)
            del self._tasks[number]
            self._results[number] = done, result
        if self._broken is None:
            self._hand_out()
        return bool(ready)

    def _bury(self, worker: _Worker) -> None:
        """Forget a process that has died, and have others do its tasks."""
        self._workers.remove(worker)
        how = worker.ended()
        if worker.has:
            first = worker.has[0]
            self._deaths[first] = self._deaths.get(first, 0) + 1
            if self._deaths[first] >= _MOST_DEATHS:
                worker.has.popleft()
                what = f"{_MOST_DEATHS} worker processes died at one block, {self._tasks.pop(first)[0]}"
                self._results[first] = False, SourceError(f"{what}: the last (process {worker.pid}) {how}")
            self._waiting.extendleft(reversed(worker.has))
            return
        self._vain += 1
        if self._vain > _MOST_DEATHS * self._count and self._broken is None:
            self._broken = SourceError(f"{self._vain} worker processes died before they had work: the last {how}")

    def _started(self) -> _Worker:
        worker = _Worker(*start_process(self._module, self._files, _ONE_THREAD))
        with suppress(OSError):  # it has died, as the next wait finds
            worker.connection.send_bytes(self._setup)
        return worker


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
    connection: Connection[Any, Any] = Connection(fd)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        setup = connection.recv_bytes()
        try:
            work = make(*pickle.loads(setup))
        except Exception as error:  # such as a user's function that cannot be found here
            what = f"a worker process cannot start: {type(error).__name__}: {error}"
            connection.send((_CANNOT_START, False, SourceError(what, traceback.format_exc())))
            os._exit(0)
        begun: deque[tuple[int, Steps[Any]]] = deque()
        while True:
            if not begun or (len(begun) < _QUEUED and connection.poll()):
                number, task = connection.recv()
                begun.append((number, work(task)))
                doing = begun[-1]
            else:
                doing = begun[0]
            if (answer := _answer(*doing)) is not None:
                begun.remove(doing)
                connection.send(answer)
    os._exit(0)


def _answer(number: int, steps: Steps[Any]) -> tuple[int, bool, Any] | None:
    """Do a task's next step; return the task's answer if that was its last."""
    try:
        next(steps)
    except StopIteration as done:
        return number, True, done.value
    except (SourceError, ReadFailed) as error:
        return number, False, error
    except Exception as error:  # which may be one that cannot travel
        return number, False, SourceError(f"{type(error).__name__}: {error}", traceback.format_exc())
    return None
