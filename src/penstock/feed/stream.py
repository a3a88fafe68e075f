"""The rows of a feed, one after the other, across blocks and across feeders."""

from __future__ import annotations

from collections.abc import Callable

from penstock.contracts import Cursor
from penstock.errors import FeederLost, SettingsDiffer
from penstock.feed import wire
from penstock.feed.arrived import Arrived, CycleEnded
from penstock.feed.destination import Destination
from penstock.feed.link import Link, OpenRing
from penstock.feed.settings import Settings

Connect = Callable[[wire.Hello, OpenRing, Settings | None], Link]
"""Finds a feeder, or where it may, starts one (with these settings, if it replaces another)."""


class RowStream:
    """Where a trainer stands in a feed, and the block that it reads.

    Args:
        connect: Finds, or starts, the feeder.
        hello: What the trainer says of itself.
        destination: Where rows are copied to; it lets blocks go.
        failover: Whether ``connect`` may be called again when the feeder dies.

    Attributes:
        at: The next row to take.
        destination: As it was given.
    """

    def __init__(self, connect: Connect, hello: wire.Hello, destination: Destination, *, failover: bool) -> None:
        self._connect = connect
        self._hello = hello
        self.destination = destination
        self._failover = failover
        self._block: Arrived | None = None
        self._position: tuple[Cursor | None, int, Cursor] | None = None
        self.link = connect(hello, destination.open_ring, None)
        self.at = Cursor(0, 0)
        self.failovers = 0
        self._past_wait_s = 0.0

    @property
    def samples(self) -> int | None:
        return self.link.welcome.samples

    @property
    def wait_s(self) -> float:
        return self._past_wait_s + self.link.wait_s

    @property
    def reading(self) -> bool:
        """Whether the feeder has been asked for rows."""
        return self._position is not None

    def start(self, at: Cursor | None, epoch: int, epoch_start: Cursor) -> None:
        """Ask for rows from a position, or from the next segment; ``at`` tells where that is."""
        self.drop()
        self._position = at, epoch, epoch_start
        while True:
            try:
                self.at = self.link.start(*self._position)
                if at is None:  # a new feeder is asked for this place, and no other
                    self._position = self.at, epoch, self.at
                return
            except FeederLost as lost:
                self._replace(lost)

    def epoch(self, epoch: int, start: Cursor) -> None:
        """A new epoch begins at ``start``; rows before it are let go."""
        self.at = start
        self._position = start, epoch, start
        self.link.epoch(epoch, start)

    def current(self, last_cycle: int | None) -> Arrived | None:
        """The block that holds the row ``at``.

        None where the source's length is unknown and ``last_cycle`` is over.
        """
        while True:
            if self.samples is None and last_cycle is not None and self.at.cycle > last_cycle:
                return None
            if self._block is None:
                item = self._next()
                if isinstance(item, CycleEnded):
                    if item.cycle == self.at.cycle:
                        self.at = Cursor(item.cycle + 1, 0)
                    continue
                self._block = item
            if self.end(self._block) > self.at:
                assert self._block.at <= self.at, f"rows lost: {self.at} wanted, {self._block.at} came"
                return self._block
            self.drop()  # of an epoch that was given up, or sent again by a new feeder

    def advance(self, rows: int) -> None:
        """The next ``rows`` rows of the current block have been taken."""
        block = self._block
        assert block is not None
        self.at = Cursor(self.at.cycle, self.at.sample + rows)
        if self.at.sample == block.at.sample + block.rows:
            self.at = self.end(block)
            self.drop()

    def take_whole(self) -> Arrived:
        """The current block, which the caller releases."""
        block = self._block
        assert block is not None
        self.at = self.end(block)
        self._block = None
        return block

    def drop(self) -> None:
        """Release the current block."""
        if self._block is not None:
            self.destination.let_go(self._block)
            self._block = None

    def end(self, block: Arrived) -> Cursor:
        """The position after a block."""
        return block.at.after(block.rows, self.samples)

    def verify(self) -> None:
        """What was copied just now was ours: an eviction would have been announced before the overwriting.

        Copies that are carried out later are waited for, where there are evictions.

        Raises:
            TrainerEvicted: it was not.
            FeederLost: nothing can follow it.
        """
        evicts = self.link.welcome.settings.stall_timeout is not None
        if evicts:
            self.destination.finish()
        try:
            self.link.poll()
        except FeederLost:
            # A feeder that has died writes no more; one that evicts might not get its word through.
            if evicts or not self._failover or self.link.stopped:
                raise

    def present(self) -> int:
        """Rows that can be taken without waiting."""
        blocks = [self._block] if self._block is not None else []
        blocks += self.link.present()
        rows = 0
        for block in blocks:
            if self.end(block) > self.at:
                rows += block.rows - (self.at.sample - block.at.sample if block.at < self.at else 0)
        return rows

    def close(self) -> None:
        self.drop()
        self.destination.leave()
        self.link.close()

    def _next(self) -> Arrived | CycleEnded:
        while True:
            # A feeder may wait for the very blocks that this trainer has yet to let go.
            self.destination.settle(wait=not self.link.has_arrived)
            try:
                return self.link.next()
            except FeederLost as lost:
                self._replace(lost)
                assert self._position is not None
                _, epoch, epoch_start = self._position
                self.start(self.at, epoch, epoch_start)

    def _replace(self, lost: FeederLost) -> None:
        """Go over to a new feeder; it sends on from the first row that was not taken."""
        if not self._failover or self.link.stopped:
            raise lost
        old = self.link
        self._past_wait_s += old.wait_s
        self.destination.leave()
        old.close()
        self.link = self._connect(self._hello, self.destination.open_ring, old.welcome.settings)
        self.failovers += 1
        if changed := _changed(old.welcome, self.link.welcome):
            raise SettingsDiffer(
                f"the feeder of {old.welcome.name!r} died, and the one that serves the name now has other "
                f"{changed}: this trainer cannot go on in its order. Load its state_dict() into a Loader of a "
                "feed like the first"
            )


def _changed(before: wire.Welcome, now: wire.Welcome) -> str:
    """What of a feed's order has changed, in words."""
    orders = [
        {
            "samples": welcome.samples,
            "batch size": welcome.batch_size,
            "segments": welcome.segment_starts,
            "seed": welcome.settings.seed,
            "epochs": welcome.settings.epochs,
            "granularity": welcome.settings.batch_granular,
        }
        for welcome in (before, now)
    ]
    return ", ".join(name for name in orders[0] if orders[0][name] != orders[1][name])
