"""The process that ``share`` starts for a feeder: reads its commission, serves, and ends by itself."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from io import FileIO
from types import FrameType

import msgspec

from penstock.errors import PenstockError
from penstock.feed.commission import read_commission
from penstock.feed.directory import Place
from penstock.feed.feeder import Feeder
from penstock.feed.fork import close_in_children
from penstock.feed.share import Ready
from penstock.sources.randomness import seed_process
from penstock.tracebacks import users_traceback

_GRACE_S = 2.0
_LAST_GRACE_S = 15.0


def main() -> None:
    """Serve the feed that standard input describes; the arguments are the lock's and the report's descriptors."""
    lock_fd, ready_fd = map(int, sys.argv[1:3])
    for fd in (lock_fd, ready_fd):
        os.set_inheritable(fd, False)
    lock = FileIO(lock_fd, "r+")
    close_in_children(lock)
    with open(ready_fd, "wb") as ready:
        close_in_children(ready)
        try:
            commission = read_commission(sys.stdin.buffer)
            Place(commission.name).write_owner(lock)  # not the trainer that started it, should somebody end it now
            settings = msgspec.structs.asdict(commission.settings)
            settings["window"] = settings.pop("window_bytes")
            seed_process(commission.settings.seed)  # a list that it shuffles is the same after a failover
            loader = commission.make_loader()
            feeder = Feeder(loader, commission.name, lock=lock, recipe=commission.recipe, **settings)
        except BaseException as error:
            ready.write(msgspec.json.encode(_report(error)) + b"\n")
            sys.exit(1)
        ready.write(msgspec.json.encode(Ready()) + b"\n")
    try:
        serve(feeder)
    except PenstockError:
        sys.exit(1)  # every trainer has been told


def serve(feeder: Feeder) -> None:
    """Run a feeder in the main thread of its own process, until its end.

    A source that does not return when the feed ends is interrupted, and if
    that does not help, left: nothing of the process stays behind.
    """
    signal.signal(signal.SIGTERM, _terminate)
    threading.Thread(target=_end_with, args=(feeder,), daemon=True).start()
    feeder.run()


def _end_with(feeder: Feeder) -> None:
    feeder.wait_until_ending()
    time.sleep(_GRACE_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_LAST_GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


def _report(error: BaseException) -> Ready:
    text = users_traceback(error)
    if isinstance(error, PenstockError):
        return Ready(str(error), type(error).__name__, text)
    return Ready(f"make_loader raised {type(error).__name__}: {error}\n\nIn the feeder:\n{text}", "", text)
