"""TensorSocket's consumer, measured like every trainer; started by the sharing benchmarks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.measure.loop import Batches, serve
from benchmarks.share.blocks import ROWS
from tensorsocket import TensorConsumer


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

    worked = worked_on(source, order)
    return worked._replace(batches=timed(worked.batches, order["times"]))


def timed(batches: Iterator[Any], folder: str) -> Iterator[Any]:
    """Note when each batch was done: it sends eight at once, so only whole groups can be counted."""
    with open(f"{folder}/{os.getpid()}", "w", buffering=1) as times:
        for batch in batches:
            times.write(f"{time.monotonic()}\n")
            yield batch


if __name__ == "__main__":
    serve(open_source, {})
