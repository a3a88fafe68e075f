"""Prepares blocks of images: hands them to workers in order, and the finished ones on, in slots or copied."""

from __future__ import annotations

import mmap
import os
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from io import FileIO
from itertools import count
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from penstock.basics.terminal import say
from penstock.contracts import ByteArray, Records, SourceBlock, Tree
from penstock.errors import BadSetting, SourceError, Untravelled
from penstock.linux.files import opened
from penstock.linux.fork import close_in_children
from penstock.memory.room import aligned
from penstock.memory.slots import Filled, OwnSlots, Placement, Slot, Slots, place
from penstock.sources.alone import UNTRAVELLED
from penstock.sources.images.keeping import Keeping
from penstock.sources.images.pool import WorkerPool
from penstock.sources.images.worker import Bad, Memory, Prepared, Recipe, Task
from penstock.sources.order import Planned
from penstock.tree import Array, array_nodes, build, describe, leaf_from_bytes

NO_LABEL = -100
"""The label in place of a skipped image's, which torch's cross_entropy leaves out."""

_OWN, _RING = 0, 1
_MOST_OWN_BYTES = 1 << 30
_NAMED = 3
"""Skipped images that are named on stderr; all are counted."""


class _Begun(NamedTuple):
    """A block on its way."""

    plan: Planned
    number: int
    memory: int
    slot: Slot | None
    placement: Placement | None


