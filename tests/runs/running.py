"""`penstock run` as a process, and what is left of it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.forked import Forked, ForkServer, eventually

from penstock.runs.record import RunRecord
from penstock.runs.store import Store

IN_TERMINAL = Path(__file__).parent / "in_terminal.py"
UNWATCHED = ("--listeners", "none")
"""For tests of something else than what is sampled: the sampler is one more Python, with NumPy."""


class Launch(Forked):
    """A `penstock run`, with a store of its own."""

    def __init__(self, server: ForkServer, folder: Path, *words: str, **environment: str) -> None:
        self._run(server, folder, "penstock", ["run", *words], {"COLUMNS": "200", **environment})

    def _run(self, server: ForkServer, folder: Path, what: str, words: list[str], more: dict[str, str]) -> None:
        self.folder, self._errors = folder, folder / "errors"
        (folder / "store").mkdir(mode=0o700, exist_ok=True)  # one that is new is told of
        environment = {**os.environ, "PENSTOCK_STORE": str(folder / "store"), **more}
        at = {"errors": self._errors, "directory": folder, "environment": environment}
        super().__init__(server, what, words, folder / "out", **at)

    @property
    def errors(self) -> str:
        return self._errors.read_text(errors="replace")

    def records(self) -> list[RunRecord]:
        return records(self.folder)

    def record(self) -> RunRecord:
        (only,) = self.records()
        return only

    def wait_until_said(self, text: str) -> None:
        eventually(lambda: text in self.output or self.ended, f"never said {text!r}: {self.output} {self.errors}")
        assert text in self.output, self.output + self.errors

    def kept(self, place: int = 0) -> str:
        with Store.open(self.folder / "store") as store:
            return (store.folder_of(self.records()[place].id) / "output").read_text(errors="replace")

    def close(self) -> None:
        self.kill()


@contextmanager
def launches(kind: type[Launch], servers: dict[str, ForkServer], folder: Path) -> Generator[Callable[..., Any]]:
    """Give what starts a `penstock run` of this kind; nothing of it outlives the test."""
    launched: list[Launch] = []

    def start(*words: str, **environment: str) -> Launch:
        launched.append(kind(servers["command"], folder, *words, **environment))
        return launched[-1]

    yield start
    for each in launched:
        each.close()
    nothing_is_left(folder)


def records(folder: Path) -> list[RunRecord]:
    with Store.open(folder / "store") as store:
        return store.runs()


def left(folder: Path) -> list[int]:
    """The processes whose store lies there."""
    found = list[int]()
    named = b"\0PENSTOCK_STORE=" + os.fsencode(folder / "store") + b"\0"
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if named in b"\0" + file.read():
                found.append(int(pid))
    return found


def nothing_is_left(folder: Path) -> None:
    eventually(lambda: not left(folder), f"left behind: {left(folder)}")


class InTerminal(Launch):
    """A `penstock run` in a terminal of 30 lines and 100 columns."""

    def __init__(self, server: ForkServer, folder: Path, *words: str, terminal: str = "xterm") -> None:
        self.terminal, self.theirs = pty.openpty()
        self.resize(30, 100)
        self.shown = b""
        self._run(server, folder, str(IN_TERMINAL), [os.ttyname(self.theirs), "run", *words], {"TERM": terminal})
        self._leader = self.pid
        self.pid = int(eventually(lambda: self.output.endswith("\n") and self.output))

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))

    def attributes(self) -> list[object]:
        return termios.tcgetattr(self.theirs)

    def type(self, data: bytes) -> None:
        os.write(self.terminal, data)

    def wait_until_said(self, text: str) -> None:
        eventually(lambda: text in self.read() or self.ended)
        assert text in self.read(), self.shown

    def read(self) -> str:
        while select.select([self.terminal], [], [], 0)[0]:
            self.shown += os.read(self.terminal, 65536)
        return self.shown.decode(errors="replace")

    def close(self) -> None:
        self.signal("SIGKILL")
        with suppress(ProcessLookupError):
            os.kill(self._leader, signal.SIGKILL)
        self.wait()
        os.close(self.terminal)
        os.close(self.theirs)


PYTHON = sys.executable
