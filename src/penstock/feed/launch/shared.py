"""Joins or starts a feed: the first caller starts the feeder, the rest attach, and whoever is left replaces it."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from importlib import import_module
from io import FileIO
from itertools import chain, starmap
from multiprocessing.connection import wait
from typing import Any

import msgspec

from penstock import errors
from penstock.basics.packages import import_path
from penstock.basics.terminal import say
from penstock.basics.tracebacks import users_stacklevel
from penstock.errors import BadSetting, FeedExists, FeedNotFound, SettingsDiffer, SourceError
from penstock.feed import wire
from penstock.feed.endpoint import ANSWER_S, Endpoint
from penstock.feed.launch.attach import workers
from penstock.feed.launch.detached import write_all
from penstock.feed.launch.spec import FeederSpec, Ready, making, pickle_spec
from penstock.feed.launch.surroundings import feeders_environment, say_where
from penstock.feed.queries import most_read
from penstock.feed.settings import DEFAULT_LINGER_S, Settings
from penstock.feed.suffix import FeedOfRun
from penstock.feed.trainer.connection import FeedConnection, OpenRing
from penstock.feed.trainer.error_texts import silent
from penstock.feed.trainer.loader import Loader
from penstock.feed.trainer.options import LoaderOptions
from penstock.feed.witness import SampleComparison
from penstock.fingerprint.comparison import Fingerprint, fingerprint_difference, same_fingerprint
from penstock.fingerprint.file_versions import fingerprint_of_files
from penstock.fingerprint.functions import fingerprint_of
from penstock.linux.files import memory_file
from penstock.linux.fork import close_in_children
from penstock.sources.adapt import with_workers, witness_of
from penstock.sources.seeds import seed_process

_RETRY_S = 0.02
_MOST_STARTS = 3
_SAY_AFTER_S = 3.0
_MOST_MADE_S = 1.0

# -c, not -m: what our __main__ defines goes into the new process's __main__.
_PROGRAM = """import sys
sys.path[:] = sys.argv[3:]
from penstock.feed.launch.detached import detach
report = detach(*map(int, sys.argv[1:3]))
from penstock.feed.launch.process import main
main(int(sys.argv[1]), report)"""


def _connection_to(
    spec: FeederSpec, hello: wire.Hello, open_ring: OpenRing, *, joins: bool
) -> tuple[FeedConnection, bool]:
    """Connect to a feed; if nobody serves it, start its feeder, or wait while another process does.

    Who ``joins`` reads one that has parted from it, if only such are left.
    Returns the connection, and whether this process has started the feeder.
    """
    start, starts, died = _Start(Endpoint(spec.name)), 0, ""
    while True:
        endpoint = Endpoint(spec.name)
        with suppress(FeedNotFound):
            return FeedConnection(endpoint, hello, open_ring, ANSWER_S), starts > 0
        if joins and (parted := most_read(spec.name)):
            with suppress(FeedNotFound):
                return FeedConnection(Endpoint(parted), hello, open_ring, ANSWER_S), False
        joins = False
        lock = endpoint.acquire()
        if lock is None:  # another trainer is starting the feeder
            start.look()
            time.sleep(_RETRY_S)
            continue
        if starts == _MOST_STARTS:
            lock.close()
            endpoint.sweep()
            raise SourceError(f"feed {spec.name!r} cannot be started: {starts} times {died}")
        say_where(spec.name, spec.settings.memory)
        died = _start_feeder(spec, endpoint, lock) or "its feeder was gone before it admitted this trainer"
        starts += 1


class _Start:
    """The wait for a feeder that is being started."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._began_s = time.monotonic()
        self._say_after_s = _SAY_AFTER_S

    def look(self) -> None:
        """Print what is waited for, after 3 s and after 30; raise FeederSilent if its process stays stopped."""
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
    """
    try:
        with lock:  # the feeder inherits it, and holds it
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

        def passed_on(file: FileIO) -> FileIO:
            # Unbuffered: in a child that another thread forks meanwhile, a buffer's lock could stay taken.
            close_in_children(file)
            return stack.enter_context(file)

        pipe = list(map(FileIO, chain.from_iterable(starmap(os.pipe, [()])), "rw"))
        answer, written = map(passed_on, pipe)
        writing = written.fileno()
        log = passed_on(endpoint.open_log())
        spec = passed_on(memory_file("penstock-spec", len(pickled)))
        write_all(spec.fileno(), memoryview(pickled))
        spec.seek(0)
        passed = {0: spec, 1: log, 2: log, lock.fileno(): lock, writing: written}
        # Not subprocess: it waits until every child that another thread forks meanwhile has ended.
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", "-c", _PROGRAM, str(lock.fileno()), str(writing), *import_path()],
            feeders_environment(os.environ),
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


def shared(
    make_loader: Callable[[], Any],  # function that is called in the feeder
    name: str,  # name of the feed
    fingerprint: Fingerprint,  # what the feed must have been made of
    asked: dict[str, Any],  # settings that it must have, as ``checked`` returns them
    given: LoaderOptions,  # what this trainer asks
    joined: Callable[[int | None], None] = lambda rows: None,
    seed: int = 0,  # seed of a feed that is started here, where none is asked; one that runs may have another
    compares: bool = False,
) -> Loader:
    """Join or start a feed of a fingerprint that is known already; see ``share``.

    ``joined`` gets the rows of a block, each time a feeder has admitted this trainer. With ``compares``, this
    process's samples are compared, before the first batch, with those of a feeder that another process started.
    """
    of_run = FeedOfRun(name, fingerprint.digest.split()[-1])
    feed_name = of_run.asked
    if making.get() in ("", feed_name):  # it would wait for itself
        raise BadSetting(
            f"share({name!r}) runs again in the feeder's process, which imports the module of make_loader, and "
            'would wait for itself: call share() in a function, or below `if __name__ == "__main__":`'
        )
    began_by_us: set[int] = set()  # feeders
    new: dict[str, Any] = {"linger": DEFAULT_LINGER_S, "seed": seed, "workers": workers(), **asked}

    def connect(hello: wire.Hello, open_ring: OpenRing, replaced: wire.Welcome | None) -> FeedConnection:
        name, settings = (replaced.name, replaced.settings) if replaced else (feed_name, Settings(**new))
        spec = FeederSpec(make_loader, name, settings, fingerprint, sys.argv, replaces=replaced)
        connection, began_here = _connection_to(spec, hello, open_ring, joins=not replaced)
        if began_here:
            began_by_us.add(connection.welcome.pid)
        try:
            _check_same(connection.welcome, {} if replaced else asked, fingerprint)
            if not replaced:
                _warn_of_other_data(connection.welcome)
            joined(connection.welcome.batch_size)
        except BaseException:
            connection.close()
            raise
        return connection

    def check(connection: FeedConnection) -> None:
        welcome = connection.welcome
        if not compares or welcome.pid in began_by_us:
            return
        leaves_of = partial(_made_anew, make_loader, welcome.settings.seed, welcome.settings.own_workers)
        finding = SampleComparison(connection, 0, leaves_of, _MOST_MADE_S).finding(wait=True)
        if finding is not None and finding.differs:
            raise SettingsDiffer(
                f"your make_loader makes other samples than that of feed {welcome.name!r} (feeder {welcome.pid}): "
                f"{finding.differs}. What it reads from elsewhere (the environment, a file, an object that was "
                "changed) is another: end that feed first "
                f"(penstock stop {shlex.quote(welcome.name)}), or share under another name"
            )

    def prepare(like: wire.Welcome, ahead: wire.Prepare) -> None:
        settings = msgspec.structs.replace(like.settings, expect=1)
        make = partial(_made_as_before, make_loader, fingerprint) if compares else make_loader
        spec = FeederSpec(make, ahead.to, settings, fingerprint, sys.argv, ahead)
        endpoint = Endpoint(ahead.to)
        with suppress(FeedExists):  # it runs, or another starts it
            lock = endpoint.await_lock()
            if died := _start_feeder(spec, endpoint, lock):
                raise SourceError(died)

    return Loader(connect, given, of_run, prepare=prepare, check=check)


def _made_as_before(make_loader: Callable[[], Any], fingerprint: Fingerprint) -> Any:
    """Make the loader in a new feeder's process, if the code is what it was when the first feeder began."""
    for module in fingerprint.modules:  # which code may import only when it runs
        with suppress(ImportError):
            import_module(module)
    here = fingerprint_of(make_loader)
    if here.digest != fingerprint.digest:
        differs = fingerprint_difference(here, fingerprint)
        raise SettingsDiffer(f"its make_loader has been edited since the first feed of it began: {differs}")
    return make_loader()


