"""A Kafka topic as a log. Partitions are assigned, never subscribed to: no group is joined, nobody rebalances."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

from penstock.basics.packages import require
from penstock.contracts import Beginning, Bound, Lag, LogRecords, Part
from penstock.errors import BadSetting, StreamTruncated

_BROKER = r"(?:[^\s,/:\[\]]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?"
_ADDRESS = re.compile(rf"{_BROKER}(?:,{_BROKER})*/[\w.-]{{1,249}}", re.ASCII)
_SHIFT = 48
_ANSWER_S, _LOOK_S, _AGAIN_S = 0.5, 5.0, 1.0
_SHORT_S = 2.0
"""How long a partition may end below a bound: a new leader first hears how far the others have copied its log."""
_SETTINGS = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,  # says how far it is read where no record is last: compacted, or a marker
    "queued.max.messages.kbytes": 16 << 10,
    "queued.min.messages": 10_000,
    "fetch.queue.backoff.ms": 10,  # by default a second, in which no more than the queue is read
    "fetch.max.bytes": 8 << 20,
    "fetch.wait.max.ms": 100,  # a broker answers nothing else on a connection meanwhile
    "reconnect.backoff.max.ms": 1000,
    "log_level": 0,
}


class KafkaLog:
    """The partitions of a topic, by confluent-kafka; attributes and methods are those of ``Log``.

    It connects when it is first used, and waits for brokers that are away. With ``skips``, losses are counted and
    passed over; where a partition has lost what was read, it goes on with the record that was to be next.
    """

    def __init__(self, address: str, *, skips: bool) -> None:
        require("StreamSource of kafka://", "kafka", "confluent_kafka")
        if not _ADDRESS.fullmatch(address):
            raise BadSetting(f"kafka://{address}: give brokers and a topic, such as kafka://broker:9092/clicks")
        self._address, self._skips = address, skips
        self._brokers, _, self.name = address.rpartition("/")
        self.description = f"topic {self.name!r}"
        self.trouble = ""
        self._client: Any = None
        self._kafka: Any = None
        self._partitions = self._numbers = self._newest_ms = 0
        self._next: dict[int, int] = {}
        self._until: dict[int, int] = {}  # where partitions end of which a stretch is read
        self._lost: dict[tuple[int, int], int] = {}  # by partition and place: what is read again is lost once
        self._astray: set[int] = set()  # partitions that do not hold what is next
        self._look_at = self._astray_at = 0.0

    @property
    def lost(self) -> int:
        return sum([*self._lost.values()])

    def begin(self, start: Beginning) -> Bound | None:
        count = self._count()
        offsets = self._ends(count, start) if count else None
        return None if offsets is None else _bound(offsets, count)

    def seek(self, to: Bound) -> None:
        if to != self.at:
            self._connect()
            self._next, self._numbers, self._look_at = _offsets(to), to.numbers, 0.0
            self._astray = set()
            self._client.assign(self._places(self._next.items()))

    def read(self, most: int, wait_s: float) -> LogRecords:
        deadline = time.monotonic() + wait_s
        if time.monotonic() >= self._look_at:
            self._look()
        while True:
            if self._astray and time.monotonic() >= self._astray_at:
                self._go_on()
            left_s = max(0.0, deadline - time.monotonic())
            records = self._taken(self._client.consume(most, 0) or self._client.consume(1, left_s))
            if records.ids or time.monotonic() >= deadline:
                return records

    @property
    def at(self) -> Bound:
        return _bound(self._next, self._numbers)

    def between(self, begin: Bound, end: Bound) -> Iterator[LogRecords]:
        starts = _offsets(begin)
        left = {n: offset for n, offset in _offsets(end).items() if starts.get(n, 0) < offset}
        other = KafkaLog(self._address, skips=self._skips)
        other._until, other._lost = left, self._lost
        try:
            other.seek(_bound({n: starts.get(n, 0) for n in left}, end.numbers))
            while left:
                ids, data = other.read(500, 0.2)
                self.trouble = other.trouble
                if done := [n for n, offset in left.items() if other._next[n] >= offset]:
                    kept = [i for i, id in enumerate(ids) if id < (id >> _SHIFT << _SHIFT) + left[id >> _SHIFT]]
                    ids, data = [ids[i] for i in kept], [data[i] for i in kept]
                    other._client.incremental_unassign(other._places((n, 0) for n in done))
                    for n in done:
                        del left[n], other._next[n]
                yield LogRecords(ids, data)
        finally:
            other.close()

    def divide(self, begin: Bound, end: Bound, parts: int) -> Bound:
        starts = _offsets(begin)
        ends = [(n, starts.get(n, 0), offset) for n, offset in _offsets(end).items()]
        return _bound({n: a + (b - a) // parts for n, a, b in ends}, end.numbers)

    def lag(self) -> Lag:
        asked = self._places(self._next.items())
        ends = {one.partition: self._client.get_watermark_offsets(one, cached=True)[1] for one in asked}
        if min(ends.values(), default=0) < 0:
            ends = self._ends(len(ends), "latest") or {}
        age_s = max(0.0, time.time() - self._newest_ms / 1000) if self._newest_ms else None
        return Lag(sum(max(0, end - self._next[n]) for n, end in ends.items()), age_s, self._partitions)

    def close(self) -> None:
        client, self._client, self._next, self._numbers = self._client, None, {}, 0
        if client is not None:
            client.close()

    def _connect(self) -> None:
        if self._client is not None:
            return
        self._kafka = import_module("confluent_kafka")
        # librdkafka asks for a group, and joins none.
        own = {"bootstrap.servers": self._brokers, "group.id": f"penstock-{self.name}", "error_cb": self._hear}
        self._client = self._kafka.Consumer(_SETTINGS | own)

    def _hear(self, error: Any) -> None:
        if error.code() != self._kafka.KafkaError._ALL_BROKERS_DOWN or not self.trouble:
            self.trouble = error.str()

    def _ask(self, question: str, what: Any) -> Any:
        """Ask brokers; return None where none answers."""
        try:
            return getattr(self._client, question)(what, _ANSWER_S)
        except self._kafka.KafkaException as error:
            self.trouble = f"{self._brokers}: {error.args[0].str()}"

    def _ends(self, count: int, which: Beginning) -> dict[int, int] | None:
        # In place of times, brokers take these for the beginning and the end: one question for all partitions.
        place = self._kafka.OFFSET_BEGINNING if which == "earliest" else self._kafka.OFFSET_END
        found = self._ask("offsets_for_times", self._places((n, place) for n in range(count)))
        return {one.partition: one.offset for one in found} if found and not any(x.error for x in found) else None

    def _places(self, offsets: Iterable[tuple[int, int]]) -> list[Any]:
        return [self._kafka.TopicPartition(self.name, n, offset) for n, offset in offsets]

    def _count(self) -> int:
        """Return how many partitions the topic has; 0 while nobody tells."""
        self._connect()
        if (told := self._ask("list_topics", self.name)) is None:
            return 0
        topic = told.topics[self.name]
        bad = [f"partition {n}: {one.error.str()}" for n, one in topic.partitions.items() if one.error]
        self.trouble = f"topic {self.name!r}: {topic.error.str()}" if topic.error else (bad or [""])[0]
        if topic.error:
            return 0
        self._partitions = count = len(topic.partitions)
        self.description = f"topic {self.name!r} of {count:,} partition{'s' * (count != 1)}"
        return count

    def _look(self) -> None:
        """Look whether there are new partitions, and whether all are there that have been read."""
        count, known = self._count(), self._numbers
        self._look_at = time.monotonic() + (_LOOK_S if count else _AGAIN_S)
        if count and count < known:
            raise StreamTruncated(
                f"{self.description} had {known:,} when it was read: it is another topic by now, or the state is "
                "another topic's; share it under another name to begin anew"
            )
        if count > known and not self._until:
            new = dict.fromkeys(range(known, count), 0)
            self._client.incremental_assign(self._places(new.items()))
            self._next, self._numbers = self._next | new, count

    def _taken(self, messages: list[Any]) -> LogRecords:
        """Return the records among messages, and go behind them."""
        kind: Any = self._kafka.Message
        said: list[Any] = []
        if any(map(kind.error, messages)):
            said = [message for message in messages if message.error() is not None]
            messages = [message for message in messages if message.error() is None]
        numbers: list[int] = [*map(kind.partition, messages)]
        offsets: list[int] = [*map(kind.offset, messages)]
        if messages:
            self.trouble, self._newest_ms = "", max(self._newest_ms, messages[-1].timestamp()[1])
            self._next.update({n: last + 1 for n, last in dict(zip(numbers, offsets, strict=True)).items()})
        for message in said:
            self._note(message.partition(), message.offset(), message.error())
        ids = [n << _SHIFT | offset for n, offset in zip(numbers, offsets, strict=True)]
        return LogRecords(ids, [message.value() or b"" for message in messages])

    def _note(self, n: int, offset: int | None, error: Any) -> None:
        """Note what is said of a partition in place of a record."""
        kinds, code = self._kafka.KafkaError, error.code()
        if n not in self._next:
            return
        if code == kinds._PARTITION_EOF:
            self.trouble, self._next[n] = "", max(offset or 0, self._next[n])
            if self._next[n] < self._until.get(n, 0):
                self._astray_at = time.monotonic() + _SHORT_S
                self._astray.add(n)
        elif code not in (kinds._AUTO_OFFSET_RESET, kinds._LOG_TRUNCATION):
            self.trouble = f"partition {n}: {error.str()}"
        elif offset in (None, self._next[n]):
            self._astray.add(n)
        else:  # behind a gap, or said of where it was before a seek
            self._reassign(n)

    def _go_on(self) -> None:
        """Go on with the first record that is there, where the next is gone, or with that one when it has come."""
        self._astray_at = time.monotonic() + _AGAIN_S
        for n in [*self._astray]:
            wanted, until = self._next[n], self._until.get(n)
            if (found := self._ask("get_watermark_offsets", *self._places([(n, wanted)]))) is None:
                return
            low, high = found
            there, why = wanted, "a leader lost what had been read, or the state is another topic's"
            if wanted < low:
                there, why = min(low, until or low), "the topic keeps records for too short a time"
            elif until is not None and high < until:
                there = until
            gone = there - wanted if until is not None or there > wanted else max(1, wanted - high)
            if gone and not self._skips:
                raise StreamTruncated(
                    f"partition {n} of topic {self.name!r} has no record {wanted:,}, which comes next: it begins "
                    f'with {low:,} and ends before {high:,}, as {why}; on_loss="skip" counts {gone:,} as lost'
                )
            self._lost.setdefault((n, wanted), gone)
            self._astray.discard(n)
            self._next[n] = there
            self._reassign(n)

    def _reassign(self, n: int) -> None:
        self._client.incremental_unassign(self._places([(n, 0)]))
        self._client.incremental_assign(self._places([(n, self._next[n])]))


def _offsets(bound: Bound) -> dict[int, int]:
    return {part.number: part.offset for part in bound.parts}


def _bound(offsets: dict[int, int], numbers: int) -> Bound:
    return Bound(numbers, "", tuple(Part(n, offset) for n, offset in sorted(offsets.items())))
