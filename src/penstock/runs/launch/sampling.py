"""The sampling process of a ``penstock run``, told which runs go on; if it dies, another takes over."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress

import msgspec

from penstock.inject import without_injection
from penstock.runs.messages import Begin, End
from penstock.runs.store import Store

_MOST_STARTS = 10
_END_S = 5.0


class Sampling:
    """Has listeners sampled while runs go on; that never stops or delays a run.

    Args:
        store: Where the runs are.

    Attributes:
        ended: A descriptor that can be read once the process has died; None without a process.
    """

    def __init__(self, store: Store) -> None:
        self._folder = store.folder
        self._runs: dict[str, Begin] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self.ended: int | None = None
        self._starts = 0

    def begin(self, id: str, listeners: tuple[str, ...] | None) -> None:
        """Sample a run from now on; nothing if ``listeners`` is empty."""
        if listeners == ():
            return
        self._runs[id] = Begin(id, listeners)
        if self._process is None:
            self._start()
        else:
            self._tell(self._runs[id])

    def end(self, id: str) -> None:
        """Sample a run no more."""
        if self._runs.pop(id, None):
            self._tell(End(id))

    def restart(self) -> None:
        """Start another process in place of one that died; not without end, if each dies."""
        self._reap()
        if self._runs and self._starts < _MOST_STARTS:
            self._start()

    def close(self) -> None:
        """End the process, once it has written all that it sampled."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reap()

    def _start(self) -> None:
        self._starts += 1
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.runs.sampler", str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=without_injection(os.environ),
            start_new_session=True,
        )
        self.ended = os.pidfd_open(self._process.pid)
        for begin in self._runs.values():
            self._tell(begin)

    def _tell(self, message: Begin | End) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            with suppress(OSError):  # it has died, and its successor is told
                self._process.stdin.write(msgspec.json.encode(message) + b"\n")
                self._process.stdin.flush()

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait()
            assert self._process.stdin is not None and self.ended is not None
            with suppress(OSError):
                self._process.stdin.close()
            os.close(self.ended)
            self._process = self.ended = None
