"""A topic as a log, on the mock cluster that librdkafka ships with its client."""

from __future__ import annotations

import importlib.util
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, ClassVar

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, Message
from tests.fakes.kafka import TOPIC, MockKafka

from penstock.contracts import Bound, Log, LogRecords, Part
from penstock.errors import BadSetting, PackageMissing, StreamTruncated
from penstock.sources.streams import kafka
from penstock.sources.streams.kafka import KafkaLog
from penstock.testing.log import LogContract


@pytest.fixture
def mock() -> Iterator[MockKafka]:
    cluster = MockKafka()
    yield cluster
    cluster.close()


@pytest.fixture
def opened(mock: MockKafka) -> Iterator[Callable[..., KafkaLog]]:
    """Opens logs, which are closed in the end."""
    logs: list[KafkaLog] = []

    def make(address: str = "", *, skips: bool = False) -> KafkaLog:
        logs.append(KafkaLog(address or mock.address, skips=skips))
        return logs[-1]

    yield make
    for log in logs:
        log.close()


def records(partition: int, first: int, last: int) -> list[bytes | None]:
    return [f"{partition}/{i}".encode() for i in range(first, last)]


def read(log: KafkaLog, count: int, until_s: float = 8.0) -> dict[int, bytes]:
    """Read so many records, each once and in the order of its partition; and no more that are there."""
    found: dict[int, bytes] = {}
    deadline, last = time.monotonic() + until_s, dict[int, int]()
    while len(found) < count and time.monotonic() < deadline:
        ids, data = log.read(500, 0.1)
        for id, record in zip(ids, data, strict=True):
            assert id not in found and last.get(id >> 48, -1) < id
            found[id], last[id >> 48] = record, id
    assert len(found) == count, log.trouble
    return found


