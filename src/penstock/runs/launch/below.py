"""A few lines that stay below what is printed to a terminal, drawn afresh as time goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

from penstock.errors import PenstockError

_REFRESH_S = 1.0
_CALM_S = 0.02
_ERASED = b"\r\x1b[J"
_CUT_OFF, _WRAPPED = "\x1b[?7l", "\x1b[?7h"  # what lines do that are longer than a terminal that was made smaller


class Below:
    """Keeps lines below what is printed.

    The cursor stands before the first of them. So whatever others print meanwhile, and whatever a window of
    another size does to the lines, they are erased from there on, and nothing else is.

    Args:
        lines: Returns them, as they are now, escape sequences and all; fewer than the terminal has.
        terminal: Descriptor of the terminal.
    """

    def __init__(self, lines: Callable[[], list[str]], terminal: int = 1) -> None:
        self._terminal = terminal
        self._lines = lines
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
        # In a flood of lines it would be drawn more often than it can be read.
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
            with suppress(OSError):  # the terminal is gone: a signal says so
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
    """Write all of it.

    Raises:
        BrokenPipeError: nobody reads there any more.
    """
    while data:
        data = data[os.write(descriptor, data) :]
