"""Who starts a feeder: of all trainers that share a name which nobody serves, the one that gets its lock."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import ExitStack, suppress
from io import FileIO
from itertools import chain, starmap
from multiprocessing.connection import wait

import msgspec

from penstock import errors
from penstock.basics.packages import import_path
from penstock.basics.terminal import say
from penstock.errors import FeedNotFound, SourceError
from penstock.feed import wire
from penstock.feed.endpoint import ANSWER_S, Endpoint
from penstock.feed.launch.spec import FeederSpec, pickle_spec
from penstock.feed.trainer.connection import FeedConnection, OpenRing
from penstock.feed.trainer.error_texts import silent
from penstock.inject import without_injection
from penstock.linux.descriptors import opened
from penstock.linux.fork import close_in_children

_RETRY_S = 0.02
_MOST_STARTS = 3
_SAY_AFTER_S = 3.0

# -c, not -m: what our __main__ defines goes into the new process's __main__.
_PROGRAM = """import sys
sys.path[:] = sys.argv[3:]
from penstock.feed.launch.detached import detach
report = detach(*map(int, sys.argv[1:3]))
from penstock.feed.launch.process import main
main(int(sys.argv[1]), report)"""


class Ready(msgspec.Struct):
    """Report on a new feeder process: it serves (all empty), why it cannot, or how it died before."""

    error: str = ""
    kind: str = ""
    traceback_text: str = ""
    died: str = ""


def connection_to(spec: FeederSpec, hello: wire.Hello, open_ring: OpenRing) -> tuple[FeedConnection, bool]:
    """Connect to a feed; if nobody serves it, start its feeder, or wait while another process does.

    Returns the connection, and whether this process has started the feeder.

    Raises:
        BadSetting: the loader's function cannot be pickled.
        SourceError: the loader could not be made, or the feeder's process died three times before it served.
        FeederSilent: the feeder, or the process that is starting it, is stopped.
        Refused: the feeder does not admit this trainer.
    """
    start, starts, died = _Start(Endpoint(spec.name)), 0, ""
    while True:
        endpoint = Endpoint(spec.name)
        with suppress(FeedNotFound):
            return FeedConnection(endpoint, hello, open_ring, ANSWER_S), starts > 0
        lock = endpoint.acquire()
        if lock is None:  # another trainer is starting the feeder
            start.look()
            time.sleep(_RETRY_S)
            continue
        if starts == _MOST_STARTS:
            lock.close()
            endpoint.sweep()
            raise SourceError(f"feed {spec.name!r} cannot be started: {starts} times {died}")
        died = _start_feeder(spec, endpoint, lock) or "its feeder was gone before it admitted this trainer"
        starts += 1


class _Start:
    """The wait for a feeder that is being started."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._began_s = time.monotonic()
        self._say_after_s = _SAY_AFTER_S

    def look(self) -> None:
        """Say for what is waited, after 3 s and after 30; raise FeederSilent if that is stopped, and stays so."""
        waited_s = time.monotonic() - self._began_s
        if waited_s > ANSWER_S and self._endpoint.owner_is_stopped():
            raise silent(self._endpoint, ANSWER_S)
        if waited_s > self._say_after_s and (owner := self._endpoint.owner()):
            self._say_after_s *= 10
            name = self._endpoint.name
            say(f"feed {name!r} is not there after {waited_s:.0f} s: process {owner.pid} makes its loader")


def _start_feeder(spec: FeederSpec, endpoint: Endpoint, lock: FileIO) -> str:
    """Start a feeder in a separate process, hand it the lock, and wait until it serves.

    Returns how it died before it served, if another may fare better; empty if it serves.

    Raises:
        BadSetting: its loader's function cannot be pickled.
        SourceError: it could not make its loader.
    """
    try:
        with lock:  # the feeder has it too, and keeps it
            ready = _answer(pickle_spec(spec), endpoint, lock)
            log = endpoint.log_end(2000).strip() if ready.died else ""
            if ready.error:
                endpoint.remove(lock)
    except BaseException:
        endpoint.sweep()
        raise
    if ready.error:
        kind = getattr(errors, ready.kind, SourceError)
        if issubclass(kind, SourceError):
            raise kind(ready.error, ready.traceback_text)
        raise kind(ready.error)
    if not ready.died:
        return ""
    why = " (as the kernel does when memory runs out)" if "SIGKILL" in ready.died else ""
    return f"its feeder's process {ready.died}{why} before it served" + (
        f"; the end of its log:\n{log}" if log else ""
    )


def _answer(pickled: bytes, endpoint: Endpoint, lock: FileIO) -> Ready:
    """Start the new process and return its report. When this is interrupted, the process is killed."""
    with ExitStack() as stack:

        def kept(file: FileIO) -> FileIO:
            # Unbuffered: in a child that another thread forks meanwhile, a buffer's lock could stay taken.
            close_in_children(file)
            return stack.enter_context(file)

        pipe = list(map(FileIO, chain.from_iterable(starmap(os.pipe, [()])), "rw"))
        answer, written = map(kept, pipe)
        writing = written.fileno()
        log = kept(endpoint.open_log())
        spec = kept(opened("r+", os.memfd_create, "penstock-spec"))
        rest = memoryview(pickled)
        while rest:
            rest = rest[spec.write(rest) :]
        spec.seek(0)
        passed = {0: spec, 1: log, 2: log, lock.fileno(): lock, writing: written}
        # Not subprocess: it waits until every child that another thread forks meanwhile has ended.
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", "-c", _PROGRAM, str(lock.fileno()), str(writing), *import_path()],
            without_injection(os.environ),
            file_actions=[(os.POSIX_SPAWN_DUP2, file.fileno(), fd) for fd, file in passed.items()],
            setsid=True,  # a Ctrl-C in the terminal is not for it
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # which Python ignores
        )
        try:
            written.close()
            start = _Start(endpoint)
            while not wait([answer.fileno()], 1.0):  # making a loader may take minutes
                start.look()
            line = answer.readline()
        finally:
            answer.close()  # the process that waits for the feeder's report sees it, and ends
            with suppress(ChildProcessError):  # somebody else has waited for it
                os.waitpid(pid, 0)
    return msgspec.json.decode(line, type=Ready) if line else Ready(died="ended, and what watched it was killed,")
