"""TensorSocket's consumer, measured as every trainer is; started by ``penstock bench share``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensorsocket import TensorConsumer

from penstock.bench.blocks import ROWS
from penstock.bench.loop import Batches, serve


def open_source(order: dict[str, Any]) -> Batches:
    port, ack_port, *heart_ports = order["ports"]
    consumer = TensorConsumer(port, ack_port, tuple(heart_ports), batch_size=ROWS)

    def batches() -> Iterator[Any]:
        while True:
            yield from consumer

    return Batches(batches(), lambda batch: len(batch[0]), None, lambda: None)


if __name__ == "__main__":
    serve(open_source, {})
