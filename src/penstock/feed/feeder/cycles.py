"""The cycles of a stream, between the source that cuts them and the trainers that keep where they begin."""

from __future__ import annotations

from penstock.contracts import Bound, CycleBegin, CycleNotNeeded
from penstock.errors import SourceError
from penstock.feed import wire
from penstock.feed.feeder.feed_state import FeedState
from penstock.feed.feeder.publisher import Publisher
from penstock.feed.feeder.server import Server
from penstock.sources.streams.bounds import StreamBounds

_MOST_BYTES = wire.MAX_PACKET_BYTES - (4 << 10)
"""What trainers know of cycles is one message, with a Start's other fields."""


class StreamCycles:
    """Tells the source of a stream what is known of its cycles, and its trainers where it cuts; see ``Cycles``.

    A cycle's end is in the kernel's hands for every trainer that reads before the first of its blocks is, for any:
    what waits here would die with this process, and the next feeder would cut the cycle elsewhere.
    """

    def __init__(self, server: Server, state: FeedState, publisher: Publisher, bounds: StreamBounds) -> None:
        self._server, self._state, self._publisher, self._bounds = server, state, publisher, bounds
        self._lock = server.lock
        self.waits_for = ""  # what the source waits for, for people

    def begin(self, cycle: int) -> Bound | None:
        with self._lock:
            return self._bounds.begin(cycle)

    def begins(self, cycle: int, bound: Bound) -> None:
        self._fix(cycle, CycleBegin(cycle, bound))

    def end(self, cycle: int) -> tuple[Bound, int] | None:
        with self._lock:
            return self._bounds.end(cycle)

    def ahead(self, cycle: int) -> tuple[Bound, int] | None:
        with self._lock:
            return self._bounds.ahead(cycle)

    def close(self, cycle: int, end: Bound, records: int) -> None:
        self._fix(cycle, CycleBegin(cycle + 1, end, records))

    def check_needed(self, cycle: int, waits_for: str) -> None:
        with self._lock:
            self.waits_for = waits_for
            needed = self._state.needed()
            if needed is None or needed.cycle != cycle or self._server.is_over():
                raise CycleNotNeeded

    def _fix(self, cycle: int, new: CycleBegin) -> None:
        with self._lock:
            self._bounds.forget_before(self._state.oldest_cycle(cycle))
            while self._nbytes(new) > _MOST_BYTES:
                if not self._bounds.since(0)[1:]:
                    raise SourceError(
                        f"where cycles of this stream begin takes {self._nbytes(new):,} bytes, and a message "
                        f"has room for {_MOST_BYTES:,}: give it fewer partitions"
                    )
                self._wait(cycle, "trainers that are many cycles behind")
                self._bounds.forget_before(self._state.oldest_cycle(cycle))
            if (is_news := self._bounds.fix(*new)) is None:
                raise CycleNotNeeded
            if is_news:
                self._server.send_cycle(new)
            while not self._server.readers_know:
                self._wait(cycle, "trainers to hear where the cycle ends")
            self.waits_for = ""

    def _nbytes(self, new: CycleBegin) -> int:
        return len(wire.encode((*self._bounds.since(0), new)))

    def _wait(self, cycle: int, why: str) -> None:
        self.check_needed(cycle, why)
        self._publisher.wait_for_trainers()
