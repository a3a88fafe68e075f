"""A trainer's way through its epochs, batch by batch; a call that is broken off does not damage it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import msgspec

from penstock.basics.terminal import say
from penstock.contracts import Cursor, Known, Tree, last_read
from penstock.errors import BadSetting, FeedEnded, LoaderClosed
from penstock.feed.trainer.batch_builder import converted, filled
from penstock.feed.trainer.batcher import Batcher, HandedOut, Named, PendingBatch
from penstock.feed.trainer.connection import FeedConnection
from penstock.feed.trainer.epoch import Epoch, EpochRules
from penstock.feed.trainer.options import LoaderOptions
from penstock.feed.trainer.rows import RowStream
from penstock.waits import Iteration, in_phases


class EpochReader:
    """Where a trainer stands, and the stream that it reads.

    ``epoch`` passes a batch when that is handed out, and no earlier. If a batch
    was not handed out, its rows are read again: from the blocks that are still
    held, else from the feeder.
    """

    def __init__(self, rows: RowStream, rules: EpochRules, batcher: Batcher, options: LoaderOptions) -> None:
        self.epoch = rules.begin(0, None)  # the place behind the last batch that was handed out
        self.counts = HandedOut()  # what has been handed out
        self.named: Named = {}  # where the ids of the samples stand that were handed out last
        self.finished: tuple[Epoch, PendingBatch] | None = None
        """A batch that is yet to be handed out, and the place before it."""
        self.in_place = False  # whether the stream stands where ``epoch`` does
        self.resumed = False  # whether ``epoch`` was loaded, and no loop has begun since
        self.newest: object = None  # mark of the loop that may go on
        self.not_before = Cursor(0, 0)  # where a trainer that has read before begins at the earliest
        self.check: Callable[[FeedConnection], None] | None = None
        """Checks the feed before the first batch is handed out; None once it has."""
        self.rules = rules  # how epochs are cut
        self._rows = rows
        self._batcher = batcher  # cuts epochs into batches
        self._options = options
        self._ahead: PendingBatch | None = None

    def load(self, state: dict[str, Any]) -> None:
        """Go to a state's place, if that is elsewhere; a loop that has begun becomes void."""
        epoch = self.rules.loaded(state)
        not_before = self.rules.cursor(state, "not_before") or self.not_before
        welcome = self._rows.connection.welcome
        if "joints" in state and not welcome.joins:
            raise BadSetting(
                "this state was saved in an epoch that began in mid-cycle, or beside such, and feed "
                f"{welcome.name!r} has no cycle in that order. Begin its epoch anew"
            )
        if welcome.joins and epoch.start is not None:
            if epoch.passed:
                known = self.rules.known(state, epoch)
                here = self._rows.connection.known
                if known.joints != here.joints.deciding(known.opened) or not set(known.alive) <= set(here.alive):
                    epoch = epoch._replace(known=known)
            elif epoch.start.sample not in welcome.segment_starts:  # between two epochs, it joins as a newcomer
                not_before, epoch = epoch.start, self.rules.begin(epoch.number, None)
        if "cycles" in state:
            epoch = epoch._replace(known=self.rules.cycles(state))
        if epoch != self.epoch:
            self._rows.held_from = None
            self.in_place = False
        self.finished = None
        self.newest = None
        self.resumed = True
        self.not_before = not_before
        self.epoch = epoch

    def saved(self) -> dict[str, Any]:
        """Return the place as plain numbers; ``load`` takes them."""
        state = self.rules.saved(self.epoch)
        if state["start"] is None and self.not_before > Cursor(0, 0):
            state["not_before"] = list(self.not_before)
        if state["start"] is not None and (known := self._cycles_from(state["start"][0])).cycles:
            state["cycles"], state["columns"] = msgspec.to_builtins((known.cycles, known.columns))
        if state["start"] is not None and state["delivered"]:
            known = self.epoch.known or self._rows.connection.known
            cycle = last_read(self.rules.at(self.epoch), Cursor(*state["start"]))
            changes, welcome = known.joints.deciding(cycle).changes, self._rows.connection.welcome
            if changes or known.alive or (welcome.joins and state["start"][1] not in welcome.segment_starts):
                in_force = [[since, list(places)] for since, places in changes]
                state["joints"] = {"in_force": in_force, "alive": list(known.alive)}
        return state

    @property
    def left_out(self) -> int:
        """Rows of cycles of unknown length that filled no step."""
        return self._batcher.left_out

    def _cycles_from(self, cycle: int) -> Known:
        """Return what is known of a stream's cycles from one on; nothing of other sources."""
        for known in (self._rows.connection.known.since(cycle), self.epoch.known):
            if known and [each.cycle for each in known.cycles[:1]] == [cycle]:
                return known
        return Known()  # it came before the stream had begun

    def coming(self) -> Epoch:
        """Return what a loop that begins now reads: the rest of a loaded epoch, or a new one."""
        if self.rules.is_over(self.epoch):
            return self.following()
        if self.epoch.passed and not self.resumed:
            if self._rows.connection.known.cycles:  # of a stream, where the next one begins is known
                return self.rules.following(self.epoch)
            return self.rules.after_giving_up(self.epoch)
        return self.epoch

    def soonest(self) -> Cursor:
        """Return where the epoch that comes now begins at the earliest: a draw never comes twice."""
        begun = (epoch for epoch in (self.coming(), self.epoch) if epoch.start is not None)
        return next(map(self.rules.at, begun), self.not_before)

    def following(self) -> Epoch:
        """Return the next epoch's beginning: a cycle on, or where the feeder chooses, if no joint is there."""
        epoch = self.rules.following(self.epoch)
        if epoch.start is None or self.rules.may_begin(epoch.start, self._rows.connection.known):
            return epoch
        return self.rules.begin(epoch.number, None)

    def next(self) -> PendingBatch | None:
        """Return the next batch of the epoch, ready to hand out; None at its end."""
        if self.finished is None or self.finished[0] != self.epoch:
            given = self._next()
            if given is None:
                return None
            counts = self.counts.plus(given.counts)
            self.finished = self.epoch, given._replace(tree=self._finished(given.tree), counts=counts)
        else:
            self.finished[1].sealed.again()
        _, given = self.finished
        if self.check is not None:
            self.check(self._rows.connection)
            self.check = None
        self._rows.let_go(given.place, given.sealed)
        if self.rules.is_over(given.after):
            self._end_if_last(given.after)
        return given

    def _next(self) -> PendingBatch | None:
        self._rows.destination.check()
        if not self.in_place:
            self._ahead = None
            if not self._batcher.has_begun(self.epoch):
                self._batcher.begin_anew()
                self._stand_at_epoch()
        self.in_place = False
        given = self._ahead or self._batcher.next(self.epoch)
        if given is None:
            return None
        self._ahead = None
        self._ahead = self._batcher.ahead(given.after)
        given.sealed.ready()
        return given._replace(tree=given.make())

    def _finished(self, tree: Tree) -> Tree:
        """Turn a batch into what its trainer gets."""
        options = self._options
        if options.full and options.batch_size is not None:
            tree = filled(tree, options.batch_size)
        if options.framework is not None:
            tree = converted(tree, options.framework)
        return tree if options.transform is None else options.transform(tree)

    def rest(self) -> None:
        """Release all blocks: a long validation may follow an epoch."""
        self._rows.let_go(self._rows.place)
        self._rows.destination.settle(wait=True)
        self._rows.connection.held.flush()

    def _end_if_last(self, epoch: Epoch) -> None:
        """Let the feed end with the last epoch: of a selection, that may be over long before its cycle."""
        connection, following = self._rows.connection, self.rules.following(epoch)
        if following.number == connection.welcome.settings.epochs and following.start is not None:
            self._rows.held_from = None
            connection.epoch(following.number, following.start)

    def _stand_at_epoch(self) -> None:
        """Bring the stream to the place of the epoch."""
        welcome = self._rows.connection.welcome
        epochs = welcome.settings.epochs
        number, start, *_ = self.epoch
        if epochs is not None and number >= epochs:
            raise FeedEnded(
                f"feed {welcome.name!r} gives each trainer epochs={epochs}, and this trainer has had them all"
            )
        if self.epoch.passed == 0:
            self._rows.move()
        if self._rows.moved:
            comes_home = self._rows.connection.welcome.name == self._rows.home
            start, self.not_before = None, self.soonest() if comes_home else Cursor(0, 0)
            self._rows.home = ""
            self.epoch = self.rules.begin(number, None)
        if start is not None:
            self._rows.stand_at(self.rules.at(self.epoch), number, start, self.epoch.passed, self.epoch.known)
            if self.epoch.known and self.epoch.known.cycles:  # the feed has taken over what holds of it
                self.epoch = self.epoch._replace(known=None)
            return
        self._rows.start(None, number, self.not_before)
        at, name = self._rows.at, self._rows.connection.welcome.name
        if at.cycle < (read := self.not_before.cycle):
            say(
                f"this trainer has read up to cycle {read}, and feed {name!r} is in cycle {at.cycle}: it begins "
                "there now, and sees random draws of those cycles again"
            )
        if self.rules.samples is None and at.sample:
            say(
                f"feed {name!r} does not know its length, and is in its first pass: this trainer "
                f"joins at its sample {at.sample:,}, and its first epoch has what is left of that pass"
            )
        self.epoch = self.rules.begin(number, at)


