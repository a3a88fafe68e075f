"""Cuts the stream of rows into a trainer's batches, each a private copy or a view."""

from __future__ import annotations

from operator import add
from typing import NamedTuple

from penstock.basics.terminal import say
from penstock.contracts import Cursor, Ids, Tree
from penstock.errors import BadSetting, PenstockError, ProtocolError
from penstock.feed.trainer.batch_builder import BatchBuilder, Make, view, whole_copy
from penstock.feed.trainer.connection import Standing
from penstock.feed.trainer.destination import Sealed
from penstock.feed.trainer.epoch import Epoch, EpochRules
from penstock.feed.trainer.holdings import ReceivedBlock
from penstock.feed.trainer.options import LoaderOptions
from penstock.feed.trainer.rows import RowStream
from penstock.sources.sharding import batches


class HandedOut(NamedTuple):
    """What has been handed out."""

    batches: int = 0
    samples: int = 0
    copied_bytes: int = 0
    viewed_bytes: int = 0

    def plus(self, other: HandedOut) -> HandedOut:
        return HandedOut(*map(add, self, other))


Named = dict[int, tuple[bytes, int, slice | Ids]]
"""By the row of a batch where they begin: the ids that a block has, their number, and which of them follow."""


class PendingBatch(NamedTuple):
    """A batch, and where its trainer stands once it has been handed out.

    It may still be on its way: ``tree`` is what ``make()`` returns after ``sealed.ready()``.
    """

    make: Make
    sealed: Sealed
    counts: HandedOut
    after: Epoch
    place: Standing
    named: Named  # where its samples' ids stand
    tree: Tree = None


