"""``python -m penstock.runs.keeper ORDER_FD LINK_FD [HELD_FD ...]``: look after a run.

The process that starts here guards another, the keeper. If the keeper is
killed, the kernel kills the command, and the guard ends what else is left.
Both hold the other descriptors open; once these are closed, nothing is left of the run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from contextlib import suppress

if not __package__:  # started by its file, so that nothing of the run's own Python settings reaches it
    sys.path.insert(0, os.path.abspath(f"{__file__}/../../../.."))

from penstock.linux.process import adopt_orphans, ignore_sent, kill_descendants
from penstock.runs.keeper.keeper import FEEDER, Keeper
from penstock.runs.keeper.link import Assignment


def main(order_fd: int, link: int, *held: int) -> None:
    """Look after the run that a file assigns, linked to what started it."""
    adopt_orphans()
    os.chdir("/")
    for fd in held:
        os.set_inheritable(fd, False)
    if keeper := os.fork():
        _guard(keeper, held)
    else:
        adopt_orphans()
        Keeper(Assignment.from_file(order_fd), link).run()


def _guard(keeper: int, held: Collection[int]) -> None:
    ignore_sent()
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in held:
            with suppress(OSError):  # that of the list itself
                os.close(fd)
    with open(os.devnull, "r+b", 0) as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)
    os.waitpid(keeper, 0)
    kill_descendants(without=FEEDER)


main(*map(int, sys.argv[1:]))
