"""What a process must see to when it forks: its connections, its locks, its imports.

A loader's worker, or any other child, must not hold a connection or a lock
after its parent has died: others would wait for a dead process.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol

from penstock.linux.when_gone import Living


class _Closable(Protocol):
    def close(self) -> None: ...


_MOST_S = 5.0
"""A fork waits no longer for an import: that may itself wait for a module that the forking thread imports."""

importing = threading.RLock()
"""To be held while importing what forked children may want, too; forks wait for it.

A child forked amid another thread's import would wait for that thread, which it does not have.
"""
_owned = Living[_Closable]()


def close_in_children(owned: _Closable) -> None:
    """Close this socket or file in every child that this process forks."""
    _owned.add(owned)


def fill_standard_descriptors() -> None:
    """Open ``/dev/null`` as each of descriptors 0 to 2 that is closed, as a daemon's can be.

    Otherwise a socket or a ring could get such a number, and whatever a library prints.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # the lowest that is free
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _close_all() -> None:
    for owned in _owned:
        owned.close()
        _owned.discard(owned)


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
