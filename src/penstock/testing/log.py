"""The contract of a log: each record has one place, and two bounds say which records lie between them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import pairwise

import pytest

from penstock.contracts import Beginning, Bound, Log, LogRecords
from penstock.errors import StreamTruncated

_PATIENCE_S = 30.0


class LogContract(ABC):
    """Tests of a log; a subclass named ``Test...`` runs them, each on a log of its own with two partitions."""

    @abstractmethod
    def make(self) -> Log:
        """Make the log, as another process would."""

    @abstractmethod
    def append(self, partition: int, records: list[bytes]) -> None:
        """Add records to partition 0 or 1, or to files that stand for it, as another process does."""

    @abstractmethod
    def truncate(self) -> None:
        """Make those records go that partition 0 has; skip the test where nothing can."""

    @pytest.fixture(autouse=True)
    def _closed(self) -> Iterator[None]:
        self._made: list[Log] = []
        yield
        for log in self._made * 2:
            log.close()

    def _opened(self, at: Bound | Beginning = "earliest") -> Log:
        self._made.append(log := self.make())
        until = time.monotonic() + _PATIENCE_S
        while (bound := log.begin(at) if isinstance(at, str) else at) is None and time.monotonic() < until:
            time.sleep(0.05)
        assert bound is not None, "the log does not know where it begins or ends"
        log.seek(bound)
        return log

    def _append(self, begin: int, end: int) -> list[bytes]:
        """Append records of these numbers to both partitions."""
        both = [[f"{partition}/{i} {'x' * (i % 7)}".encode() for i in range(begin, end)] for partition in (0, 1)]
        for partition, records in enumerate(both):
            self.append(partition, records)
        return both[0] + both[1]

    @pytest.mark.parametrize("count", [1, 13, 50, 99])
    def test_records_come_once_with_rising_ids_and_from_a_bound_on_exactly_the_rest(self, count: int) -> None:
        expected, log = self._append(0, 50), self._opened()
        first, bound = _read(log, count, min(7, count)), log.at
        rest = _read(log, 100 - count) | _read(log, len(more := self._append(50, 60)))
        whole = [data for _, data in sorted((first | rest).items())]
        for partition in (b"0/", b"1/"):
            mine = [data for data in whole if data.startswith(partition)]
            assert mine == [data for data in expected + more if data.startswith(partition)]
        log.seek(bound)
        assert log.at == bound and _read(log, len(rest)) == rest == _read(self._opened(bound), len(rest))
        assert log.name and log.description and log.lost == 0

    @pytest.mark.parametrize("most", [1, 7, 1000])
    def test_the_same_records_lie_between_two_bounds_as_were_read(self, most: int) -> None:
        self._append(0, 30)
        log = self._opened()
        bounds, found = [log.at], list[dict[int, bytes]]()
        for count in (20, 25, 15):
            found.append(_read(log, count, most))
            bounds.append(log.at)
        self._append(30, 40)
        for each in (log, self._opened()):
            assert [_all(each.between(*two)) for two in pairwise(bounds)] == found
            assert _all(each.between(bounds[0], bounds[-1])) == found[0] | found[1] | found[2]

    @pytest.mark.parametrize("parts", [1, 2, 3, 7])
    def test_parts_of_what_lies_between_two_bounds_have_every_record_once(self, parts: int) -> None:
        self._append(0, 70)
        log = self._opened()
        begin, found, end, divided = log.at, _read(log, 140), log.at, dict[int, bytes]()
        for left in range(parts, 0, -1):
            cut = self._opened(begin).divide(begin, end, left)
            assert begin.is_before(cut) and cut.is_before(end)
            part, begin = _all(log.between(begin, cut)), cut
            assert len(part) >= 140 // parts // 2 and not part.keys() & divided.keys()
            divided |= part
        assert begin == end and divided == found

    def test_the_latest_bound_lies_behind_what_is_there_and_the_lag_grows_and_shrinks(self) -> None:
        self._append(0, 20)
        log, begun = self._opened("latest"), time.monotonic()
        assert log.lag().records == 0 and log.read(10, 0.3) == LogRecords([], [])
        assert 0.2 < time.monotonic() - begun < _PATIENCE_S
        expected = self._append(20, 30)
        assert self._opened().lag().records > 0 and sorted(_read(log, 20).values()) == sorted(expected)
        lag = log.lag()
        assert lag.records == 0 and lag.partitions >= 2 and (lag.seconds is None or lag.seconds >= 0)

    def test_records_that_are_gone_are_told(self) -> None:
        self._append(0, 20)
        log = self._opened()
        begin, first = log.at, _read(log, 1)
        while not any(data.startswith(b"0/") for data in first.values()):
            first |= _read(log, 1)
        amid, _, end = log.at, _read(log, 40 - len(first)), log.at
        self.truncate()
        with pytest.raises(StreamTruncated):
            _all(self._opened(end).between(begin, end))
        with pytest.raises(StreamTruncated):
            _read(self._opened(amid), 1000)


def _all(parts: Iterable[LogRecords]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for ids, data in parts:
        assert not found.keys() & {*ids}
        found |= zip(ids, data, strict=True)
    return found


def _read(log: Log, count: int, most: int = 1000) -> dict[int, bytes]:
    """Read so many records, in portions."""
    found, until = dict[int, bytes](), time.monotonic() + _PATIENCE_S
    while len(found) < count and time.monotonic() < until:
        part = log.read(asked := min(most, count - len(found)), 0.1)
        assert len(part.ids) <= asked and not found.keys() & {*part.ids}
        found |= _all([part])
    assert len(found) == count
    return found