class Workshop:
    """Worker processes, and the memory in which they prepare blocks.

    Args:
        records: Where the images lie.
        labels: A row for each image; None if they have none.
        recipe: What workers do.
        example: A block of one row.
        rows: Rows of a full block.
        workers: How many processes.
        keeping: What is kept of the images.

    Attributes:
        block_bytes: Size of a full block.
        skipped: Bad images so far that came black.
    """

    def __init__(
        self,
        records: Records,
        labels: npt.NDArray[Any] | None,
        recipe: Recipe,
        example: Tree,
        rows: int,
        workers: int,
        keeping: Keeping,
    ) -> None:
        self._keeping = keeping
        self._records = records
        self._labels = labels
        self._recipe = recipe
        self._workers = workers
        self._layout, _, leaves = describe(example)
        self._nodes = list(array_nodes(self._layout))
        self._row_bytes = [leaf.nbytes for leaf in leaves]
        self.block_bytes = sum(aligned(nbytes * rows) for nbytes in self._row_bytes)
        self.skipped = 0
        self._forget()

    def __getstate__(self) -> object:
        if self._files:
            raise Untravelled(UNTRAVELLED.format(self._records.root))
        return object.__getstate__(self)

    def use(self, slots: Slots) -> int:
        """Prepare blocks in these slots from now on; return how many are of use at once."""
        self.close()
        self._slots = slots
        return self._pool.capacity + 1

    def blocks(self, plans: Iterator[Planned], cycle: int) -> Iterator[SourceBlock]:
        """Yield the blocks of a plan.

        Raises:
            BadSetting: another pass is open, or the workshop was closed amid this one.
            SourceError: an image is bad, a user's function failed, or workers cannot start.
            ReadFailed: a shard was replaced.
        """
        if self._pid != os.getpid():  # a forked child's copy, whose workers are its parent's
            self._forget()
        if self._is_open:
            raise BadSetting("a pass over these images is still open: close it before the next")
        self._is_open = True
        begun: deque[_Begun] = deque()
        own = OwnSlots(0, 0)
        try:
            own = self._prepared()
            plan, numbers, memories = next(plans, None), count(), self._memories
            while plan is not None or begun:
                while plan is not None and len(begun) <= self._pool.capacity:
                    if (block := self._begin(plan, next(numbers), cycle, own, begun)) is None:
                        break
                    begun.append(block)
                    plan = next(plans, None)
                first = begun[0]
                if first.slot is not None:
                    self._finish(first, self._result(first))
                tree = self._given(first, own)
                begun.popleft()
                yield first.plan.block(tree)
                if self._memories is not memories:
                    raise BadSetting("the source was closed while a pass over it was open")
        finally:
            try:
                self._pool.settle()
            finally:
                for block in begun:
                    self._offer(block, own)
                self._is_open = False

    def close(self) -> None:
        """End the workers, and forget all memory; the next pass begins again."""
        _release(self._pool, self._files, self._pid)
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._is_open = False
        self._slots: Slots | None = None
        self._memories: list[ByteArray] = []
        self._files: list[FileIO] = []
        self._pool: WorkerPool[Task, Prepared] = WorkerPool(self._workers, Recipe.__module__)
        weakref.finalize(self, _release, self._pool, self._files, self._pid)

    def _prepared(self) -> OwnSlots:
        """Return slots in memory of this process's own; workers learn of all memory before they start."""
        most = max(2, _MOST_OWN_BYTES // self.block_bytes)
        spare = 1 if self._slots is not None else min(self._pool.capacity + 1, most)
        if not self._memories:
            nbytes = spare * self.block_bytes
            file = opened("r+", os.memfd_create, "penstock-images", os.MFD_CLOEXEC)
            self._files.append(file)
            file.truncate(nbytes)
            files = [Memory(file.fileno(), nbytes)]
            memories = [np.frombuffer(mmap.mmap(*files[0]), np.uint8)]
            self._files += self._keeping.open()
            for each in self._files:
                close_in_children(each)
            passed = [each.fileno() for each in self._files]
            if self._slots is not None:
                files.append(Memory(*self._slots.ring_file))
                memories.append(self._slots.ring_memory)
                passed.append(files[-1].fd)
            self._pool.prepare((self._recipe, files, self._keeping.layouts), passed)
            self._memories = memories
        return OwnSlots(spare, self.block_bytes)

    def _begin(
        self, plan: Planned, number: int, cycle: int, own: OwnSlots, begun: Sequence[_Begun]
    ) -> _Begun | None:
        """Have a block prepared; None if that must wait for a slot."""
        rows = len(plan.ids)
        if not rows:
            return _Begun(plan, number, _OWN, None, None)
        memory, slot = _RING, None if self._slots is None else self._slots.take()
        if slot is None:
            if self._slots is not None and begun:  # slots come free when blocks that have begun are given
                return None
            memory, slot = _OWN, own.take()
            if slot is None:
                return None
        placement = place(self._layout, [nbytes * rows for nbytes in self._row_bytes])
        places = self._records.places(plan.ids)
        task = Task(memory, slot.offset, cycle, plan.sample, plan.rows, places, plan.kept, *self._keeping.plan())
        self._pool.submit(number, task)
        return _Begun(plan, number, memory, slot, placement)

    def _result(self, block: _Begun) -> list[Bad]:
        """Wait until a block's pixels are there; return the images that were skipped."""
        try:
            prepared = self._pool.result(block.number)
        except SourceError:
            self._records.check_unchanged(block.plan.ids)  # a shard that was replaced explains it
            raise
        self._records.check_unchanged(block.plan.ids)
        self._keeping.learn(prepared)
        return prepared.bad

    def _finish(self, block: _Begun, bad: Sequence[Bad]) -> None:
        """Write the labels of a block whose pixels are there; count the images that were skipped."""
        assert block.slot is not None
        assert block.placement is not None
        if self._labels is not None:
            lie = self._memories[block.memory][block.slot.offset :][block.placement.leaf_offsets[1] :]
            labels = self._labels[block.plan.ids]
            labels[[row for row, _, _ in bad]] = NO_LABEL if labels.ndim == 1 else 0
            lie[: labels.nbytes] = labels.reshape(-1).view(np.uint8)
        for image in bad[: max(0, _NAMED - self.skipped)]:
            say(f"{image.where} is skipped: {image.why}")
        self.skipped += len(bad)

    def _given(self, block: _Begun, own: OwnSlots) -> Any:
        """Return a finished block's tree."""
        if block.slot is None or block.placement is None:
            return None
        rows = len(block.plan.ids)
        if block.memory == _RING:
            return Filled(block.slot, rows, block.placement)
        memory = self._memories[_OWN][block.slot.offset : block.slot.offset + block.placement.nbytes].copy()
        own.offer(block.slot)
        leaves = zip(self._nodes, block.placement.leaves_in(memory), strict=True)
        return build(self._layout, [leaf_from_bytes(cast(Array, node), leaf, rows) for node, leaf in leaves])

    def _offer(self, block: _Begun, own: OwnSlots) -> None:
        if block.slot is not None:
            places = self._slots if block.memory == _RING else own
            if places is not None:  # the source was closed amid the pass
                places.offer(block.slot)


def _release(pool: WorkerPool[Any, Any], files: list[FileIO], pid: int) -> None:
    if os.getpid() != pid:  # a forked child's copy
        return
    pool.close()
    while files:
        files.pop().close()
