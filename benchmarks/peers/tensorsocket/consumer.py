"""TensorSocket's consumer, measured like every trainer; started by the sharing benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.share.blocks import ROWS
from tensorsocket import TensorConsumer

from penstock.bench.measure.loop import Batches, serve


def open_source(order: dict[str, Any]) -> Batches:
    port, ack_port, *heart_ports = order["ports"]
    consumer = TensorConsumer(port, ack_port, tuple(heart_ports), batch_size=ROWS)

    def batches() -> Iterator[Any]:
        while True:
            yield from consumer

    source = Batches(batches(), lambda batch: len(batch[0]), None, lambda: None)
    if "device" not in order:
        return source
    from benchmarks.gpu.device import worked_on

    return worked_on(source, order)


if __name__ == "__main__":
    serve(open_source, {})