def _made_anew(make_loader: Callable[[], Any], seed: int, workers: int | None, ids: Sequence[int]) -> Any:
    """Make the loader as its feeder does, and digest some of its samples; none of a loader that names none."""
    seed_process(seed)
    leaves_of, why = witness_of(with_workers(make_loader(), workers))
    if leaves_of is None or why:
        raise BadSetting(why or "it is no DataLoader")
    return leaves_of(ids)


def _check_same(welcome: wire.Welcome, asked: dict[str, Any], fingerprint: Fingerprint) -> None:
    feed = f"feed {welcome.name!r} (feeder {welcome.pid})"
    if differs := welcome.settings.difference(asked):
        raise SettingsDiffer(f"{feed} runs with {differs}")
    if welcome.fingerprint and not same_fingerprint(welcome.fingerprint, fingerprint):
        differs = fingerprint_difference(welcome.fingerprint, fingerprint)
        raise SettingsDiffer(
            f"{feed} was started with another make_loader than yours: {differs}. "
            f"If yours was edited, end that feed first (penstock stop {shlex.quote(welcome.name)}); to feed "
            "something else beside it, share under another name"
        )


def _warn_of_other_data(welcome: wire.Welcome) -> None:
    if welcome.fingerprint is None:
        return
    then = welcome.fingerprint.data
    if changed := then.difference(fingerprint_of_files(then.files)):
        warnings.warn(
            f"feed {welcome.name!r} (feeder {welcome.pid}) began with other data than lie there now: {changed}. "
            "If its loader had read them by then, it goes on with what it read. To feed the new ones, end it: "
            f"penstock stop {shlex.quote(welcome.name)}",
            stacklevel=users_stacklevel(),
        )
