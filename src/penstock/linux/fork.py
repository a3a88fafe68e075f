"""What a process must see to when it forks: its connections, its locks, its imports.

A loader's worker, or any other child, must not keep a connection or a lock
after its parent has died: others would wait for a dead process.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class _Closable(Protocol):
    def close(self) -> None: ...


_MOST_S = 5.0
"""A fork waits no longer for an import: that may itself wait for a module that the forking thread imports."""

importing = threading.RLock()
"""To be held while importing what forked children may want, too; forks wait for it.

A child that is forked amid another thread's import would wait for that thread, which it does not have.
"""
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


class _Imports:
    is_held = False

    def hold(self) -> None:
        self.is_held = importing.acquire(timeout=_MOST_S)

    def let_go(self) -> None:
        if self.is_held:
            importing.release()


_imports = _Imports()
os.register_at_fork(before=_imports.hold, after_in_parent=_imports.let_go, after_in_child=_imports.let_go)
os.register_at_fork(after_in_child=_close_all)
