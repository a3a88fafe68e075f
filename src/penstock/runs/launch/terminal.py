"""The terminal of ``penstock run``, while a run has one of its own in its place."""

from __future__ import annotations

import os
import signal
import termios
import tty
from typing import Any

from penstock.runs.launch.kept_run import KeptRun, terminal_size


def terminals() -> tuple[bool, bool, bool]:
    """Return which of descriptors 0 to 2 are a terminal that is this process's to use."""
    return os.isatty(0) and _in_foreground(), os.isatty(1), os.isatty(2)


def stdin_is_ours() -> bool:
    """Return whether standard input may be read: not the terminal of another job."""
    return not os.isatty(0) or _in_foreground()


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # a terminal, but not the one that controls this process: nobody else's job reads there
        return True


class Terminal:
    """Passes what is typed, and the window's size, on to a run; the run's own terminal does the rest.

    Args:
        run: The run.
        which: Which of descriptors 0 to 2 are a terminal.
    """

    def __init__(self, run: KeptRun, which: tuple[bool, bool, bool]) -> None:
        self._run = run
        self._shown_at = which.index(True)
        self._typed_at = 0 if which[0] else None
        self._before: list[Any] | None = None

    def open(self) -> None:
        """Pass all on from now."""
        self._resized = signal.signal(signal.SIGWINCH, self._resize)
        self._resize()  # it may have changed meanwhile
        if self._typed_at is not None:
            self._before = termios.tcgetattr(self._typed_at)
            tty.setraw(self._typed_at, termios.TCSADRAIN)

    def read(self) -> bool:
        """Pass on what was typed; return False once the terminal is gone."""
        try:
            data = os.read(0, 4096)
        except OSError:
            data = b""
        if data:
            self._run.type(data)
        return bool(data)

    def close(self) -> None:
        """Leave the terminal as it was."""
        signal.signal(signal.SIGWINCH, self._resized)
        if self._before is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, self._before)

    def _resize(self, *_: object) -> None:
        self._run.send(size=terminal_size(self._shown_at))
