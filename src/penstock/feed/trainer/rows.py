"""The rows of a feed, one after the other, across blocks and across feeders."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from penstock.basics.terminal import say
from penstock.contracts import Cursor, Ids, Known, Ring
from penstock.errors import DeviceUnavailable, FeederLost, FeedStopped, PenstockError, SettingsDiffer, WindowHeld
from penstock.feed import wire
from penstock.feed.queries import feeds
from penstock.feed.settings import MOST_BLOCKS
from penstock.feed.suffix import FeedOfRun
from penstock.feed.trainer.comparison import check_goes_on, difference_of_feeds, warn_of_other_data
from penstock.feed.trainer.connection import EpochApart, FeedConnection, Standing
from penstock.feed.trainer.deadlock import Deadlock, DeadlockWatch
from penstock.feed.trainer.destination import Destination, Sealed
from penstock.feed.trainer.elsewhere import Connect, Elsewhere, Prepare, say_moved
from penstock.feed.trainer.holdings import CycleEnded, ReceivedBlock
from penstock.feed.trainer.options import SelectedSamples
from penstock.linux.when_gone import Living

_POLLED_EVERY, _POLLED_AFTER_S = 16, 0.5
"""A trainer that has enough blocks looks, after so many or so long, what the feeder has said."""
_HELD_SHARE = 8
"""Blocks of an unfinished batch are held while they, and the largest block, take less than this part (1/8) of
the window, and of the blocks that may be on their way: the next block then has room, however they lie."""
_UNRELEASED_SHARE = 4
"""Copies are waited for before a block is if they, and what is unfinished, read this part (1/4) of the window."""
_streams = Living["RowStream"]()


class RowStream:
    """Where a trainer stands in a feed, and the block that it reads.

    Rows that have been read can be read again while they are held: until
    ``let_go`` after they were handed out, or until room must be made before waiting.
    """

    def __init__(
        self,
        connect: Connect,
        hello: wire.Hello,
        destination: Destination,
        of_run: FeedOfRun,  # the feed that the environment asks for
        *,
        prepare: Prepare | None,
        selected: SelectedSamples | None = None,
        after: RowStream | None = None,  # the stream that this one follows, in the same feed
    ) -> None:
        self._connect = connect  # finds, or starts, the feeder
        self._thread = threading.current_thread()  # that reads
        _streams.add(self)
        self._hello = hello  # the trainer's hello
        self.selected = selected  # the samples that it takes; None for all
        self.destination = destination  # where rows are copied to; it lets blocks go
        self._failover = prepare is not None  # whether ``connect`` may be called again when the feeder dies
        self._elsewhere = Elsewhere(connect, hello, of_run, prepare)
        self._polled_s = 0.0
        self._start: tuple[Cursor | None, int, Cursor] | None = None
        # Where it stands; plain assignment moves it.
        self.place = Standing(Cursor(0, 0), 0, self._connected(after and after.connection.welcome), 0)
        if after:
            self.connection.moves_to = after.connection.asked_to_move()
        self.held_from: Standing | None = None  # from where everything is held or still to come, if there is one
        self._started_on: Standing | None = None  # where the feeder was asked for rows, and on which connection
        self.moved = False  # whether it has come to another feed, and has yet to start there
        self.home = after.home if after else ""
        """The feed whose epoch it reads to its end on another, and to which it then comes back; or that began as
        it moved there."""
        self.failovers = after.failovers if after else 0
        self._past_wait_s = after.wait_s if after else 0.0

    @property
    def connection(self) -> FeedConnection:
        return self.place.connection

    @property
    def _me(self) -> str:
        return f"this trainer (pid {self._hello.pid})"

    @property
    def at(self) -> Cursor:
        return self.place.at

    @property
    def samples(self) -> int | None:
        """Samples in a cycle."""
        return self.connection.welcome.samples

    @property
    def has_asked(self) -> bool:
        return self._start is not None

    @property
    def wait_s(self) -> float:
        return self._past_wait_s + self.connection.wait_s

    def start(
        self, at: Cursor | None, epoch: int, epoch_start: Cursor, row: int = 0, known: Known | None = None
    ) -> None:
        """Ask for rows from a position, or from one near at hand; ``at`` is then that one.

        ``row`` rows of the epoch are past; ``known`` is of joints where it began, None for what the feed sent.
        """
        if known is None:
            known = self.connection.known
        if at is not None:
            known = known.read_on(at, epoch_start)
        self.held_from = None
        self.destination.settle(wait=True)
        self._start = at, epoch, epoch_start
        is_apart, leaves = False, self._failover and self._hello.world == 1
        while True:
            try:
                begun = self.connection.start(*self._start, known, leaves=leaves)
                if at is None:  # a new feeder must begin at this place too
                    self._start = begun, epoch, begun
                self.place = Standing(begun, row, self.connection, self.connection.held.first)
                self._started_on = self.held_from = self.place
                self.moved = False
                return
            except FeederLost as lost:
                self._replace(lost)
            except EpochApart:
                self._end_epoch_apart(self._start[0] or epoch_start, epoch_start, known, is_apart=is_apart)
                is_apart = True

    def stand_at(self, at: Cursor, epoch: int, epoch_start: Cursor, row: int, known: Known | None) -> None:
        """Go to a row: directly if it is held or still to come, else ask the feeder for it; see ``start``."""
        oldest = self.held_from
        if oldest is None or oldest.connection is not self.connection or oldest.at > at or known is not None:
            self.start(at, epoch, epoch_start, row, known)
            return
        self._start = at, epoch, epoch_start
        self.place = oldest._replace(at=at, row=row)
        self.connection.epoch(epoch, epoch_start)

    def move(self) -> None:
        """Go to the feed that was asked for, to start there as a late trainer; or stay, and print why."""
        old = self.connection
        to = self._elsewhere.asked(old)
        if old.leaves:  # as soon as its epoch has begun here
            return
        found = None if to is None or to == old.welcome.name else self._joined(to, starts=True)
        if to is None or found is None:
            old.moves_to = None
            return
        connection, is_new = found
        self.home = to if is_new else self.home
        self._read_on(Standing(self.at, 0, connection, 0), moved=True)
        say_moved(f"{self._me} moves from feed {old.welcome.name!r} to {to!r} for its next epoch", old.why)

    def _leave(self, to: str) -> None:
        """Read on from this place on another feed of equal order, or stay and print why."""
        old, here = self.connection, self.connection.welcome.name
        found = None if to == here else self._joined(to, starts=False)
        if found is None or not self._goes_on(found[0]):
            old.moves_to, old.leaves = self.home or None, False
            old.stay(to)
            return
        found[0].moves_to = self.home or None
        self._read_on(self.place._replace(connection=found[0], next_item=found[0].held.first), moved=False)
        self._started_on = self.held_from = self.place
        say_moved(f"{self._me} reads on from its place on feed {to!r}, and no more on {here!r}", old.why)

    def _goes_on(self, there: FeedConnection) -> bool:
        """Whether another feeder has the rows from here on, which it then sends; else all is as it was."""
        assert self._start is not None
        _, epoch, epoch_start = self._start
        with suppress(EpochApart, FeederLost):
            known = self.connection.known.read_on(self.at, epoch_start)
            there.start(self.at, epoch, epoch_start, known._replace(alive=()))  # nobody else may come for it
            return True
        self.destination.leave()
        there.close()
        stays = f"{self._me} stays: feed {there.welcome.name!r} has the rest of its epoch in another order"
        say_moved(stays, self.connection.why)
        return False

    def _read_on(self, place: Standing, *, moved: bool) -> None:
        """Leave a feeder that lives for another. If this is broken off, it begins again, or with a lost feeder."""
        waited_s, self._started_on = self.wait_s, None
        self.connection.close()
        self.moved, self._past_wait_s, self.place = moved, waited_s, place

    def _joined(self, to: str, *, starts: bool) -> tuple[FeedConnection, bool] | None:
        """Connect to a feed, and return whether it is new; where this trainer must stay, print why."""
        old = self.connection

        def open_ring(welcome: wire.Welcome, fds: Sequence[int]) -> Ring:
            if differs := difference_of_feeds(old.welcome, welcome, views=self._hello.borrow):
                raise SettingsDiffer(differs)
            self.held_from = None
            self.destination.leave()
            return self.destination.open_ring(welcome, fds)

        try:
            connection, is_new = self._elsewhere.connected(to, old.welcome, open_ring, starts=starts)
        except DeviceUnavailable:  # the old ring has been left by then
            raise
        except PenstockError as error:
            say(f"{self._me} stays on feed {old.welcome.name!r}, and does not move to {to!r}: {error}")
            return None
        self._watch(connection)
        return connection, is_new

    def current(self, last_cycle: int | None) -> ReceivedBlock | None:
        """Return the block that holds the row ``at``, waiting for it.

        None where the source's length is unknown and ``last_cycle`` is over.
        """
        while True:
            if last_cycle is not None and self.samples is None and self.at.cycle > last_cycle:
                return None
            item = self._item()
            at, row, connection, index = self.place
            if isinstance(item, CycleEnded):
                after = Cursor(item.cycle + 1, 0) if item.cycle == at.cycle else at
                self.place = Standing(after, row, connection, index + 1)
            elif (end := self.end(item)) > at:
                assert item.at <= at, f"rows lost: {at} wanted, {item.at} came"
                if self.selected is None or self.left_of(item):
                    connection.held.open(item)
                    return item
                self.place = Standing(end, row, connection, index + 1)
            else:  # from an epoch that was given up, or sent again by a new feeder
                self.place = Standing(at, row, connection, index + 1)

    def taking(self, block: ReceivedBlock, most: int) -> tuple[slice | Ids, int, Standing]:
        """Look for the next rows of a block that this trainer takes, at most ``most``.

        Returns:
            Where they lie in the block, how many they are, and where the stream stands after them.
        """
        at, row, connection, index = self.place
        first, rows, mine = at.sample - block.at.sample, block.rows, None
        if self.selected is not None:
            mine = self.selected.mine(block)
            first, rows = int(np.searchsorted(mine.rows, first)), len(mine.rows)
        stop = min(first + most, rows)
        if stop == rows:
            after = Standing(self.end(block), row + stop - first, connection, index + 1)
        else:
            following = stop if mine is None else int(mine.rows[stop])
            sample = block.at.sample + following
            after = Standing(Cursor(at.cycle, sample), row + stop - first, connection, index)
        if mine is None:
            return slice(first, stop), stop - first, after
        lie = mine.lie[first:stop]
        together = lie[-1] - lie[0] == len(lie) - 1
        return slice(int(lie[0]), int(lie[-1]) + 1) if together else lie, stop - first, after

    def pass_until(self, row: int) -> None:
        """Take and drop the rows of the epoch before this one as they come, so that none stays held."""
        while self.place.row < row:
            block = self.current(None)
            assert block is not None
            self.place = self.taking(block, row - self.place.row)[2]

    def end(self, block: ReceivedBlock) -> Cursor:
        """The position after a block."""
        return block.at.after(block.rows, self.place.connection.welcome.samples)

    def verify(self) -> None:
        """Check that what was just copied was valid: an eviction is announced before bytes are overwritten.

        Where the feed evicts nobody, this only looks for its end, now and then; else it waits for copies.
        """
        evicts = self.place.connection.welcome.settings.stall_timeout is not None
        if evicts:
            self.destination.synchronize()
        elif self.place.next_item % _POLLED_EVERY and time.monotonic() - self._polled_s < _POLLED_AFTER_S:
            return
        self._polled_s = time.monotonic()
        try:
            self.connection.poll()
        except FeederLost as lost:
            # A dead feeder writes no more, but one that evicts may have died before it announced that.
            if evicts or not self._failover or isinstance(lost, FeedStopped):
                raise

    def let_go(self, place: Standing, after: Sealed | None = None) -> None:
        """Release the rows before this place, which are read no more, once they are in that batch."""
        self.held_from = None
        self.destination.let_go(place.connection.held, place.next_item, after)
        self.held_from = place

    def close(self) -> None:
        self.destination.leave()
        self.connection.close()
        if self.selected is not None:
            self.selected.close()

    def _item(self) -> ReceivedBlock | CycleEnded:
        self._thread = threading.current_thread()
        while True:
            _, _, connection, index = self.place
            if connection.leaves:
                self._leave(connection.moves_to or connection.welcome.name)
                continue
            asked_on = None if self._started_on is None else self._started_on.connection
            if asked_on is not connection:  # after a failover, the new feeder is asked for the rows from here on
                assert self._start is not None
                _, epoch, epoch_start = self._start
                self.start(self.at, epoch, epoch_start, self.place.row)
                continue
            if not connection.has(index):
                self._make_room(connection, index)
            try:
                if (item := connection.item(index)) is not None:  # else it is told to leave
                    return item
            except FeederLost as lost:
                self._replace(lost)
            except Deadlock as deadlock:
                self._go_apart(deadlock)

    def left_of(self, block: ReceivedBlock) -> int:
        """Return how many rows of a block are still to be taken."""
        passed = self.at.sample - block.at.sample if self.at > block.at else 0
        if self.selected is None:
            return block.rows - passed
        rows = self.selected.mine(block).rows
        return len(rows) - int(np.searchsorted(rows, passed))

    def _connected(self, replaced: wire.Welcome | None) -> FeedConnection:
        connection = self._connect(self._hello, self.destination.open_ring, replaced)
        try:
            if self.selected is not None:
                self.selected.check(connection.welcome)
        except BaseException:
            self.destination.leave()
            connection.close()
            raise
        self._watch(connection)
        return connection

    def _watch(self, connection: FeedConnection) -> None:
        connection.held_up = DeadlockWatch(feeds, connection.welcome.name, self._hello.pid).look
        connection.prepare, connection.settle = self._elsewhere.begin, self.destination.settle
        connection.held.borrow = self._hello.borrow and self.destination.lends
        connection.way = ("view" if connection.held.borrow else self.destination.handed)[: wire.MOST_WORDS]

    def _make_room(self, connection: FeedConnection, index: int) -> None:
        """Let blocks go before waiting: the feeder may be waiting for their room."""
        held = connection.held
        window_bytes = connection.welcome.settings.window_bytes
        nbytes, blocks = held.bytes_before(index), index - held.first
        if max(nbytes, held.largest_bytes) * _HELD_SHARE > window_bytes or blocks * _HELD_SHARE > MOST_BLOCKS:
            self.let_go(self.place)
        if nbytes * _UNRELEASED_SHARE > window_bytes:
            self.destination.settle(wait=True)

    def _replace(self, lost: FeederLost) -> None:
        """Go on with a new feeder of the feed."""
        if not self._failover or isinstance(lost, FeedStopped):
            raise lost
        self._go_on(self.connection.successor)
        self.failovers += 1

    def _go_apart(self, deadlock: Deadlock) -> None:
        """Go on on a feed of equal order, beside those who have left this one because of the same process."""
        welcome = self.connection.welcome
        if not self._failover or (self.samples is None and self._hello.world > 1):
            others = {each._thread for each in _streams} - {self._thread}
            if any(thread.is_alive() for thread in others):  # which may read on
                say(f"{deadlock}. Neither goes on by itself: end one of them")
                return
            raise WindowHeld(f"{deadlock}. Read them at one rate, close one, or give the feed a larger window")
        self._go_on(self._elsewhere.around(deadlock, welcome))

    def _end_epoch_apart(self, at: Cursor, epoch_start: Cursor, known: Known, *, is_apart: bool) -> None:
        """Read the rest of an epoch, in its order, on another feed, and come back for the next."""
        home = self.connection.welcome
        self._go_on(self._elsewhere.for_rest(home, at, epoch_start, known, is_apart=is_apart))
        if self._hello.world == 1:
            self.home = home.name
            self.connection.moves_to = self.connection.moves_to or home.name

    def _go_on(self, welcome: wire.Welcome) -> None:
        """Connect to the feeder in the place of this one, which is then asked for the first row not taken."""
        old = self.connection
        self.held_from = None
        self.destination.leave()
        old.close()  # before the other takes its place: if this is broken off, the failover begins again
        connection = self._connected(welcome)
        connection.moves_to, connection.leaves, connection.known = old.moves_to, old.leaves, old.known
        try:
            check_goes_on(old.welcome, connection.welcome)
        except SettingsDiffer:
            connection.close()
            raise
        self.place = self.place._replace(connection=connection, next_item=0)
        self._past_wait_s += old.wait_s
        warn_of_other_data(old.welcome, connection.welcome)  # last: a filter may make an error of it
