"""The terminal of penstock run: what runs print, lines below that, and a run's own terminal in its place."""

from __future__ import annotations

import os
import select
import signal
import termios
import time
import tty
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, Self

from penstock.basics.terminal import say
from penstock.errors import PenstockError
from penstock.runs.keeper.output import collapse, last_state
from penstock.runs.launch.launched import Launched
from penstock.runs.launch.launcher import Launcher

_REFRESH_S = 1.0
_CALM_S = 0.02
_ERASED = b"\r\x1b[J"
_CUT_OFF, _WRAPPED = "\x1b[?7l", "\x1b[?7h"  # of lines that are longer than a terminal is wide


class Below:
    """Shows lines below what is printed.

    The cursor stands before the first of them, and they are erased from there on: that stays right when others
    print meanwhile, or the window changes its size.
    """

    def __init__(self, lines: Callable[[], list[str]], terminal: int = 1) -> None:
        self._terminal = terminal  # descriptor of the terminal
        self._lines = lines  # returns them, as they are now, escape sequences and all; fewer than the terminal has
        self._drawn = b""
        self._is_shown = False
        self._shown_s = 0.0
        self._due_s = time.monotonic() + _REFRESH_S

    def write(self, descriptor: int, data: bytes) -> None:
        """Print whole lines above."""
        if not os.isatty(descriptor):
            write(descriptor, data)
            return
        erased = _ERASED if self._is_shown else b""
        # In a flood of lines they would be drawn more often than anybody can read.
        self._is_shown = bool(self._drawn) and time.monotonic() - self._shown_s >= _CALM_S
        if self._is_shown:
            data += self._drawn
            self._shown_s = time.monotonic()
        write(descriptor, erased + data)

    def refresh(self) -> float:
        """Draw what is due; return the seconds until something will be."""
        if (is_due := time.monotonic() >= self._due_s) or self._draws_again_s() <= time.monotonic():
            if is_due:
                self._due_s = time.monotonic() + _REFRESH_S
                with suppress(OSError, PenstockError):  # the terminal is gone, or the store is full: runs go on
                    lines = self._lines()
                    up = f"\x1b[{len(lines) - 1}A" if len(lines) > 1 else ""
                    self._drawn = (_CUT_OFF + "\n".join(lines) + _WRAPPED + "\r" + up).encode(errors="replace")
            with suppress(OSError):  # the terminal is gone: a signal follows
                write(self._terminal, _ERASED + self._drawn)
            self._is_shown, self._shown_s = True, time.monotonic()
        return max(0.0, min(self._due_s, self._draws_again_s()) - time.monotonic())

    def close(self) -> None:
        """Erase them."""
        if self._is_shown:
            self._is_shown = False
            with suppress(OSError):
                write(self._terminal, _ERASED)

    def _draws_again_s(self) -> float:
        return self._shown_s + _CALM_S if self._drawn and not self._is_shown else self._due_s


def write(descriptor: int, data: bytes) -> None:
    """Write all of it, or say once why it cannot be, such as that a disk is full."""
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except BrokenPipeError:
        raise
    except OSError as error:
        _say_unprinted(descriptor, error.strerror)


@cache
def _say_unprinted(descriptor: int, why: str) -> None:
    where = "output" if descriptor == 1 else "error"
    say(f"not all that runs print can be written to standard {where}: {why}; they go on: see penstock runs logs")


_COLOURS = (36, 33, 35, 32, 34, 31)


class Prefixed:
    """Shows whole lines of several runs, each behind its run's name, and below them what ``below`` returns."""

    def __init__(self, names: list[str], below: Callable[[], list[str]] | None = None) -> None:
        self._below = Below(below) if below else None
        self._write = self._below.write if self._below else write
        width = max(map(len, names))
        self._names = [name.ljust(width).encode(errors="replace") for name in names]
        self._unfinished: dict[tuple[int, int], bytes] = {}
        self._coloured = {fd: os.isatty(fd) and "NO_COLOR" not in os.environ for fd in (1, 2)}

    def add(self, run: int, descriptor: int, data: bytes) -> None:
        """Show the lines that this ends."""
        whole, rest = collapse(self._unfinished.pop((run, descriptor), b"") + data)
        if rest:
            self._unfinished[run, descriptor] = rest
        if whole:
            prefix = self._names[run] + b" | "
            if self._coloured[descriptor]:
                prefix = b"\x1b[%dm%s\x1b[0m" % (_COLOURS[run % len(_COLOURS)], prefix)
            self._write(descriptor, b"".join(prefix + line + b"\n" for line in whole[:-1].split(b"\n")))

    def close(self, run: int) -> None:
        """Show the line that it did not end."""
        for descriptor in (1, 2):
            if rest := last_state(self._unfinished.pop((run, descriptor), b"")):
                self.add(run, descriptor, rest + b"\n")

    def refresh(self) -> float | None:
        """Draw the lines below, if they are due."""
        return self._below.refresh() if self._below else None

    def end(self) -> None:
        """Erase the lines below."""
        if self._below:
            self._below.close()


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

    The run's own terminal does the rest. ``which`` says which of descriptors 0 to 2 are a terminal.
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
        self._run.send(size=os.get_terminal_size(self._shown_at))
