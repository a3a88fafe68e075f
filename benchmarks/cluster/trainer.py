"""A trainer that counts, ``-m benchmarks.cluster.trainer JSON``: it trains for as long as each line says."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import penstock

FEED = "cluster"


class Counted:
    """Batches of epoch after epoch, and samples that came twice in one, or not at all."""

    def __init__(self, loader: penstock.Loader) -> None:
        self._loader = loader
        self.wrong = 0

    def __iter__(self) -> Iterator[int]:
        """Yield the rows of each batch."""
        (feed,) = penstock.feeds()
        while True:
            seen = set[int]()
            for batch in self._loader:
                ids = self._loader.ids.tolist()
                self.wrong += len(seen.intersection(ids))
                seen.update(ids)
                yield len(batch[0])
            self.wrong += feed.samples_per_cycle - len(seen)


def main(images: str, batch_size: int, delay_s: float = 0.0, workers: Any = None, **settings: Any) -> None:
    own = {"workers": workers} if isinstance(workers, int) else {}
    asked = {"workers": workers} if isinstance(workers, str) else {}
    segments = 4 if settings.get("across") else None

    def make() -> penstock.ImageSource:
        return penstock.ImageSource(images, size=224, batch_size=batch_size, segments=segments, **own)

    with penstock.share(make, FEED, batch_size, borrow=True, linger=0.2, **asked, **settings) as loader:
        counted = Counted(loader)
        batches = iter(counted)
        next(batches)
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            counted.wrong = 0
            began = last = time.perf_counter()
            rows, gap_s = 0, 0.0
            while last < began + float(line):
                rows += next(batches)
                now = time.perf_counter()
                gap_s, last = max(gap_s, now - last), now
                time.sleep(delay_s)
            source = penstock.feeds()[0].source
            answer = {
                "rows_per_s": rows / (last - began),
                "gap_s": gap_s,
                "wrong": counted.wrong,
                "source": source,
            }
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
