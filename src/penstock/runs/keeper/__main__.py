"""``python -m penstock.runs.keeper ORDER_FD LINK_FD``: keep a run.

The process that starts here guards another, which keeps the run. If that one
is killed, the kernel kills the command, and the guard ends what else is left.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

if not __package__:  # started by its file, so that nothing of the run's own Python settings reaches it
    sys.path.insert(0, os.path.abspath(f"{__file__}/../../../.."))

import signal

from penstock.linux.process import adopt_orphans, descendants
from penstock.runs.keeper.keeper import FEEDER, Keeper
from penstock.runs.keeper.order import Order


def main(order_fd: int, link: int) -> None:
    """Keep the run of the order in a file, linked to what started it."""
    adopt_orphans()
    os.chdir("/")
    if keeper := os.fork():
        _guard(keeper)
    else:
        adopt_orphans()
        Keeper(Order.from_file(order_fd), link).keep()


def _guard(keeper: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    with open(os.devnull, "r+b", 0) as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)
    os.waitpid(keeper, 0)
    while left := descendants(os.getpid(), without=FEEDER):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(-1, 0)


main(int(sys.argv[1]), int(sys.argv[2]))
