"""Shows what runs print."""

from __future__ import annotations

import os
from collections.abc import Callable

from penstock.runs.keeper.output import collapse, last_state
from penstock.runs.launch.below import Below, write

_COLOURS = (36, 33, 35, 32, 34, 31)


class AsItIs:
    """Shows the output of one run unchanged."""

    def add(self, run: int, descriptor: int, data: bytes) -> None:
        """Show this."""
        write(descriptor, data)

    def close(self, run: int) -> None:
        """Do nothing: all is shown."""

    def refresh(self) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""


class Prefixed:
    """Shows whole lines of several runs, each with its run's name before it.

    Args:
        names: Names of the runs.
        below: Returns the lines to be kept below them, if any.
    """

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
