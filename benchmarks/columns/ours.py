"""A feeder of tables, a trainer that counts, and a ring: ``-m benchmarks.columns.ours feed|take|ring JSON``."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import penstock
from penstock.contracts import Cursor
from penstock.memory.host_ring import WritableHostRing
from penstock.memory.slots import Slot, Slots

FEED = "columns"


def feed(data: str, trainers: int, window: int, **options: Any) -> None:
    """Open tables, and when told so feed all trainers; say when that began."""
    source = penstock.RecordSource(data, **options)
    with penstock.Feeder(source, FEED, window=window, expect=trainers, linger=0.1) as feeder:
        print(json.dumps({"ready": True}), flush=True)
        sys.stdin.readline()
        print(json.dumps({"began": time.perf_counter()}), flush=True)
        feeder.run()


def take(batch_size: int, epochs: int) -> None:
    """When told so take some epochs; say when each had ended, and how many rows came."""
    attach = penstock.attach  # imports what it needs
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    ends, rows = list[float](), 0
    with attach(FEED, batch_size, borrow=True, wait_s=60.0) as loader:
        for _ in range(epochs):
            for batch in loader:
                rows += len(next(iter(batch.values())))
            ends.append(time.perf_counter())
    print(json.dumps({"ends": ends, "rows": rows}), flush=True)


def ring(data: str, window: int, **options: Any) -> None:
    """When told so write a cycle into a ring whose blocks come free at once; say how many rows a second."""
    source = penstock.RecordSource(data, **options)
    memory = WritableHostRing.create(window)
    slots = Slots(memory)
    source.fill(slots)
    for i in range(window // source.slot_bytes):
        slots.offer(Slot(i * source.slot_bytes, source.slot_bytes))
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    began, rows = time.perf_counter(), 0
    for block in source.open(Cursor(0, 0)):
        rows += block.rows
        slots.offer(block.tree.slot)
    print(json.dumps({"rows_per_s": rows / (time.perf_counter() - began)}), flush=True)
    source.close()


if __name__ == "__main__":
    {"feed": feed, "take": take, "ring": ring}[sys.argv[1]](**json.loads(sys.argv[2]))
