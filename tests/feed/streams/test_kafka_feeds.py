"""Feeds of a topic, on the mock cluster that librdkafka ships."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.fakes.kafka import TOPIC, MockKafka
from tests.feed.streams.conftest import epoch, feeding, wait_until

import penstock
from penstock.errors import BadSetting, FeedStopped, StreamTruncated


@pytest.fixture
def mock() -> Iterator[MockKafka]:
    cluster = MockKafka()
    yield cluster
    cluster.close()


def records(first: int, last: int) -> list[bytes | None]:
    return [b'{"id": %d}' % i for i in range(first, last)]


def stream(mock: MockKafka, **options: Any) -> penstock.StreamSource:
    options = {"cycle": 100, "close_after": 0.5, "batch_size": 16, "workers": 1, **options}
    return penstock.StreamSource(f"kafka://{mock.address}", **options)


def test_two_feeds_of_one_topic_have_equal_cycles_and_a_state_of_one_goes_on_in_the_other(mock: MockKafka):
    for partition in range(3):
        mock.append(partition, records(100 * partition, 100 * partition + 70))
    with (
        feeding(stream(mock, cycle=210), "a"),
        feeding(stream(mock, cycle=210), "b"),
        penstock.attach("a", framework="numpy") as one,
        penstock.attach("b", framework="numpy") as other,
    ):
        first = epoch(one)
        assert first == epoch(other) and sorted(first) == [
            i for p in range(3) for i in range(100 * p, 100 * p + 70)
        ]
        mock.append(1, records(170, 200))
        state = one.state_dict()
        other.load_state_dict(state)
        assert sorted(epoch(other)) == list(range(170, 200))


def test_a_broker_that_is_away_is_waited_for_and_said(mock: MockKafka):
    mock.append(0, records(0, 100))
    mock.call("broker_set_down", 1)
    mock.call("broker_set_down", 2)
    mock.call("broker_set_down", 3)
    got: list[int] = []
    with feeding(stream(mock), "away") as feeder, penstock.attach("away", framework="numpy") as loader:
        reader = threading.Thread(target=lambda: got.extend(epoch(loader)))
        reader.start()
        wait_until(lambda: (feeder.statistics().stream or pytest.fail("it is a stream")).trouble != "")
        assert feeder.statistics().waits_for == "0 of 100 records"
        for broker in (1, 2, 3):
            mock.call("broker_set_up", broker)
        reader.join(30)
        assert sorted(got) == list(range(100))


def test_a_partition_that_loses_its_leader_costs_no_record(mock: MockKafka):
    mock.append(0, records(0, 150))
    got: list[int] = []
    with feeding(stream(mock, close_after=3), "leader"), penstock.attach("leader", framework="numpy") as loader:
        got += epoch(loader)
        mock.call("partition_set_leader", TOPIC, 0, 2)
        reader = threading.Thread(target=lambda: got.extend(epoch(loader)))
        reader.start()
        mock.append(0, records(150, 200))
        reader.join(30)
    assert sorted(got) == list(range(200))


def test_a_topic_that_was_cut_below_a_bound_ends_the_feed_and_says_where(mock: MockKafka):
    mock.append(0, records(0, 300))
    with feeding(stream(mock), "cut"), penstock.attach("cut", framework="numpy") as loader:
        epoch(loader)
        state = loader.state_dict()
    mock.truncate(0, 150)
    with feeding(stream(mock), "cut"), penstock.attach("cut", framework="numpy") as loader:
        loader.load_state_dict(state)
        with pytest.raises(StreamTruncated, match=r"partition 0 .* no record 100, .* begins with 150"):
            epoch(loader)
    with (
        feeding(stream(mock, on_loss="skip"), "cut") as feeder,
        penstock.attach("cut", framework="numpy") as loader,
    ):
        loader.load_state_dict({**state, "cycles": state["cycles"][:1]})
        assert sorted(epoch(loader)) == list(range(150, 250))
        report = feeder.statistics().stream
        assert report is not None and report.lost == 50


def test_a_state_of_another_topic_is_refused(mock: MockKafka):
    mock.append(0, records(0, 100))
    with feeding(stream(mock), "topic"), penstock.attach("topic", framework="numpy") as loader:
        epoch(loader)
        state = loader.state_dict()
    mock.call("topic_create", b"others", 3, 1)
    others = penstock.StreamSource(f"kafka://{mock.brokers}/others", workers=1)
    with feeding(others, "topic"), penstock.attach("topic") as loader, pytest.raises(BadSetting, match="order"):
        loader.load_state_dict(state)


def test_status_is_answered_at_once_while_a_topic_of_many_partitions_is_waited_for():
    mock = MockKafka(partitions=64)
    try:
        with feeding(stream(mock, close_after=60), "status") as feeder, penstock.attach("status") as loader:
            reader = threading.Thread(target=lambda: pytest.raises(FeedStopped, list, loader), daemon=True)  # noqa: RUF061
            reader.start()
            wait_until(lambda: feeder.statistics().waits_for == "0 of 100 records")
            mock.append(7, records(0, 30))
            for _ in range(50):  # each would take the reader's turns, of a tenth of a second a partition
                feeder.statistics()
            wait_until(lambda: (feeder.statistics().stream or pytest.fail("it is a stream")).lag_s is not None)
            feeder.close()
            reader.join(20)
    finally:
        mock.close()
