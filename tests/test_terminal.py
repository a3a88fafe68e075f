"""Text of a user's on a terminal: shown, never obeyed."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.basics.terminal import console, prepare_output, printable, printable_lines, say


@given(st.text())
def test_any_text_becomes_one_printable_line(text):
    assert printable(text).isprintable()


@pytest.mark.parametrize("text", ["imagenet/train", "größe × 2", "数据", "[red]", "a\\b"])
def test_what_can_be_printed_stays_as_it_is(text):
    assert printable(text) == printable_lines(text) == text


def test_lines_stay_lines():
    assert printable_lines("a\x1b[2J\n\tb\x07") == "a\\x1b[2J\n        b\\x07"


@pytest.mark.parametrize("text", ["[bold]x[/bold]", ":smile:", "[link=file:///]here[/link]", "[/]", "1.5 'x'"])
def test_a_console_takes_no_text_for_markup(text):
    said = io.StringIO()
    console(file=said, force_terminal=True).print(text)
    assert said.getvalue() == f"{text}\n"


class ShortWrites(io.RawIOBase):
    """Takes two bytes at a time, as a terminal takes 2,048 where a signal is due."""

    def __init__(self) -> None:
        self.taken = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self.taken += bytes(data[:2])
        return len(data[:2])


def test_unbuffered_output_is_written_whole_and_at_once(monkeypatch: pytest.MonkeyPatch):
    raw = ShortWrites()
    unbuffered = io.TextIOWrapper(raw, "ascii", write_through=True)  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "stdout", unbuffered)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    prepare_output()
    print("all of it ×", end="")
    assert raw.taken == b"all of it x"


def test_a_sentence_and_its_line_break_are_one_write(monkeypatch: pytest.MonkeyPatch):
    written: list[str] = []
    stream = io.StringIO()
    monkeypatch.setattr(stream, "write", written.append)
    monkeypatch.setattr(sys, "stderr", stream)
    say("one of two threads")
    assert [text for text in written if text] == ["penstock: one of two threads\n"]
