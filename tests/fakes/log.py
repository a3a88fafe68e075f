"""A log in this process's memory, whose records a test adds and takes away."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.contracts import Beginning, Bound, Lag, LogRecords, Part
from penstock.errors import StreamTruncated


@dataclass
class ListLog:
    """Partitions that are lists; what a test does to ``partitions`` and ``low`` happens to every reader."""

    partitions: list[list[bytes]]
    low: list[int] = field(default_factory=list[int])  # the first record of each that is left
    skips: bool = False
    name: str = "list"
    description: str = "records of lists"
    lost: int = 0
    trouble: str = ""
    reads: int = 0  # calls of ``read`` that gave something

    def __post_init__(self) -> None:
        self.low = self.low or [0] * len(self.partitions)
        self._places = [0] * len(self.partitions)
        self._turn = 0
        self._lock = threading.Lock()

    def begin(self, start: Beginning) -> Bound | None:
        return self._bound(self.low if start == "earliest" else [len(each) for each in self.partitions])

    def seek(self, to: Bound) -> None:
        self._places = [0] * len(self.partitions)
        for part in to.parts:
            self._places[part.number] = self._there(part.number, part.offset)

    def read(self, most: int, wait_s: float) -> LogRecords:
        until = time.monotonic() + wait_s
        while True:
            with self._lock:
                for _ in self.partitions:  # by turns, so that records of several partitions mix
                    self._turn = (self._turn + 1) % len(self.partitions)
                    number, first = self._turn, self._places[self._turn]
                    if data := self.partitions[number][first : first + min(most, 3)]:
                        self._places[number] += len(data)
                        self.reads += 1
                        return LogRecords([number << 48 | first + i for i in range(len(data))], data)
            if time.monotonic() >= until:
                return LogRecords([], [])
            time.sleep(0.01)

    @property
    def at(self) -> Bound:
        return self._bound(self._places)

    def between(self, begin: Bound, end: Bound) -> Iterator[LogRecords]:
        first = {part.number: part.offset for part in begin.parts}
        for number, stop, *_ in end.parts:
            start = self._there(number, first.get(number, 0))
            yield LogRecords([number << 48 | i for i in range(start, stop)], self.partitions[number][start:stop])

    def divide(self, begin: Bound, end: Bound, parts: int) -> Bound:
        first = {part.number: part.offset for part in begin.parts}
        ends = [first.get(number, 0) + (stop - first.get(number, 0)) // parts for number, stop, *_ in end.parts]
        return self._bound(ends)

    def lag(self) -> Lag:
        left = sum(len(each) - place for each, place in zip(self.partitions, self._places, strict=True))
        return Lag(left, None, len(self.partitions))

    def close(self) -> None:
        """There is nothing to release."""

    def _there(self, number: int, offset: int) -> int:
        if (low := self.low[number]) > offset:
            if not self.skips:
                raise StreamTruncated(f"partition {number} begins at record {low}, and {offset} was wanted")
            self.lost += low - offset
        return max(low, offset)

    @staticmethod
    def _bound(places: list[int]) -> Bound:
        return Bound(len(places), "", tuple(Part(number, place) for number, place in enumerate(places)))
