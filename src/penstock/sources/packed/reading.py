"""One pass over a packed data set: blocks are read ahead, many at once, straight to their slots."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.contracts import ByteArray, Completed, Extents, Ids, Reader, SourceBlock
from penstock.memory.slots import Filled, OwnSlots, Placement, Slot, Slots
from penstock.sources.order import Planned
from penstock.sources.packed.leaf_files import PackedFiles

_PARTS = 4
"""Part of the reads under way that is waited for at once, so that one turn of Python serves many."""

_TAGS = 1 << 32
"""Most extents of a block; an extent's tag is its block's number times this, plus its index."""


@dataclass(eq=False)
class Shelf:
    """Memory, its slots that blocks may be read into, and the reader that fills them."""

    memory: ByteArray  # all of the memory
    places: Slots | OwnSlots
    reader: Reader | None  # reads into it; None if nothing is to be read
    files: Sequence[int]  # the reader's handles of the leaves that are read
    gives_slots: bool = field(kw_only=True)  # whether blocks are given in their slots; else they are copied
    _waiting: deque[Extents] = field(default_factory=deque[Extents], init=False)

    def ask(self, extents: Extents) -> None:
        """Queue extents to be read as soon as the reader has room for them."""
        self._waiting.append(extents)
        self._submit()

    def completed(self, missing: int) -> Completed:
        """Wait for some extents, and submit more before returning; the caller cannot go on without ``missing``."""
        assert self.reader is not None
        completed = self.reader.completed(min(missing, max(1, self.reader.depth // _PARTS)))
        self._submit()
        return completed

    def drain(self) -> None:
        """Forget reads that have not begun, and wait for the others: nothing is written after that."""
        self._waiting.clear()
        if self.reader is not None:
            self.reader.completed(self.reader.depth)

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()
            self.reader = None

    def _submit(self) -> None:
        assert self.reader is not None
        while self._waiting:
            begun = self.reader.submit(self._waiting[0])
            if begun < len(self._waiting[0].tags):
                self._waiting[0] = self._waiting[0].part(begun)
                return
            self._waiting.popleft()


@dataclass(eq=False)
class _Block:
    """A block on its way."""

    planned: Planned
    shelf: Shelf
    slot: Slot
    places: list[int]
    extents: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """Each one's leaf, first row of the block, and rows."""
    missing: int = 0
    """Extents that have not come."""


class Reading:
    """Reads blocks in the order of a plan, as many at once as there are slots."""

    def __init__(
        self,
        files: PackedFiles,
        plan: Iterator[Planned],
        shelf: Shelf,
        spare: Callable[[], Shelf],
    ) -> None:
        self._files = files  # files of the data set
        self._plan = plan  # what to read
        self._shelf = shelf  # where blocks are read to
        self._spare = spare
        """Gives another shelf that always has a slot, for when this one has none and nothing is under way."""
        self._next = next(plan, None)
        self._count = 0
        self._under_way: dict[int, _Block] = {}  # by number, in order

    def blocks(self) -> Iterator[SourceBlock]:
        """Yield every block of the plan."""
        try:
            while True:
                self._begin()
                if not self._under_way:
                    return
                number, block = next(iter(self._under_way.items()))
                while block.missing:
                    self._settle(block.shelf.completed(block.missing))
                self._files.check_unchanged()
                del self._under_way[number]
                yield self._given(block)
        finally:
            self._abandon()

    def _begin(self) -> None:
        """Begin to read blocks while there are slots."""
        while self._next is not None:
            shelf = self._shelf
            slot = shelf.places.take()
            if slot is None:
                if self._under_way:
                    return
                # Slots come free only when this block has been given, so it must not wait for one.
                shelf = self._spare()
                slot = shelf.places.take()
            assert slot is not None
            planned, self._next = self._next, next(self._plan, None)
            rows = len(planned.ids)
            block = _Block(planned, shelf, slot, self._files.places(slot.offset, rows))
            self._under_way[self._count] = block
            for leaf in self._files.in_memory:
                self._files.gather(leaf, planned.ids, self._memory(block, leaf, 0, rows))
            if self._files.read and rows:
                self._ask(block)
            self._count += 1

    def _ask(self, block: _Block) -> None:
        pieces: list[tuple[Ids, ...]] = []
        for handle, leaf in zip(block.shelf.files, self._files.read, strict=True):
            size = self._files.row_bytes[leaf]
            starts, rows = self._files.runs(leaf, block.planned.ids)
            offsets = self._files.offsets(leaf, block.planned.ids[starts])
            pieces.append((np.full(len(starts), handle), offsets, rows * size, block.places[leaf] + starts * size))
            runs: list[tuple[int, int]] = list(zip(starts.tolist(), rows.tolist(), strict=True))
            block.extents += [(leaf, start, count) for start, count in runs]
        block.missing = len(block.extents)
        tags = self._count * _TAGS + np.arange(block.missing)
        block.shelf.ask(Extents(tags, *(np.concatenate(field) for field in zip(*pieces, strict=True))))

    def _settle(self, completed: Completed) -> None:
        if completed.failures:
            self._files.check_unchanged()  # a file that was cut short explains it
            raise completed.failures[min(completed.failures)]
        tags: list[int] = completed.tags.tolist()
        for tag in tags:
            number, extent = divmod(tag, _TAGS)
            block = self._under_way[number]
            leaf, start, rows = block.extents[extent]
            self._files.check(
                leaf, block.planned.ids[start : start + rows].tolist(), self._memory(block, leaf, start, rows)
            )
            block.missing -= 1

    def _memory(self, block: _Block, leaf: int, start: int, rows: int) -> ByteArray:
        """Return the memory of some rows of a block's leaf."""
        size = self._files.row_bytes[leaf]
        at = block.places[leaf] + start * size
        return block.shelf.memory[at : at + rows * size]

    def _given(self, block: _Block) -> SourceBlock:
        rows = len(block.planned.ids)
        if not rows:
            block.shelf.places.offer(block.slot)
            return block.planned.block(None)
        offsets = tuple(place - block.slot.offset for place in block.places)
        sizes = tuple(size * rows for size in self._files.row_bytes)
        placement = Placement(self._files.manifest.layout, offsets, sizes, block.slot.nbytes)
        if block.shelf.gives_slots:
            return block.planned.block(Filled(block.slot, rows, placement))
        tree = placement.copied(block.shelf.memory[block.slot.offset :], rows)
        block.shelf.places.offer(block.slot)
        return block.planned.block(tree)

    def _abandon(self) -> None:
        for shelf in {id(block.shelf): block.shelf for block in self._under_way.values()}.values():
            shelf.drain()
        for block in self._under_way.values():
            block.shelf.places.offer(block.slot)
        self._under_way.clear()
