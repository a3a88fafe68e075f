"""Brokers in this process: the mock cluster that librdkafka ships with its client."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import Producer

TOPIC = b"clicks"


class MockKafka:
    """Three brokers in this process, by the functions of librdkafka that its own tests call."""

    def __init__(self, partitions: int = 3) -> None:
        (library,) = Path(confluent_kafka.__file__).parents[1].glob("confluent_kafka.libs/librdkafka*")
        self._calls = calls = ctypes.CDLL(str(library))
        for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
            getattr(calls, name).restype = ctypes.c_void_p
        calls.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        conf, why = ctypes.c_void_p(calls.rd_kafka_conf_new()), ctypes.create_string_buffer(512)
        calls.rd_kafka_conf_set(conf, b"log_level", b"0", why, 512)
        self._owner = ctypes.c_void_p(calls.rd_kafka_new(0, conf, why, 512))
        self._cluster = ctypes.c_void_p(calls.rd_kafka_mock_cluster_new(self._owner, 3))
        self.brokers: str = calls.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        self.address = f"{self.brokers}/clicks"
        self.call("topic_create", TOPIC, partitions, 1)
        self._producer: Any = None

    def call(self, function: str, *arguments: Any) -> None:
        ctyped = [ctypes.c_int64(each) if isinstance(each, int) else each for each in arguments]
        assert getattr(self._calls, f"rd_kafka_mock_{function}")(self._cluster, *ctyped) == 0

    def append(self, partition: int, records: list[bytes | None]) -> None:
        if self._producer is None:
            self._producer = Producer({"bootstrap.servers": self.brokers, "log_level": 0})
        while partition not in self._producer.list_topics("clicks", 5).topics["clicks"].partitions:
            time.sleep(0.05)
        for record in records:
            self._producer.produce("clicks", record, key=b"key", partition=partition)
            self._producer.poll(0)
        assert self._producer.flush(10) == 0

    def truncate(self, partition: int, low: int) -> None:
        """Delete the records below one."""
        self.call("partition_delete_records", TOPIC, partition, low)

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()
        if self._cluster:
            self._calls.rd_kafka_mock_cluster_destroy(self._cluster)
            self._calls.rd_kafka_destroy(self._owner)
            self._cluster = None
