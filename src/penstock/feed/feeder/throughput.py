"""What a feeder has published, in all and in the last seconds."""

from __future__ import annotations

from collections import deque

_RATE_OVER_S = 5.0


class Throughput:
    """Counts published blocks; one thread counts, any may read.

    Attributes:
        in_place: Blocks that the source's workers wrote into the ring themselves.
    """

    def __init__(self) -> None:
        self.blocks = self.in_place = self.samples = self.bytes = 0
        self._recent: deque[tuple[float, int]] = deque()

    def count(self, rows: int, nbytes: int, now_s: float, *, in_place: bool) -> None:
        self.blocks += 1
        self.in_place += in_place
        self.samples += rows
        self.bytes += nbytes
        self._recent.append((now_s, self.samples))
        while self._recent[0][0] < now_s - _RATE_OVER_S:
            self._recent.popleft()

    def samples_per_s(self, now_s: float) -> float:
        recent = [entry for entry in list(self._recent) if entry[0] >= now_s - _RATE_OVER_S]
        if len(recent) < 2:
            return 0.0
        return (recent[-1][1] - recent[0][1]) / (now_s - recent[0][0])
