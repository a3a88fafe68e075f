"""The process that ``share`` starts for a feeder: reads its spec, serves, and ends by itself."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from io import FileIO
from types import FrameType

import msgspec

from penstock.basics.tracebacks import users_traceback
from penstock.errors import PenstockError
from penstock.feed.endpoint import Endpoint
from penstock.feed.feeder.feeder import Feeder
from penstock.feed.launch.detached import write_all
from penstock.feed.launch.spec import FeederSpec, Ready, making, read_spec
from penstock.feed.launch.surroundings import why_on_host
from penstock.feed.suffix import root_of
from penstock.feed.witness import Witnesses
from penstock.fingerprint.file_versions import fingerprint_of_files
from penstock.inject import FEEDER
from penstock.linux.fork import close_in_children
from penstock.linux.process import NOTICES, SENT, yield_to_others
from penstock.memory.gpu_ring import MakeRing, ring_in, ring_in_or_on_host, ring_on_host
from penstock.sources.adapt import with_workers, witness_of
from penstock.sources.seeds import seed_process

_GRACE_S = 2.0
_LAST_GRACE_S = 15.0
_LOOK_S = 0.02
_PARTED_NICE = 5
_FULL_S = 10.0
"""For so long a feed that goes on waits for room on its GPU: trainers map the ring of the feeder that died."""


def main(lock_fd: int, report_fd: int) -> None:
    """Serve the feed that standard input describes; tell ``report_fd`` that it is served, or why it cannot be."""
    os.set_inheritable(lock_fd, False)
    os.environ[FEEDER] = "1"  # what is imported here may share loaders, elsewhere
    lock = FileIO(lock_fd, "r+")
    report = open(report_fd, "wb", 0)  # noqa: SIM115
    close_in_children(lock)
    close_in_children(report)
    making.set("")
    whose = "make_loader"
    try:
        spec = read_spec(sys.stdin.buffer)
        making.set(spec.name)
        if root_of(spec.name) != spec.name:
            yield_to_others(_PARTED_NICE)
        with open(os.devnull) as nothing:  # frees the memory that the spec came in
            os.dup2(nothing.fileno(), 0)
        Endpoint(spec.name).write_owner(lock)  # ``stop`` must not signal the trainer that started it
        settings = msgspec.structs.asdict(spec.settings)
        settings["window"] = settings.pop("window_bytes")
        seed_process(spec.settings.seed)  # a list that make_loader shuffles has one order, also after a failover
        files = spec.fingerprint.data.files
        found = fingerprint_of_files(files)  # as this feeder finds them, not as the first did
        began_s = time.monotonic()
        loader = with_workers(spec.make_loader(), spec.settings.own_workers)
        witnesses = Witnesses(*witness_of(loader), time.monotonic() - began_s)
        read = found.common(fingerprint_of_files(files))  # without what make_loader writes
        fingerprint = msgspec.structs.replace(spec.fingerprint, data=read)
        whose = "the feeder"
        feeder = Feeder(
            loader,
            spec.name,
            lock=lock,
            fingerprint=fingerprint,
            witnesses=witnesses,
            make_ring=_make_ring(spec),
            **settings,
        )
        if spec.ahead is not None:
            feeder.prepare(spec.ahead)
        making.set(None)
    except BaseException as error:
        _write(report, _report(error, whose))
        sys.exit(1)
    if spec.ahead is None:
        _write(report, Ready())
    else:
        threading.Thread(target=_write_when_prepared, args=(feeder, report), daemon=True).start()
    try:
        serve(feeder, while_trained=True)
    except PenstockError as error:
        if not report.closed:
            _write(report, _report(error, "the feeder"))
        sys.exit(1)  # every trainer has got the error


def _make_ring(spec: FeederSpec) -> MakeRing:
    """Return what makes the ring of a feed that a trainer starts: it outlives what gave that one its GPU."""
    why, before = why_on_host(), spec.replaces
    if spec.settings.memory == "host":
        return ring_in
    if why or (before and len(before.rings) == 1):
        why = why or "the feeder before had it there, or its GPU failed"
        return lambda memory, nbytes: ring_on_host(why, nbytes)
    return partial(ring_in_or_on_host, patience_s=_FULL_S) if before else ring_in


def serve(feeder: Feeder, *, while_trained: bool = False) -> None:
    """Run a feeder in the main thread of its own process, until its end.

    A source that does not return when the feed ends is interrupted after 2 s;
    15 s later the process is killed. With ``while_trained``, signals that others send to all processes of a run
    end it only once its last trainer has left.
    """
    ending = threading.Event()

    def hear(number: int, _: FrameType | None) -> None:
        if ending.is_set() or not while_trained:
            raise SystemExit(0)
        if number not in NOTICES:
            feeder.end_without_trainers()

    for number in SENT if while_trained else (signal.SIGTERM,):
        signal.signal(number, hear)
    threading.Thread(target=_end_with, args=(feeder, ending), daemon=True).start()
    feeder.run()


def _end_with(feeder: Feeder, ending: threading.Event) -> None:
    feeder.wait_until_ending()
    time.sleep(_GRACE_S)
    ending.set()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_LAST_GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _write_when_prepared(feeder: Feeder, report: FileIO) -> None:
    """Tell the report that the feed serves when it has made a block: trainers leave another feed for it."""
    while not feeder.statistics().blocks:
        time.sleep(_LOOK_S)
    _write(report, Ready())


def _write(report: FileIO, ready: Ready) -> None:
    with suppress(BrokenPipeError), report:  # what waited for it has been killed; trainers may be here already
        write_all(report.fileno(), msgspec.json.encode(ready) + b"\n")


def _report(error: BaseException, whose: str) -> Ready:
    text = users_traceback(error)
    if isinstance(error, PenstockError):
        return Ready(str(error), type(error).__name__, text)
    return Ready(f"{whose} raised {type(error).__name__}: {error}\n\nIn the feeder:\n{text}", "", text)
