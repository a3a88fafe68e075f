"""The terminal of ``penstock run``, while a run has one of its own in its place."""

from __future__ import annotations

import os
import select
import signal
import termios
import tty
from typing import Any, Self

from penstock.runs.launch.launched import Launched, terminal_size
from penstock.runs.launch.launcher import Launcher


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
    """Passes what is typed, and the window's size, on to a run in a ``with`` block.

    The run's own terminal does the rest.

    Args:
        run: The run.
        which: Which of descriptors 0 to 2 are a terminal.
    """

    def __init__(self, run: Launched, which: tuple[bool, bool, bool]) -> None:
        self._run = run
        self._shown_at = which.index(True)
        self._typed_at = 0 if which[0] else None
        self._before: list[Any] | None = None

    def __enter__(self) -> Self:
        self._resized = signal.signal(signal.SIGWINCH, self._resize)
        self._resize()  # it may have changed meanwhile
        if self._typed_at is not None:
            self._before = termios.tcgetattr(self._typed_at)
            tty.setraw(self._typed_at, termios.TCSADRAIN)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGWINCH, self._resized)
        if self._before is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, self._before)

    def wait(self, launcher: Launcher) -> bool:
        """Wait for what is typed, and pass it on, or for the launcher; return whether that has something to do."""
        ready = select.select([launcher, *([] if self._typed_at is None else [0])], [], [])[0]
        if 0 in ready:
            try:
                data = os.read(0, 4096)
            except OSError:
                data = b""
            if data:
                self._run.type(data)
            else:  # the terminal is gone
                self._typed_at = None
        return launcher in ready

    def _resize(self, *_: object) -> None:
        self._run.send(size=terminal_size(self._shown_at))
