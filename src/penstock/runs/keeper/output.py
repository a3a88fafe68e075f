"""The stored output of a run: its head, its tail, and progress bars in their last state."""

from __future__ import annotations

import os
import re
from typing import BinaryIO

HEAD_BYTES = 1 << 20
TAIL_BYTES = 7 << 20
_LONGEST_LINE = 1 << 16
_RECENT_BYTES = 1 << 14
_NOTE = re.compile(rb"\n\[penstock left out ([\d,]+) bytes here\]\n")


def collapse(data: bytes) -> tuple[bytes, bytes]:
    """Split what a program printed into whole lines and the line that has no end yet.

    A line that is rewritten by carriage returns, such as a progress bar, is reduced to its last state.
    """
    data = data.replace(b"\r\n", b"\n")
    whole, end, rest = data.rpartition(b"\n")
    if b"\r" in whole:
        whole = b"\n".join(map(last_state, whole.split(b"\n")))
    if b"\r" in rest:  # a last one stays: what comes next takes this state's place
        rest = last_state(rest) + b"\r" * rest.endswith(b"\r")
    return whole + end, rest


def last_state(line: bytes) -> bytes:
    """Return what a line shows in the end: the text after its last carriage return."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def read_output(file: BinaryIO, at: int) -> tuple[bytes, int]:
    """Read on what a run has printed; where the file left some out meanwhile, the line that marks it.

    An ``Output`` writes the file; ``at`` is the byte from which to read, of all that the run printed. The text,
    and the byte from which to read next, are returned.
    """
    file.seek(0, os.SEEK_END)
    head = tail = shift = 0
    if file.tell() > HEAD_BYTES:
        file.seek(0)
        for note in _NOTE.finditer(file.read(HEAD_BYTES + 100)):
            head, tail, shift = (
                note.start(),
                note.end(),
                int(note[1].replace(b",", b"")) + note.start() - note.end(),
            )
    file.seek(at if at <= head else head if at < tail + shift else at - shift)
    text = file.read()
    return text, max(at, file.tell() + shift)


class Output:
    """A file with a run's output, made or emptied, which is whole text at any moment.

    It grows to ``head`` bytes of the beginning and ``tail`` bytes of the end; then half of the tail is left out,
    and one line marks the place.
    """

    def __init__(self, path: str, head: int = HEAD_BYTES, tail: int = TAIL_BYTES) -> None:
        self._recent = b""
        self.failed = ""  # why it could not be written; empty as long as it could
        self._head, self._tail = head, tail
        self._tail_begins = 0
        self._left_out = 0
        self._line = b""
        self._end = self._size = 0
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self.failed = str(error)

    @property
    def recent(self) -> bytes:
        """The last 16 KiB of it."""
        return (self._recent + last_state(self._line))[-_RECENT_BYTES:]

    def add(self, data: bytes) -> None:
        """Add what was printed next."""
        whole, self._line = collapse(self._line + data)
        if len(self._line) > _LONGEST_LINE:
            whole, self._line = whole + self._line, b""
        self._recent = (self._recent + whole)[-_RECENT_BYTES:]
        if not self.failed:
            try:
                self._write(whole)
            except OSError as error:  # no reason for the run to end
                self.failed = str(error)

    def close(self) -> None:
        """End the file, with the line that has no end yet."""
        if self._fd >= 0:
            os.close(self._fd)

    def _write(self, whole: bytes) -> None:
        self._put(whole, self._end)
        self._end += len(whole)
        unfinished = last_state(self._line)
        self._put(unfinished, self._end)
        shown = self._end + len(unfinished)
        if shown < self._size:
            os.ftruncate(self._fd, shown)
        self._size = shown
        if self._end > self._head + self._tail:
            self._leave_out()

    def _put(self, data: bytes, at: int) -> None:
        while data:
            done = os.pwrite(self._fd, data, at)
            data, at = data[done:], at + done

    def _leave_out(self) -> None:
        """Take half of the tail away, in place: whoever reads the file sees its name all the time."""
        if not self._left_out:
            head = os.pread(self._fd, self._head, 0)
            self._head = self._tail_begins = head.rfind(b"\n") + 1 or self._head
        begin = self._end - self._tail // 2
        begin += os.pread(self._fd, _LONGEST_LINE, begin).find(b"\n") + 1
        tail = os.pread(self._fd, self._end - begin, begin)
        self._left_out += begin - self._tail_begins
        note = f"\n[penstock left out {self._left_out:,} bytes here]\n".encode()
        self._put(note + tail, self._head)
        self._tail_begins = self._head + len(note)
        self._end = self._size = self._tail_begins + len(tail)
        os.ftruncate(self._fd, self._end)
        self._write(b"")
