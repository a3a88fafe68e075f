"""The cycles of a stream, between the source that cuts them and the trainers that keep where they begin."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.contracts import Bound, Column, CycleBegin, CycleNotNeeded
from penstock.errors import SourceError
from penstock.feed import wire
from penstock.feed.feeder.blocks import FeedMember
from penstock.feed.feeder.feed_state import FeedState
from penstock.feed.feeder.publisher import Publisher
from penstock.feed.feeder.server import Server
from penstock.sources.streams.bounds import StreamBounds

_MOST_BYTES = wire.MAX_PACKET_BYTES - (4 << 10)
"""What trainers know of cycles is one message, with a Start's other fields."""
_LOOK_S = 0.05


class StreamCycles:
    """Tells the source of a stream what is known of its cycles, and its trainers where it cuts; see ``Cycles``.

    A cycle's end is in the kernel's hands for every trainer that reads before the first of its blocks is, for any:
    what waits here would die with this process, and the next feeder would cut the cycle elsewhere.
    """

    def __init__(self, server: Server, state: FeedState, publisher: Publisher, bounds: StreamBounds) -> None:
        self._server, self._state, self._publisher, self._bounds = server, state, publisher, bounds
        self._lock = server.lock
        self.waits_for = ""  # what the source waits for, for people

    @property
    def columns(self) -> tuple[Column, ...]:
        with self._lock:
            return self._bounds.columns

    @columns.setter
    def columns(self, columns: tuple[Column, ...]) -> None:
        with self._lock:
            self._bounds.columns = columns

    def begin(self, cycle: int) -> Bound | None:
        with self._lock:
            return self._bounds.begin(cycle)

    def ahead(self, cycle: int) -> tuple[Bound, int, int] | None:
        with self._lock:
            return self._bounds.ahead(cycle)

    def check_needed(self, cycle: int, waits_for: str) -> None:
        with self._lock:
            self.waits_for = waits_for
            needed = self._state.needed()
            if needed is None or needed.cycle != cycle or self._server.is_over():
                raise CycleNotNeeded

    def fix(self, begin: CycleBegin) -> None:
        cycle = begin.cycle if begin.before < 0 else begin.cycle - 1  # that is needed
        with self._lock:
            self._wait_for(cycle, "trainers that are many cycles behind", lambda: self._behind(cycle, begin))
            if (is_news := self._bounds.fix(*begin)) is None:
                raise CycleNotNeeded
            if is_news:
                self._server.send_cycles([self._bounds.known([begin])])
            self._wait_for(cycle, "trainers to hear where the cycle ends", self._server.deaf)
            self.waits_for = ""

    def _behind(self, cycle: int, new: CycleBegin) -> list[FeedMember] | None:
        """Return who holds back a cut that one message has no room for; None if it has."""
        self._bounds.forget_before(oldest := self._state.oldest_cycle(cycle))
        nbytes = len(wire.encode(self._bounds.known([*self._bounds.since(0), new])))
        if nbytes <= _MOST_BYTES:
            return None
        if not self._bounds.since(0)[1:]:
            raise SourceError(
                f"where two cycles of this stream begin takes {nbytes:,} bytes, and a message has room for "
                f"{_MOST_BYTES:,}: give it fewer partitions"
            )
        self._state.beginning.let_go()
        return [
            m for m in self._state.members.values() if m.reads and m.epoch_start and m.epoch_start.cycle <= oldest
        ]

    def _wait_for(self, cycle: int, why: str, late: Callable[[], list[FeedMember] | None]) -> None:
        """Wait until nobody is late; who is so for longer than ``stall_timeout`` is evicted, if others read."""
        began = time.monotonic()
        while (members := late()) is not None:
            self.check_needed(cycle, why)
            waited_s = time.monotonic() - began
            if (limit_s := self._publisher.stall_timeout) is not None and waited_s > limit_s:
                others = [m for m in self._state.members.values() if m.reads and m not in members]
                for member in members if others else ():
                    self._publisher.evict(member, waited_s)
            self._server.changed.wait(_LOOK_S)
