"""Cuts the stream of rows into a trainer's batches, each a private copy or a view."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.contracts import Cursor, Gpu, Tree
from penstock.errors import BadSetting, PenstockError
from penstock.feed.arrived import Arrived
from penstock.feed.batch import Batch, view, whole_copy
from penstock.feed.deal import batches, deal
from penstock.feed.destination import Ready
from penstock.feed.framework import Framework
from penstock.feed.stream import RowStream


class Options(NamedTuple):
    """What a trainer asks of its Loader; see ``penstock.attach``."""

    batch_size: int | None = None
    drop_last: bool = False
    rank: int = 0
    world: int = 1
    transform: Callable[[Tree], Tree] | None = None
    borrow: bool = False
    device: str | Gpu | None = None
    framework: Framework | None = None


class Given(NamedTuple):
    """A batch, and how many rows of the epoch all ranks together are further on.

    It may be on its way still: ``ready()`` first.
    """

    tree: Tree
    taken: int
    ready: Ready


class Counts:
    """What has been handed out."""

    def __init__(self) -> None:
        self.batches = self.samples = self.copied_bytes = self.viewed_bytes = 0


class Batcher:
    """Takes rows from a stream, batch by batch.

    Raises:
        BadSetting: the feed cannot be cut, or dealt to ranks, as asked.
    """

    def __init__(self, rows: RowStream, batch_size: int | None, options: Options) -> None:
        self.counts = Counts()
        self._rows = rows
        self._batch_size = batch_size
        self._options = options
        self._destination = rows.destination
        self._whole = rows.link.welcome.settings.batch_granular
        self._check(rows.link.welcome.name)

    def next(self, start: Cursor, delivered: int) -> Given | None:
        """The next batch of the epoch that began at ``start``, or None at its end."""
        samples = self._rows.samples
        remaining = None if samples is None else samples - delivered
        if self._whole or self._batch_size is None:
            return self._next_as_it_is(start.cycle, remaining)
        if remaining is None:
            return self._next_of_unknown(start.cycle, self._batch_size)
        o = self._options
        share = deal(remaining, self._batch_size, o.rank, o.world, drop_last=o.drop_last)
        if share is None:
            self._skip(remaining, None)
            return None
        self._skip(share.start, None)
        batch = self._collect(share.stop - share.start, None)
        assert batch is not None
        self._skip(share.taken - share.stop, None)
        return batch._replace(taken=share.taken)

    def ahead(self, start: Cursor, delivered: int) -> Given | None:
        """The batch after those, where it is worth taking early and all of it is there; else None."""
        if not self._destination.runs_ahead:
            return None
        least = 1 if self._whole or self._batch_size is None else self._batch_size
        if self._rows.present() < least * self._options.world:
            return None
        try:
            return self.next(start, delivered)
        except PenstockError:  # it stays so, and is told to who asks for that batch
            return None

    def _next_of_unknown(self, cycle: int, size: int) -> Given | None:
        """From a source of unknown length: as many rows as come before its cycle ends."""
        o = self._options
        self._skip(o.rank * size, cycle)
        batch = self._collect(size, cycle)
        if batch is None:
            return None
        taken = batch.taken
        if o.world > 1 or o.drop_last:
            after = (o.world - 1 - o.rank) * size
            if taken < size or self._skip(after, cycle) < after:
                return None
            taken = size * o.world
        return batch._replace(taken=taken)

    def _next_as_it_is(self, cycle: int, remaining: int | None) -> Given | None:
        """The source's next batch; of as many as there are ranks this rank's, while all ranks get one."""
        mine: Arrived | None = None
        taken = 0
        for rank in range(self._options.world):
            if taken == remaining or self._rows.current(cycle) is None:
                if mine is not None:
                    mine.release()
                return None
            block = self._rows.take_whole()
            taken += block.rows
            if rank == self._options.rank:
                mine = block
            else:
                block.release()
        assert mine is not None
        tree = self._handed(mine)
        self._rows.verify()
        self._destination.let_go(mine)
        return Given(tree, taken, self._destination.seal())

    def _handed(self, block: Arrived) -> Tree:
        if self._options.borrow:
            tree, nbytes = view(block, 0, block.rows, self._destination, whole=self._whole)
            self._count(block.rows, 0, nbytes)
        elif self._whole:
            tree, nbytes = whole_copy(block, self._destination)
            self._count(block.rows, nbytes, 0)
        else:
            batch = Batch(block.rows, self._destination)
            batch.add(block, 0, block.rows)
            self._count(block.rows, batch.copied_bytes, 0)
            tree = batch.finish()
        return tree

    def _collect(self, rows: int, cycle: int | None) -> Given | None:
        """The next ``rows`` rows, fewer if the cycle ends, None if none are left.

        Rows are copied block by block as these come, so a batch may be larger
        than the window.
        """
        block = self._rows.current(cycle)
        if block is None:
            return None
        offset = self._rows.at.sample - block.at.sample
        if self._options.borrow and block.rows - offset >= rows:
            tree, nbytes = view(block, offset, offset + rows, self._destination, whole=False)
            self._rows.verify()
            self._rows.advance(rows)
            self._count(rows, 0, nbytes)
            return Given(tree, rows, self._destination.seal())
        batch = Batch(rows, self._destination)
        while block is not None and batch.rows < rows:
            offset = self._rows.at.sample - block.at.sample
            part = min(rows - batch.rows, block.rows - offset)
            batch.add(block, offset, offset + part)
            self._rows.verify()
            self._rows.advance(part)
            del block  # not to be kept beyond its release
            block = self._rows.current(cycle) if batch.rows < rows else None
        self._count(batch.rows, batch.copied_bytes, 0)
        return Given(batch.finish(), batch.rows, self._destination.seal())

    def _skip(self, rows: int, cycle: int | None) -> int:
        """Let rows pass; how many there were."""
        passed = 0
        while passed < rows and (block := self._rows.current(cycle)) is not None:
            part = min(block.rows - (self._rows.at.sample - block.at.sample), rows - passed)
            self._rows.advance(part)
            passed += part
        return passed

    def _count(self, rows: int, copied_bytes: int, viewed_bytes: int) -> None:
        counts = self.counts
        counts.batches += 1
        counts.samples += rows
        counts.copied_bytes += copied_bytes
        counts.viewed_bytes += viewed_bytes

    def _check(self, name: str) -> None:
        o, samples = self._options, self._rows.samples
        if o.borrow and not self._destination.lends:
            raise BadSetting(
                f"device={o.device!r} with borrow=True: views are of the ring, which lies on the host here, and "
                "what goes to a GPU is copied there anyway. Leave borrow out"
            )
        if self._whole and o.batch_size is not None:
            raise BadSetting(
                f"feed {name!r} is batch-granular: its batches vary in shape and are taken as they "
                f"are, so batch_size={o.batch_size} cannot be had. Leave batch_size out"
            )
        if o.world > 1 and not o.drop_last and (samples is None or self._whole):
            why = "is batch-granular" if self._whole else "has a source that does not know its length"
            raise BadSetting(
                f"feed {name!r} {why}, so what is left at its end cannot be dealt evenly to {o.world} ranks: "
                "pass drop_last=True"
            )
        if samples is not None and self._batch_size is not None:
            batches(samples, self._batch_size, o.world, drop_last=o.drop_last)
