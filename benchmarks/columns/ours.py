"""A feeder of tables, and a trainer that only counts: ``python -m benchmarks.columns.ours feed|take JSON``."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import penstock

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


if __name__ == "__main__":
    {"feed": feed, "take": take}[sys.argv[1]](**json.loads(sys.argv[2]))
