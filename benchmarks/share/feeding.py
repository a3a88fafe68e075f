"""The process of a measured feeder: ``python -m benchmarks.share.feeding``. It ends with its input."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import numpy as np
from benchmarks.measure.loop import heard_lines, reply, reserve_output
from benchmarks.share.jpeg import SEGMENTS
from benchmarks.share.workload import Workload

import penstock


class Feeding(msgspec.Struct, frozen=True):
    """Orders for a feeder process."""

    feed: str
    window: str
    workload: Workload | None = None
    numbered: int = 0  # in place of a workload: number of samples that carry their number, and bytes made from it
    numbered_bytes: int = 0  # size of such a sample
    memory: str = "host"  # place of the ring: the host or a GPU; "cpu" is a fake GPU

    def source(self) -> Any:
        if self.workload is not None:
            return self.workload.source()
        ids = np.arange(self.numbered)
        arrays = {"id": ids, "x": np.add.outer(first_bytes(ids), np.arange(self.numbered_bytes, dtype=np.uint8))}
        return penstock.ArraySource(arrays, batch_size=64, segments=16)


def first_bytes(ids: Any) -> Any:
    """Return the first byte of numbered samples; each further byte is one more, and 0 follows 255."""
    return (ids * 7 + ids // 256).astype(np.uint8)


def main() -> None:
    reserve_output()
    heard = heard_lines()
    feeding = msgspec.json.decode(next(heard), type=Feeding)
    gpu = None
    if feeding.memory != "host":
        from benchmarks.gpu.crossing import counting_gpu

        gpu = counting_gpu(feeding.memory)
    feeder = penstock.Feeder(
        feeding.source(), feeding.feed, segments=SEGMENTS, window=feeding.window, memory=gpu or "host"
    )

    def end() -> None:
        for _ in heard:  # every line asks for the counts
            reply({"copied_bytes": gpu.copied_bytes if gpu else 0, "blocks": feeder.statistics().blocks})
        feeder.close()

    ending = threading.Thread(target=end, daemon=True)
    ending.start()
    reply({"ready": True})
    feeder.run()
    ending.join()


if __name__ == "__main__":
    main()
