"""Lines below what is printed: what is printed stays whole, and they are drawn after it."""

from __future__ import annotations

import os
import pty
import re
import select
import tty
from collections.abc import Iterator
from contextlib import closing

import pytest

from penstock.runs.launch import terminal as launch_terminal
from penstock.runs.launch.terminal import Below


class Terminal:
    """A terminal that knows the escape sequences that are used.

    Attributes:
        fd: Where programs print.
    """

    def __init__(self) -> None:
        self._mine, self.fd = pty.openpty()
        tty.setraw(self.fd)
        self._screen, self._line = [""], 0

    def shown(self) -> tuple[list[str], list[str]]:
        """Return the lines above the cursor, and those from it on."""
        data = b""
        while select.select([self._mine], [], [], 0)[0]:
            data += os.read(self._mine, 65536)
        for sequence in re.split(r"\x1b\[", re.sub(r"\x1b\[\?7[lh]|\r", "", data.decode())):
            if up := re.match(r"(\d+)A", sequence):
                self._line -= int(up[1])
            elif sequence.startswith("J"):
                del self._screen[self._line :]
                self._screen.append("")
            for each in re.sub(r"^(\d+A|J)", "", sequence).splitlines(keepends=True):
                self._screen[self._line] = each.rstrip("\n")
                if each.endswith("\n"):
                    self._line += 1
                    self._screen += [""] * (self._line == len(self._screen))
        return self._screen[: self._line], self._screen[self._line :]

    def close(self) -> None:
        os.close(self._mine)
        os.close(self.fd)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with closing(Terminal()) as opened:
        yield opened


class Clock:
    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch) -> Clock:
    monkeypatch.setattr(launch_terminal, "time", clock := Clock())
    return clock


def test_lines_are_refreshed_each_second_and_stay_below_what_is_printed(terminal, clock) -> None:
    ticks = iter(range(9))
    lines = Below(lambda: [f"tick {next(ticks)}", "running"], terminal.fd)
    assert lines.refresh() == pytest.approx(1.0)
    lines.write(terminal.fd, b"first\n")
    assert terminal.shown() == (["first"], [""]), "a run that ends at once shows nothing"
    clock.now_s += 1
    assert lines.refresh() == pytest.approx(1.0)
    assert terminal.shown() == (["first"], ["tick 0", "running"])
    clock.now_s += 0.5
    lines.write(terminal.fd, b"second\nthird\n")
    assert terminal.shown() == (["first", "second", "third"], ["tick 0", "running"])
    clock.now_s += 0.5
    lines.refresh()
    assert terminal.shown() == (["first", "second", "third"], ["tick 1", "running"])
    lines.close()
    lines.close()
    assert terminal.shown() == (["first", "second", "third"], [""])


def test_in_a_flood_lines_below_are_drawn_when_it_pauses(terminal, clock) -> None:
    lines = Below(lambda: ["a", "b", "c"], terminal.fd)
    clock.now_s += 1
    lines.refresh()
    for number in range(100):
        lines.write(terminal.fd, b"%d\n" % number)
    assert terminal.shown() == ([str(number) for number in range(100)], [""])
    assert 0 < lines.refresh() < 0.1, "soon"
    clock.now_s += 0.1
    assert lines.refresh() == pytest.approx(0.9)
    assert terminal.shown()[1] == ["a", "b", "c"]


def test_what_another_process_prints_meanwhile_stays_and_is_not_mistaken_for_a_line(terminal, clock) -> None:
    lines = Below(lambda: ["a", "b"], terminal.fd)
    clock.now_s += 1
    lines.refresh()
    os.write(terminal.fd, b"penstock: said by another\n")
    clock.now_s += 1
    lines.refresh()
    assert terminal.shown() == (["penstock: said by another"], ["a", "b"])


def test_what_goes_into_a_file_is_left_as_it_is(terminal, clock, tmp_path) -> None:
    lines = Below(lambda: ["a"], terminal.fd)
    clock.now_s += 1
    lines.refresh()
    with (tmp_path / "errors").open("wb") as file:
        lines.write(file.fileno(), b"an error\n")
    assert (tmp_path / "errors").read_bytes() == b"an error\n"
    assert terminal.shown() == ([], ["a"])