class LoaderLoop:
    """One ``for`` loop over a Loader: an epoch, or the rest of one.

    Whatever breaks ``next()`` off, the next call goes on behind the last
    batch that was handed out.
    """

    def __init__(self, reading: EpochReader, loader: object, check_usable: Callable[[], None]) -> None:
        self._reading = reading
        self._check_usable = check_usable
        self._begun = False
        self._over = False
        self._resumed = False  # whether it resumes an epoch, and nothing has come yet
        self._iteration = Iteration(loader)
        self._mark = reading.newest = object()

    def __iter__(self) -> Self:
        return self

    @in_phases
    def __next__(self) -> Tree:
        reading = self._reading
        self._check_usable()
        if reading.newest is not self._mark:
            raise LoaderClosed(
                "a newer loop over this Loader, load_state_dict() or select() has replaced this iterator"
            )
        iteration = self._iteration
        try:
            iteration.ask()
            given = None if self._over else self._next()
            if given is None:
                iteration.end()
                raise StopIteration
            iteration.give(given.counts.samples - reading.counts.samples)
        except BaseException:
            iteration.pause()
            raise
        # No call from here on, so no exception comes between (see Holdings): the batch is
        # both counted and handed out, or neither.
        reading.finished = None
        reading.epoch = given.after
        reading.counts = given.counts
        reading.named = given.named
        reading.in_place = True
        self._resumed = False
        return given.tree

    def _next(self) -> PendingBatch | None:
        reading = self._reading
        if not self._begun:
            epoch = reading.coming()
            self._begun = True
            self._resumed = reading.resumed and epoch.passed > 0
            reading.in_place = reading.in_place and epoch is reading.epoch
            if epoch.start is None:
                reading.not_before = reading.soonest()
            reading.resumed = False
            reading.epoch = epoch
        while (given := reading.next()) is None:
            following, again = reading.following(), self._resumed
            self._resumed = False
            self._over = not again
            reading.in_place = False
            if following.start is None:
                reading.not_before = reading.soonest()
            reading.epoch = following
            reading.rest()
            if not again:  # else the state was saved after its epoch's last batch
                return None
        return given
