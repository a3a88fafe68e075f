"""Closes what belongs to one process in every child that it forks.

A loader's worker, or any other child, must not keep a connection or a lock
after its parent has died: others would wait for a dead process.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class _Closable(Protocol):
    def close(self) -> None: ...


_owned: weakref.WeakSet[_Closable] = weakref.WeakSet()


def close_in_children(owned: _Closable) -> None:
    """Close this socket or file in every child that this process forks."""
    _owned.add(owned)


def fill_standard_descriptors() -> None:
    """Open ``/dev/null`` as each of descriptors 0 to 2 that is closed, as a daemon's can be.

    Otherwise a socket or a ring could get such a number, and whatever a library prints.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def _close_all() -> None:
    for owned in list(_owned):
        owned.close()
    _owned.clear()


os.register_at_fork(after_in_child=_close_all)