def all_of(batches: Iterator[LogRecords]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for ids, data in batches:
        assert not found.keys() & {*ids}
        found |= dict(zip(ids, data, strict=True))
    return found


def expected(*parts: tuple[int, int, int]) -> dict[int, bytes]:
    return {p << 48 | i: f"{p}/{i}".encode() for p, first, last in parts for i in range(first, last)}


def bound(*offsets: int) -> Bound:
    return Bound(len(offsets), "", tuple(Part(i, offset) for i, offset in enumerate(offsets)))


def begun(log: KafkaLog, start: Any = "earliest") -> Bound:
    """Where a log begins, once its brokers know."""
    for _ in range(20):
        if (found := log.begin(start)) is not None:
            return found
    raise AssertionError(log.trouble)


class TestKafkaLog(LogContract):
    @pytest.fixture(autouse=True)
    def _mock(self) -> Iterator[None]:
        self.mock, self.last = MockKafka(partitions=2), 0
        yield
        self.mock.close()

    def make(self) -> Log:
        return KafkaLog(self.mock.address, skips=False)

    def append(self, partition: int, records: list[bytes]) -> None:
        self.mock.append(partition, [*records])
        self.last += len(records) if partition == 0 else 0

    def truncate(self) -> None:
        self.mock.truncate(0, self.last)


def test_every_record_comes_once_and_in_the_order_of_its_partition(mock: MockKafka, opened: Any) -> None:
    mock.append(0, records(0, 0, 3000))
    mock.append(2, records(2, 0, 10))
    log = opened()
    log.seek(begun(log))
    assert log.at == bound(0, 0, 0)
    assert read(log, 3010) == expected((0, 0, 3000), (2, 0, 10))
    assert log.at == bound(3000, 0, 10)
    assert not log.read(500, 0.1).ids and not log.trouble and not log.lost
    assert (log.name, log.description) == ("clicks", "topic 'clicks' of 3 partitions")
    mock.append(1, records(1, 0, 1))
    assert read(log, 1) == expected((1, 0, 1))


def test_the_latest_bound_lies_behind_what_is_there(mock: MockKafka, opened: Any) -> None:
    mock.append(1, records(1, 0, 7))
    log = opened()
    assert begun(log, "latest") == bound(0, 7, 0)
    log.seek(bound(0, 7, 0))
    assert not log.read(500, 0.2).ids
    mock.append(1, records(1, 7, 9))
    assert read(log, 2) == expected((1, 7, 9))


def test_a_seek_amid_reading_gives_exactly_what_comes_there(mock: MockKafka, opened: Any) -> None:
    mock.append(0, records(0, 0, 4000))
    mock.append(1, records(1, 0, 4000))
    log = opened()
    for a, b in [(0, 0), (3990, 17), (5, 3995), (1000, 2000), (3999, 4000), (0, 4000)] * 2:
        log.seek(bound(a, b, 0))
        first: dict[int, int] = {}
        while not first:
            for id in log.read(50, 0.1).ids:
                first.setdefault(id >> 48, id & 0xFFFFFFFF)
            assert log.at == bound(a, b, 0) or first
        assert all(offset == (a, b)[partition] for partition, offset in first.items())
    log.seek(bound(3990, 3990, 0))
    assert read(log, 20) == expected((0, 3990, 4000), (1, 3990, 4000))


def test_a_seek_to_where_it_is_keeps_what_was_fetched(
    mock: MockKafka, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mock.append(0, records(0, 0, 100))
    log = opened()
    log.seek(bound(0, 0, 0))
    read_some(log)
    with monkeypatch.context() as without:
        without.setattr(log, "_places", None)  # what is assigned anew needs it
        log.seek(log.at)
    begun_at = log.at.parts[0].offset
    assert read(log, 100 - begun_at) == expected((0, begun_at, 100))


def read_some(log: KafkaLog) -> list[int]:
    while not (ids := log.read(5, 0.5).ids):
        pass
    return ids


def test_between_two_bounds_lies_all_and_nothing_else(mock: MockKafka, opened: Any) -> None:
    mock.append(0, records(0, 0, 3000))
    mock.append(2, records(2, 0, 50))
    log = opened()
    for a, b in [(0, 3000), (0, 1), (2999, 3000), (700, 1900)]:
        found = all_of(log.between(bound(a, 0, 10), bound(b, 0, 20)))
        assert found == expected((0, a, b), (2, 10, 20))
    assert not all_of(log.between(bound(5, 0, 10), bound(5, 0, 10)))
    assert all_of(log.between(bound(2990, 0), bound(3000, 0, 5))) == expected((0, 2990, 3000), (2, 0, 5))
    assert log.at == Bound()


def test_a_part_of_what_lies_between_is_about_as_large_as_the_others(opened: Any) -> None:
    log = opened()
    assert log.divide(bound(10, 20), bound(40, 20, 9), 3) == bound(20, 20, 3)
    assert log.divide(bound(10, 20), bound(40, 20, 9), 1) == bound(40, 20, 9)


def test_a_record_without_a_value_is_empty(mock: MockKafka, opened: Any) -> None:
    mock.append(0, [b"a", None, b""])
    log = opened()
    log.seek(bound(0, 0, 0))
    assert [*read(log, 3).values()] == [b"a", b"", b""]


def test_lag_is_what_lies_behind(mock: MockKafka, opened: Any) -> None:
    mock.append(0, records(0, 0, 100))
    mock.append(1, records(1, 0, 20))
    log = opened()
    assert log.lag() == (0, None, 0)
    log.seek(bound(60, 0, 0))
    read(log, 60)
    log.read(500, 0.3)
    lag = log.lag()
    assert (lag.records, lag.partitions) == (0, 3) and lag.seconds is not None and 0 <= lag.seconds < 60
    log.seek(bound(90, 0, 0))
    while not log.read(1, 0.1).ids:
        pass
    log.read(0, 0.3)
    assert 29 - 1 <= log.lag().records <= 29
    log.close()
    assert log.lag().records == 0


def test_records_that_are_gone_are_refused_with_partition_and_offsets(mock: MockKafka, opened: Any) -> None:
    mock.append(1, records(1, 0, 2000))
    mock.append(0, records(0, 0, 10))
    mock.truncate(1, 1500)
    log = opened()
    assert begun(log) == bound(0, 1500, 0)
    log.seek(bound(0, 700, 0))
    with pytest.raises(StreamTruncated, match=r"partition 1 .* no record 700,.* begins with 1,500 .* 2,000"):
        read(log, 1300)
    with pytest.raises(StreamTruncated, match=r"partition 1 .*700"):
        all_of(log.between(bound(0, 700, 0), bound(0, 1900, 0)))
    log.seek(bound(0, 1500, 0))
    assert read(log, 510) == expected((0, 0, 10), (1, 1500, 2000))
    assert log.lost == 0


def test_records_that_are_gone_are_counted_once_where_losses_are_skipped(mock: MockKafka, opened: Any) -> None:
    mock.append(1, records(1, 0, 2000))
    mock.append(0, records(0, 0, 10))
    mock.truncate(1, 1500)
    log = opened(skips=True)
    log.seek(bound(0, 700, 0))
    assert read(log, 510) == expected((0, 0, 10), (1, 1500, 2000))
    assert (log.lost, log.at) == (800, bound(10, 2000, 0))
    for _ in range(2):
        assert all_of(log.between(bound(0, 700, 0), bound(0, 1600, 0))) == expected((1, 1500, 1600))
    assert log.lost == 800
    assert not all_of(log.between(bound(0, 900, 0), bound(0, 1000, 0)))
    assert log.lost == 900


def test_a_log_that_is_truncated_while_nobody_reads_is_noticed(mock: MockKafka, opened: Any) -> None:
    mock.append(0, records(0, 0, 10))
    log = opened()
    log.seek(bound(0, 0, 0))
    read(log, 10)
    for broker in (1, 2, 3):
        mock.call("broker_set_down", broker)
    log.read(500, 0.3)
    mock.truncate(0, 10)
    for broker in (1, 2, 3):
        mock.call("broker_set_up", broker)
    mock.append(0, records(0, 10, 40))
    mock.truncate(0, 30)
    with pytest.raises(StreamTruncated, match="no record 1") as caught:
        while not log.read(500, 0.1).ids:
            pass
    assert "begins with 30" in str(caught.value) and log.at == bound(10, 0, 0)


def test_the_mock_s_own_limit_truncates(mock: MockKafka, opened: Any) -> None:
    mock.append(0, [bytes(1000)] * 8000)
    log = opened(skips=True)
    low = begun(log).parts[0].offset
    assert 0 < low < 8000
    log.seek(bound(5, 0, 0))
    assert len(read(log, 8000 - low)) == 8000 - low
    assert log.lost == low - 5


def test_a_bound_behind_the_end_is_refused(mock: MockKafka, opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "_SHORT_S", 0.1)
    mock.append(0, records(0, 0, 10))
    log = opened()
    log.seek(bound(500, 0, 0))
    with pytest.raises(StreamTruncated, match=r"partition 0 .* no record 500, .* begins with 0 .* before 10,"):
        read(log, 1)
    for begin in (bound(0, 0, 0), bound(50, 0, 0)):
        with pytest.raises(StreamTruncated, match=rf"no record {max(10, begin.parts[0].offset)},"):
            all_of(log.between(begin, bound(500, 0, 0)))
    log.seek(Bound(9, "", tuple(Part(i, 0) for i in range(9))))
    with pytest.raises(StreamTruncated, match="3 partitions had 9"):
        read(log, 1)


def test_a_bound_behind_the_end_is_counted_and_waited_for_where_losses_are_skipped(
    mock: MockKafka, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "_SHORT_S", 0.1)
    monkeypatch.setattr(kafka, "_AGAIN_S", 0.1)
    mock.append(0, records(0, 0, 10))
    log = opened(skips=True)
    assert all_of(log.between(bound(0, 0, 0), bound(50, 0, 0))) == expected((0, 0, 10))
    assert log.lost == 40
    log.seek(bound(30, 0, 0))
    while log.lost == 40:
        assert not log.read(500, 0.1).ids
    assert log.lost == 60 and log.at == bound(30, 0, 0)
    mock.append(0, records(0, 10, 40))
    assert read(log, 10) == expected((0, 30, 40))
    assert log.lost == 60


def test_between_waits_for_an_end_that_its_leader_has_not_heard_of_yet(
    mock: MockKafka, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "_SHORT_S", 0.5)
    mock.append(0, records(0, 0, 10))
    found: dict[int, bytes] = {}
    for ids, data in opened().between(bound(0, 0, 0), bound(20, 0, 0)):
        found |= dict(zip(ids, data, strict=True))
        if len(found) == 10 and ids:
            mock.append(0, records(0, 10, 20))
    assert found == expected((0, 0, 20))


def test_new_partitions_join_from_their_beginning(
    mock: MockKafka, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "_LOOK_S", 0.1)
    monkeypatch.setattr(kafka, "_AGAIN_S", 0.1)
    mock.append(0, records(0, 0, 10))
    mock.append(1, records(1, 0, 10))
    log = opened()
    log.seek(bound(4))  # of a time when there was but one
    assert read(log, 16) == expected((0, 4, 10), (1, 0, 10))
    assert log.at == bound(10, 10, 0)
    # A mock's topic cannot grow: one of that name takes its place, which has the same records at first.
    mock.call("topic_delete", TOPIC)
    mock.call("topic_create", TOPIC, 5, 1)
    for partition, first in ((0, 12), (1, 12), (4, 9)):
        mock.append(partition, records(partition, 0, first))
    assert read(log, 13) == expected((0, 10, 12), (1, 10, 12), (4, 0, 9))
    assert log.at == bound(12, 12, 0, 0, 9) and "5 partitions" in log.description


def test_a_topic_that_does_not_exist_yet_is_waited_for(mock: MockKafka, opened: Any) -> None:
    mock.call("topic_delete", TOPIC)
    log = opened()
    assert log.begin("earliest") is None
    assert "'clicks'" in log.trouble and "Unknown topic" in log.trouble
    mock.call("topic_create", TOPIC, 2, 1)
    mock.append(0, records(0, 0, 3))
    log.seek(begun(log))
    assert read(log, 3) == expected((0, 0, 3)) and not log.trouble


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def forward(port: int, to: str) -> socket.socket:
    """Give what comes at a port to another, and back, until the socket is closed."""
    host, _, number = to.partition(":")
    server = socket.create_server(("127.0.0.1", port))

    def copy(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError), one, other:
            while data := one.recv(1 << 16):
                other.sendall(data)

    def accept() -> None:
        with suppress(OSError):
            while True:
                one, other = server.accept()[0], socket.create_connection((host, int(number)))
                for pair in ((one, other), (other, one)):
                    threading.Thread(target=copy, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return server


def test_a_broker_that_is_away_at_the_start_is_waited_for(mock: MockKafka, opened: Any) -> None:
    mock.append(0, records(0, 0, 5))
    port = closed_port()
    log = opened(f"127.0.0.1:{port}/clicks")
    assert log.begin("earliest") is None and str(port) in log.trouble
    log.seek(bound(0, 0, 0))
    assert not log.read(500, 0.3).ids and str(port) in log.trouble
    again = log.between(bound(0, 0, 0), bound(5, 0, 0))
    assert next(again) == LogRecords([], []) == next(again)
    server = forward(port, mock.brokers.split(",")[0])
    assert read(log, 5) == expected((0, 0, 5)) == all_of(again)
    assert not log.trouble
    server.shutdown(socket.SHUT_RDWR)
    server.close()


@pytest.mark.parametrize("used", [True, False])
def test_a_broker_that_is_gone_for_ever_is_told_and_does_not_hold_the_end_up(
    mock: MockKafka, opened: Any, used: bool
) -> None:
    mock.append(0, records(0, 0, 5))
    log = opened()
    log.seek(bound(0, 0, 0))
    if used:
        read(log, 5)
    mock.close()
    began = time.monotonic()
    for _ in range(10):
        assert not log.read(500, 0.1).ids or not used
    assert time.monotonic() - began < 8 and "127.0.0.1" in log.trouble
    assert log.begin("latest") is None
    assert "127.0.0.1" in log.trouble
    began = time.monotonic()
    log.close()
    log.close()
    assert time.monotonic() - began < 2


def test_a_partition_whose_leader_is_lost_goes_on_with_its_next_record(mock: MockKafka, opened: Any) -> None:
    for partition in range(3):
        mock.append(partition, records(partition, 0, 2000))
    log = opened()
    log.seek(bound(0, 0, 0))
    found: dict[int, bytes] = {}
    for leader in (2, 3, 1):
        found |= dict(zip(*log.read(200, 2), strict=True))
        for partition in range(3):
            mock.call("partition_set_leader", TOPIC, partition, leader)
        mock.call("broker_set_down", leader)
        found |= dict(zip(*log.read(200, 0.2), strict=True))
        mock.call("broker_set_up", leader)
    found |= read(log, 6000 - len(found), 15)
    assert found == expected((0, 0, 2000), (1, 0, 2000), (2, 0, 2000))


class CompactedTopic:
    """A client of a topic that has lost most of its records; markers of transactions end it. No mock has those."""

    LEFT, END = (3, 8), 12

    def __init__(self, settings: dict[str, Any]) -> None:
        self._to_come: list[Any] = []

    def list_topics(self, *_: Any) -> Any:
        topic = SimpleNamespace(error=None, partitions={0: SimpleNamespace(error=None)})
        return SimpleNamespace(topics={"clicks": topic})

    def get_watermark_offsets(self, place: Any, *, cached: bool) -> tuple[int, int]:
        return 0, self.END

    def assign(self, places: list[Any]) -> None:
        at = places[0].offset
        told: Any = [{"offset": i, "value": b"%d" % i} for i in self.LEFT if i >= at]
        told.append({"offset": self.END, "error": KafkaError(KafkaError._PARTITION_EOF)})
        self._to_come = [Message(topic="clicks", partition=0, timestamp=(1, 1), **each) for each in told]

    def consume(self, most: int, wait_s: float) -> list[Any]:
        told, self._to_come = self._to_come[:most], self._to_come[most:]
        return told

    def incremental_unassign(self, places: list[Any]) -> None:
        self._to_come.clear()

    def close(self) -> None:
        pass


@pytest.mark.parametrize("most", [1, 500])
def test_a_bound_goes_over_gaps_and_markers(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(confluent_kafka, "Consumer", CompactedTopic)
    log = KafkaLog("broker/clicks", skips=False)
    log.seek(bound(0))
    found: list[int] = []
    while len(found) < 2:
        found += log.read(most, 0.01).ids
    log.read(most, 0.01)
    assert found == [3, 8] and log.at == bound(12)
    for begin, end, left in ((0, 12, [3, 8]), (0, 4, [3]), (0, 3, []), (4, 8, []), (9, 12, []), (8, 10, [8])):
        assert [*all_of(log.between(bound(begin), bound(end)))] == left
    assert log.lost == 0


def test_what_is_said_of_another_place_than_the_next_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost(CompactedTopic):
        assigned: ClassVar[list[int]] = []

        def assign(self, places: list[Any]) -> None:
            super().assign(places)
            out_of_range = KafkaError(KafkaError._AUTO_OFFSET_RESET)
            self._to_come[-1] = Message(topic="clicks", partition=0, offset=self.END, error=out_of_range)

        def incremental_assign(self, places: list[Any]) -> None:
            self.assigned.append(places[0].offset)

    monkeypatch.setattr(confluent_kafka, "Consumer", Lost)
    log = KafkaLog("broker/clicks", skips=False)
    log.seek(bound(0))
    assert log.read(500, 0.01).ids == [3, 8]
    assert not log.read(500, 0.01).ids and Lost.assigned == [9] and log.at == bound(9)


def test_what_is_fetched_ahead_is_bounded(opened: Any) -> None:
    mock = MockKafka(partitions=20)
    for partition in range(20):
        mock.append(partition, [bytes(100_000)] * 45)
    log = opened(mock.address)
    log.seek(bound(*[0] * 20))
    ahead = len(read_some(log))
    time.sleep(0.5)
    mock.close()
    while ids := log.read(500, 0.3).ids:
        ahead += len(ids)
    # The client's queue, and an answer that each of three brokers was giving.
    assert 50 < ahead <= ((16 << 20) + 3 * (8 << 20)) // 100_000 < 20 * 45


def test_a_log_that_was_closed_opens_again(mock: MockKafka, opened: Any) -> None:
    mock.append(0, records(0, 0, 5))
    log = opened()
    for _ in range(2):
        log.seek(bound(0, 0, 0))
        assert read(log, 5) == expected((0, 0, 5))
        log.close()


NO_TOPIC = ["", "/", "broker", "broker/", "a/b/c", "a/cli cks", "a/klïcks", "a/" + "x" * 250]
NO_BROKER = [
    "/clicks",
    "broker:x/clicks",
    "a:123456/clicks",
    "a:1:2/clicks",
    "[::1/clicks",
    "a,/clicks",
    ",a/clicks",
]


@pytest.mark.parametrize("address", [*NO_TOPIC, *NO_BROKER, "a b/clicks"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(BadSetting, match="kafka://broker:9092/clicks"):
        KafkaLog(address, skips=False)


@pytest.mark.parametrize("address", ["a/t", "a:1,b/t", "[::1]:9092,a.b-c:1/t.x_y-1", "10.0.0.1/T"])
def test_addresses_name_brokers_and_a_topic(address: str) -> None:
    log = KafkaLog(address, skips=False)
    assert log.name == address.rpartition("/")[2]
    assert log.description == f"topic {log.name!r}"
    log.close()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "penstock.basics.packages.find_spec", lambda name: None if name == "confluent_kafka" else find(name)
    )
    with pytest.raises(PackageMissing, match=r"penstock\[kafka\]"):
        KafkaLog("a/t", skips=False)
