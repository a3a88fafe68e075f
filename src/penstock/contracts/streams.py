"""Logs: records that arrive all the time and stay where they are, and how far a stream has been read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Literal, NamedTuple, Protocol

Beginning = Literal["earliest", "latest"]


class Part(NamedTuple):
    """How far one partition of a log, or one of its files, has been read.

    Attributes:
        number: The partition; files are numbered as they are found, those found at once in the order of names.
        offset: The record that comes next; all before it have been read.
        name: Name of a file; empty for a partition.
        byte: Where that record begins in the file.
    """

    number: int
    offset: int
    name: str = ""
    byte: int = 0


class Bound(NamedTuple):
    """Where a cycle of a stream begins, and the one before it ends.

    Attributes:
        numbers: Partitions, or files, that have a number.
        finished: Of a folder: all files up to this name have been read, and may not grow; empty before the first.
        parts: How far the others have been read, by rising number; of a folder also finished files whose number
            does not follow from their names.
    """

    numbers: int = 0
    finished: str = ""
    parts: tuple[Part, ...] = ()

    def is_before(self, other: Bound) -> bool:
        """Whether nothing lies before this bound that does not lie before another; a bound is before itself."""
        theirs = {part.number: part for part in other.parts}

        def passed(part: Part) -> bool:
            if part.name and part.name <= other.finished:
                return True
            there = theirs.get(part.number)
            if there is None or there.name != part.name:
                return False
            return there.offset >= part.offset and there.byte >= part.byte

        before = self.numbers <= other.numbers and self.finished <= other.finished
        return before and all(map(passed, self.parts))


class LogRecords(NamedTuple):
    """Records of a log.

    Attributes:
        ids: For each its number: of a partition's record ``partition << 48 | offset``, of a file's
            ``file << 32 | record``. Rising numbers are the order of (partition, offset).
        data: Their bytes.
    """

    ids: list[int]
    data: list[bytes]


class Lag(NamedTuple):
    """How far the end of a log is from a place in it.

    Attributes:
        records: Records that have not been read; of a folder that grows, as far as its files say.
        seconds: Age of the newest record that has been read, in seconds; None where nobody knows.
        partitions: Partitions, or files that may still grow.
    """

    records: int
    seconds: float | None
    partitions: int


class Log(Protocol):
    """Partitions of records, each of which has one place for ever, read by one thread from one place on.

    ``between`` and ``divide`` may be called by another thread. ``penstock.testing`` has its test suite.
    """

    @property
    def name(self) -> str:
        """Which log it is, in every process and on every machine: a topic, or the last part of a folder's path."""
        ...

    @property
    def description(self) -> str:
        """The log in a few words, for a person."""
        ...

    @property
    def lost(self) -> int:
        """Losses that were skipped so far (``on_loss="skip"``): records, or files where nobody counts those."""
        ...

    @property
    def trouble(self) -> str:
        """Why nothing comes at the moment, such as a broker that does not answer; empty if nothing is known."""
        ...

    def begin(self, start: Beginning) -> Bound | None:
        """Return the bound before the earliest record that is there, or behind the latest; None while unknown."""
        ...

    def seek(self, to: Bound) -> None:
        """Read on from a bound.

        Raises:
            StreamTruncated: records behind it are gone, and losses are not skipped.
        """
        ...

    def read(self, most: int, wait_s: float) -> LogRecords:
        """Return records that come next, at most so many; none if none come in about this time.

        Raises:
            StreamTruncated: as ``seek``, or what has been read was changed.
        """
        ...

    @property
    def at(self) -> Bound:
        """The bound behind the last record that was read, by ``read``."""
        ...

    def between(self, begin: Bound, end: Bound) -> Iterator[LogRecords]:
        """Yield all records between two bounds, in any order.

        Raises:
            StreamTruncated: some are gone, and losses are not skipped.
        """
        ...

    def divide(self, begin: Bound, end: Bound, parts: int) -> Bound:
        """Return where the first of so many parts of what lies between two bounds ends, about equally large."""
        ...

    def lag(self) -> Lag:
        """Return how far the end is from ``at``; the thread that reads asks, now and then."""
        ...

    def close(self) -> None:
        """Release files and connections; may be called twice."""
        ...


class CycleBegin(NamedTuple):
    """Where a cycle begins, and how many records the one before has, which ends there; -1 while nobody knows."""

    cycle: int
    bound: Bound
    before: int = -1


def begins_fit(begins: Sequence[CycleBegin]) -> bool:
    """Whether a stream's cycles may begin so: cycles and numbers rise, and nothing is below 0."""
    return _rise([each.cycle for each in begins]) and all(
        each.before >= -1
        and _rise([*(part.number for part in each.bound.parts), each.bound.numbers])
        and all(part.offset >= 0 and part.byte >= 0 and "/" not in part.name for part in each.bound.parts)
        for each in begins
    )


def _rise(numbers: Sequence[int]) -> bool:
    return all(one < other for one, other in pairwise((-1, *numbers)))


Column = tuple[str, str, str, tuple[int, ...]]
"""A leaf of a stream's rows: its name and kind, the type of its numbers, the shape of one."""
_NUMBERS = re.compile(r"[<>|=]?[biufcmM]\d{1,2}(\[\w{1,4}\])?", re.ASCII)


def columns_fit(columns: Sequence[Column]) -> bool:
    """Whether rows may have these leaves."""
    return len(columns) <= 10_000 and all(
        (kind in ("text", "bytes") or (kind in ("fixed", "list") and _NUMBERS.fullmatch(dtype) is not None))
        and all(0 <= each < 2**31 for each in shape)
        and prod(shape) < 2**31
        for _, kind, dtype, shape in columns
    )


class CycleNotNeeded(Exception):
    """Nobody needs a cycle any more, which was being read or waited for."""


class Cycles(Protocol):
    """What a feed knows of the cycles of its stream, for the source that reads them.

    Attributes:
        columns: The leaves of its rows, as whoever has read them knows; empty while nobody has.
    """

    columns: tuple[Column, ...]

    def begin(self, cycle: int) -> Bound | None:
        """Return where a cycle begins; None for the first of a stream that nobody has read."""
        ...

    def ahead(self, cycle: int) -> tuple[Bound, int, int] | None:
        """Return the next bound behind a cycle that is known, and how many cycles lie before it, with this one.

        The last number is that of the records of this one, if it ends there; -1 while it has not been closed.
        """
        ...

    def fix(self, begin: CycleBegin) -> None:
        """Fix where a cycle begins, and let all who read know; with records, that closes the one before.

        No block of the one before is given earlier.

        Raises:
            CycleNotNeeded: nobody needs the cycle that is closed so, or else this one; or it begins elsewhere.
        """
        ...

    def check_needed(self, cycle: int, waits_for: str) -> None:
        """Note what a cycle waits for, for people.

        Raises:
            CycleNotNeeded: nobody needs it any more.
        """
        ...