class Batcher:
    """Takes rows from a stream, batch by batch."""

    def __init__(self, rows: RowStream, rules: EpochRules, options: LoaderOptions, *, drop_last: bool) -> None:
        self._rows = rows
        self._rules = rules  # how epochs are cut
        self._options = options  # what the trainer asked
        self._drop_last = drop_last  # what came of ``options.drop_last``
        self._pad = options.pad and options.world > 1
        self._destination = rows.destination
        self._whole = rows.connection.welcome.settings.whole_batches
        self._growing: _Growing | None = None
        self.left_out = 0  # rows of cycles of unknown length that filled no step
        self._check(rows.connection.welcome.name)

    def has_begun(self, epoch: Epoch) -> bool:
        """Whether the batch at this place has been begun, and the stream stands where it goes on."""
        skips = self._rules.samples is None and self._options.world > 1  # what has been skipped is not counted
        return self._growing is not None and self._growing.epoch == epoch and not skips

    def begin_anew(self) -> None:
        """Forget the batch that has been begun: the stream will move."""
        self._growing = None

    def next(self, epoch: Epoch) -> PendingBatch | None:
        """Return the next batch of an epoch in which the stream stands at this place; None at its end."""
        if self._whole or self._rules.batch_size is None:
            return self._next_as_it_is(epoch)
        if self._rules.samples is None:
            return self._next_of_unknown(epoch, self._rules.batch_size)
        dealt = self._rules.next(epoch)
        if dealt is None:
            return None
        batch = self._grown(epoch, dealt.rows)
        seen = 0
        for start, stop in dealt.runs:
            if (rows := batch.rows) < seen + stop - start:
                self._rows.pass_until(start + rows - seen)
                batch.take_until(seen + stop - start, None)
            seen += stop - start
        self._rows.pass_until(dealt.after.passed)
        after = dealt.after
        if self._rows.selected is not None:
            self._check_none_lacks(epoch)
            after = after._replace(at=self._rows.at)
        return self._given(batch, after)

    def ahead(self, epoch: Epoch) -> PendingBatch | None:
        """Return the next batch early if that is worth while and all of it is there; else None."""
        if not self._destination.runs_ahead:
            return None
        try:
            return self.next(epoch) if self._is_there(epoch) else None
        except PenstockError:  # raised again when that batch is asked for
            return None

    def _is_there(self, epoch: Epoch) -> bool:
        """Whether the next batch, with the rows of the other ranks, can be taken without waiting."""
        if self._whole or self._rules.batch_size is None:
            return self._has(blocks=self._options.world)
        if self._rules.samples is None:
            return self._has(rows=self._rules.batch_size * self._options.world)
        dealt = self._rules.next(epoch)
        return dealt is not None and self._has(rows=dealt.after.passed - epoch.passed)

    def _has(self, *, blocks: int = 0, rows: int = 0) -> bool:
        at, _, connection, index = self._rows.place
        for block in connection.present(index):
            if self._rows.end(block) > at:
                blocks, rows = blocks - 1, rows - self._rows.left_of(block)
            if blocks <= 0 and rows <= 0:
                return True
        return False

    def _next_of_unknown(self, epoch: Epoch, size: int) -> PendingBatch | None:
        """Return a batch of up to ``size`` rows from a cycle of unknown length; None at its end."""
        assert epoch.start is not None
        o, cycle = self._options, epoch.start.cycle
        skipped = 0
        if o.world > 1:
            self._growing = None
            skipped = self._skip(o.rank * size, cycle)
        batch = self._grown(epoch, size)
        batch.take_until(size, cycle)
        rows = batch.rows
        if o.world > 1 or self._drop_last:
            behind = (o.world - 1 - o.rank) * size
            skipped += rows + self._skip(behind, cycle)
            if skipped < size * o.world:
                self._leave_out(skipped, epoch)
                return None
            rows = size * o.world
        elif rows == 0:
            return None
        return self._given(batch, epoch._replace(passed=epoch.passed + rows))

    def _leave_out(self, rows: int, epoch: Epoch) -> None:
        """Count rows at a cycle's end that fill no step."""
        self.left_out += rows
        self._rows.connection.leave_out(rows)
        if rows and not epoch.passed and epoch.start is not None:
            step = (self._rules.batch_size or 0) * self._options.world
            name = self._rows.connection.welcome.name
            say(
                f"cycle {epoch.start.cycle} of feed {name!r} has {rows:,} rows, fewer than the {step:,} of a "
                "step: they go to nobody"
            )

    def _grown(self, epoch: Epoch, most: int) -> _Growing:
        """Return the batch begun at this place, or a new one."""
        if self._growing is None or self._growing.epoch != epoch:
            self._growing = _Growing(self._rows, epoch, most, borrow=self._options.borrow)
        return self._growing

    def _check_none_lacks(self, epoch: Epoch) -> None:
        """Check that an epoch's rows are from its cycle: if some were missing, the next one's would follow."""
        assert epoch.start is not None
        if self._rows.at > (end := Cursor(epoch.start.cycle + 1, epoch.start.sample)):
            feed = self._rows.connection.welcome
            raise ProtocolError(
                f"feed {feed.name!r} (feeder {feed.pid}) left out samples that this trainer selects: its epoch "
                f"ends at {tuple(end)}, and its last rows came up to {tuple(self._rows.at)}"
            )

    def _given(self, batch: _Growing, after: Epoch) -> PendingBatch:
        """Give out a finished batch, which ends at ``after`` in the epoch, and where the stream stands."""
        self._growing = None  # whoever gets it may write to it
        make, counts = batch.finish()
        return PendingBatch(make, self._destination.seal(), counts, after, self._rows.place, batch.named)

    def _next_as_it_is(self, epoch: Epoch) -> PendingBatch | None:
        """Return the source's next batch: this rank's of the next ``world``, if there is one for every rank.

        With ``pad`` the last one goes to all ranks that would get none.
        """
        assert epoch.start is not None
        if self._pad and self._has_no_step(epoch):
            return None
        mine: tuple[Make, HandedOut] | None = None
        named: Named = {}
        passed, last = epoch.passed, False
        for rank in range(self._options.world):
            if last:
                break
            block = None
            while block is None:
                if passed == self._rules.samples or (block := self._rows.current(epoch.start.cycle)) is None:
                    return None
                passed += block.rows
                last = self._pad and self._is_last(passed)
                if (rank == self._options.rank or (last and mine is None)) and not self._leaves_out(block):
                    mine, named = self._handed(block), {0: (block.ids, block.rows, slice(block.rows))}
                    self._rows.verify()
                self._rows.place = self._rows.taking(block, block.rows)[2]
                if self._leaves_out(block):
                    block = None
        assert mine is not None
        make, counts = mine
        return PendingBatch(
            make, self._destination.seal(), counts, epoch._replace(passed=passed), self._rows.place, named
        )

    def _leaves_out(self, block: ReceivedBlock) -> bool:
        """Whether ``drop_last`` leaves out a block: the short one at the end of a cycle, of unknown length any."""
        full, samples = self._rows.connection.welcome.block_rows, self._rules.samples
        ends = samples is None or block.at.sample + block.rows == samples
        return self._drop_last and ends and full is not None and block.rows < full

    def _has_no_step(self, epoch: Epoch) -> bool:
        """Whether ``drop_last`` ends a padded epoch of whole batches here."""
        full, samples = self._rows.connection.welcome.block_rows, self._rules.samples
        if not self._drop_last or full is None or samples is None or epoch.start is None:
            return False
        left = samples - epoch.passed
        if self._rules.at(epoch).cycle > epoch.start.cycle:  # the short batch is past, and was not given
            left += samples % full
        return batches(left, full, self._options.world, drop_last=True, pad=True) == 0

    def _is_last(self, passed: int) -> bool:
        """Whether an epoch of whole batches is over after its first ``passed`` rows."""
        assert self._rules.samples is not None
        left, full = self._rules.samples - passed, self._rows.connection.welcome.block_rows
        return left == 0 or (self._drop_last and full is not None and left < full)

    def _handed(self, block: ReceivedBlock) -> tuple[Make, HandedOut]:
        if self._options.borrow and self._destination.lends:
            make, copied, viewed = view(block, slice(0, block.rows), self._destination, whole=self._whole)
            return make, HandedOut(1, block.rows, copied, viewed)
        make, nbytes = whole_copy(block, self._destination, None if self._whole else block.rows)
        return make, HandedOut(1, block.rows, nbytes, 0)

    def _skip(self, rows: int, cycle: int) -> int:
        """Skip up to ``rows`` rows of a cycle; return how many there were."""
        passed = 0
        while passed < rows and (block := self._rows.current(cycle)) is not None:
            _, part, after = self._rows.taking(block, rows - passed)
            self._rows.place = after
            passed += part
        return passed

    def _check(self, name: str) -> None:
        o, samples = self._options, self._rules.samples
        if o.borrow and not self._destination.lends:
            raise BadSetting(
                f"device={o.device!r} with borrow=True: this feed's ring lies on the host, and what goes to a "
                "GPU is copied there anyway. Leave borrow out"
            )
        if self._whole and o.batch_size is not None:
            raise BadSetting(
                f"feed {name!r} gives whole batches (whole_batches=True), whose shapes may vary, so "
                f"batch_size={o.batch_size} is not possible. Leave batch_size out"
            )
        if self._pad and samples is None:
            raise BadSetting(
                f"feed {name!r} has a source that does not know its length, so its ranks cannot be padded: leave "
                "pad out, and pass drop_last=True"
            )
        if o.world > 1 and not (self._drop_last or self._pad) and (samples is None or self._whole):
            why = "gives whole batches" if self._whole else "has a source that does not know its length"
            raise BadSetting(
                f"feed {name!r} {why}, so what is left at its end cannot be split evenly among {o.world} ranks: "
                + ("pass drop_last=True" if samples is None else "pass drop_last=True or pad=True")
            )
        if samples is not None and self._rules.batch_size is not None:
            batches(samples, self._rules.batch_size, o.world, drop_last=self._drop_last, pad=self._pad)


class _Growing:
    """A batch put together from runs of rows, block by block as they come; it may exceed the window.

    Rows are counted as the stream passes them, so after an exception the batch
    grows on where it was broken off.
    """

    def __init__(self, rows: RowStream, epoch: Epoch, most: int, *, borrow: bool) -> None:
        self.epoch = epoch  # the place before the batch
        self._stream = rows
        self._most = most  # most rows that it will have
        self._borrow = borrow  # whether it is a view if all of it lies together in one block, and the ring lends
        self._viewed: tuple[Make, int, int] | None = None
        self.named: Named = {}
        self._batch = BatchBuilder(most, rows.destination)

    @property
    def rows(self) -> int:
        """Rows that it has."""
        return self._batch.rows

    def take_until(self, rows: int, cycle: int | None) -> None:
        """Take rows of the stream until the batch has ``rows``, or the cycle ends."""
        stream, batch = self._stream, self._batch
        while batch.rows < rows and (block := stream.current(cycle)) is not None:
            picked, part, after = stream.taking(block, rows - batch.rows)
            lends = self._borrow and stream.destination.lends  # a failover may bring another ring
            if lends and part == self._most and isinstance(picked, slice):
                self._viewed = view(block, picked, stream.destination, whole=False)
            else:
                batch.copy(block, picked, part, batch.rows)
            self.named[batch.rows] = block.ids, block.stored, picked
            stream.verify()
            rows_after = batch.rows + part
            batch.rows = rows_after
            stream.place = after
            del block  # not to be referred to beyond its release

    def finish(self) -> tuple[Make, HandedOut]:
        """Return what makes the batch, and its counts."""
        if self._viewed is not None:
            make, copied, viewed = self._viewed
            return make, HandedOut(1, self._most, copied, viewed)
        batch = self._batch
        return batch.finish(), HandedOut(1, batch.rows, batch.copied_bytes, 0)
