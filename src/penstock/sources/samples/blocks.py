"""Blocks that workers make: handed out in order, written into slots of the ring or of this process, and given."""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import FileIO
from typing import Any, NamedTuple

import numpy as np

from penstock.basics.terminal import say
from penstock.contracts import ByteArray, Cursor, Ids, Joints, SourceBlock, Tree, Wanted
from penstock.errors import BadSetting, SourceError, Untravelled
from penstock.linux.files import memory_file
from penstock.linux.fork import close_in_children
from penstock.memory.slots import Filled, OwnSlots, Placement, Slot, Slots
from penstock.sources.order import Planned
from penstock.sources.records.cached import SampleCaching
from penstock.sources.samples import worker
from penstock.sources.samples.worker import (
    BlockShape,
    Made,
    MemoryFile,
    Recipe,
    Samples,
    SampleTask,
    SampleWriter,
    are_places,
)
from penstock.sources.sharding import UNTRAVELLED
from penstock.sources.workers import Here, Workers
from penstock.sources.workers.far import FarSide, Standing
from penstock.sources.workers.pool import WorkerPool

_OWN, _RING = 0, 1
_MOST_OWN_BYTES = 1 << 30
_NAMED = 3
"""Skipped samples that are named on stderr; all are counted."""


class SampleData(ABC):
    """The data of a source: which samples come when, and where each lies."""

    root: str  # name of the data
    order: Any  # the order of samples

    @property
    def block_rows(self) -> int:
        """Rows of a full block."""
        return min(self.order.batch_size, self.order.samples)

    @property
    @abstractmethod
    def description(self) -> str: ...

    @abstractmethod
    def plans(self, at: Cursor, wanted: Wanted | None, joints: Joints) -> Iterator[Planned]:
        """Plan the blocks of a cycle, from the one that holds a place on."""

    @abstractmethod
    def samples(self, plan: Planned) -> tuple[Samples, Any]:
        """Return where samples lie, or the samples, and their last leaf if it is known; called in order."""

    def begin(self) -> None:  # noqa: B027 - few remember what was asked for
        """Forget the blocks of a pass that was given up."""

    def open(self) -> list[FileIO]:
        """Return files in memory that workers need."""
        return []

    def check(self, ids: Ids) -> None:  # noqa: B027 - not all can
        """Raise what explains that a block failed, or forbids to give it; called in the order of blocks."""

    def close(self) -> None:  # noqa: B027 - few hold something
        """Give up what was read ahead."""


class _Begun(NamedTuple):
    """A block on its way; one without rows has no slot and no parts."""

    plan: Planned
    numbers: Sequence[int]  # of its parts' tasks
    memory: int
    slot: Slot | None
    placement: Placement


class SampleBlocks:
    """Workers, and the memory in which they make the blocks of one source."""

    def __init__(
        self,
        data: SampleData,
        recipe: Recipe,  # what workers do
        example: Tree,  # a block of one row: what lies in memory
        workers: int,  # how many processes
        caching: SampleCaching,  # what is kept of the samples
        far: FarSide | None = None,  # what makes parts beside the workers
    ) -> None:
        self._data, self._recipe, self._caching = data, recipe, caching
        self._workers: Callable[[], Workers[SampleTask, Made]] = partial(WorkerPool, workers, worker.__name__, far)
        """Makes the workers, which start with the first task."""
        self.skipped = 0  # bad samples so far
        self._shape = BlockShape.of(example)
        nbytes = self._shape.placed(data.block_rows).nbytes or 1
        self._block_bytes = nbytes
        self.block_bytes = nbytes if recipe.in_ring else 0  # size of a full block; 0 where rows differ in size
        self._forget()

    def __getstate__(self) -> object:
        if self._files:
            raise Untravelled(UNTRAVELLED.format(self._data.root))
        return object.__getstate__(self)

    def use(self, slots: Slots) -> int:
        """Make blocks in these slots from now on; return how many are of use at once."""
        self.close()
        self._slots = slots if self._recipe.in_ring else None
        return self._most_begun if self._recipe.in_ring else 0

    def blocks(self, plans: Iterator[Planned], cycle: int) -> Iterator[SourceBlock]:
        """Yield the blocks of a plan."""
        if self._pid != os.getpid():  # a forked child's copy, whose workers are its parent's
            self._forget()
        if self._is_open:
            raise BadSetting(f"a pass over {self._data.root} is still open: close it before the next")
        self._is_open = True
        self._data.begin()
        begun: deque[_Begun] = deque()
        own = OwnSlots(0, 0)
        try:
            own = self._prepared()
            plan, memories = next(plans, None), self._memories
            while plan is not None or begun:
                while plan is not None and sum(max(1, len(each.numbers)) for each in begun) <= self._pool.capacity:
                    if (block := self._begin(plan, cycle, own, waits=bool(begun))) is None:
                        break
                    begun.append(block)
                    plan = next(plans, None)
                tree = self._given(begun[0], own)
                yield begun.popleft().plan.block(tree)
                if self._memories is not memories:
                    raise BadSetting("the source was closed while a pass over it was open")
        finally:
            try:
                self._pool.settle()
            finally:
                for block in begun:
                    places = self._slots if block.memory == _RING else own
                    if block.slot is not None and places is not None:  # else the source was closed amid the pass
                        places.offer(block.slot)
                self._is_open = False

    @property
    def beside(self) -> Standing | None:
        """How what makes parts beside the workers stands; None if there is nothing."""
        far = self._pool.far if isinstance(self._pool, WorkerPool) else None
        return None if far is None else far.standing

    def work_here(self) -> None:
        """Make blocks in this process from the next pass on."""
        self.close()
        self._workers = partial(Here, SampleWriter)
        self._forget()

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
        self._pool = self._workers()
        self._submitted = 0  # tasks, by which they are numbered: a late answer of a pass before is of none
        weakref.finalize(self, _release, self._pool, self._files, self._pid)

    def _prepared(self) -> OwnSlots:
        """Return slots in memory of this process's own; workers learn of all memory before they start."""
        most = max(2, _MOST_OWN_BYTES // self._block_bytes)
        spare = 1 if self._slots is not None else min(self._most_begun, most)
        if not self._memories:
            file = memory_file("penstock-blocks", spare * self._block_bytes)
            self._files.append(file)
            files = [MemoryFile(file.fileno(), spare * self._block_bytes)]
            if self._slots is not None:
                files.append(MemoryFile(*self._slots.ring_file))
            memories = [each.map() for each in files]
            others = [*self._caching.open(), *self._data.open()]
            self._files += others
            for each in self._files:
                close_in_children(each)
            setup = self._recipe, self._shape, files, self._caching.layouts
            self._pool.prepare(setup, [*(each.fd for each in files), *(each.fileno() for each in others)])
            self._memories = memories
        return OwnSlots(spare, self._block_bytes)

    @property
    def _most_begun(self) -> int:
        """Blocks that keep all workers at work, with the one that is given meanwhile."""
        parts = -(-self._data.block_rows // (self._recipe.part_rows or self._data.block_rows))
        return self._pool.capacity // parts + 1 + (parts > 1)

    def _begin(self, plan: Planned, cycle: int, own: OwnSlots, *, waits: bool) -> _Begun | None:
        """Have a block made; None if that must wait for a slot, which comes free where some have begun."""
        placement = self._shape.placed(len(plan.ids))
        if not len(plan.ids):
            return _Begun(plan, (), _OWN, None, placement)
        memory, slot = _RING, None if self._slots is None else self._slots.take()
        if slot is None:
            memory, slot = _OWN, None if self._slots is not None and waits else own.take()
        if slot is None:
            return None
        places = own if self._slots is None or memory == _OWN else self._slots
        try:
            samples, labels = self._data.samples(plan)
        except BaseException:
            places.offer(slot)
            raise
        if labels is not None:
            self._shape.arrays_in(self._memories[memory][slot.offset :], len(plan.ids))[-1][:] = labels
        where, caching, given = (cycle, memory, slot.offset, len(plan.ids)), self._caching.plan(), list[int]()
        for cut, rows in parts_of(plan, self._recipe.part_rows):
            ids = plan.ids[:0] if are_places(samples) else plan.ids[rows]
            is_all = rows.start == 0 and rows.stop == len(plan.ids)
            kept = plan.kept if is_all else np.arange(*cut) if plan.kept is None else plan.kept[rows]
            part = plan._replace(way=None, ids=ids, kept=kept)
            given.append(self._submitted)
            self._submitted += 1
            task = SampleTask(part, cut, *where, rows.start, samples[rows], labels is not None, *caching)
            self._pool.submit(given[-1], task)
        return _Begun(plan, given, memory, slot, placement)

    def _given(self, block: _Begun, own: OwnSlots) -> Any:
        """Wait until a block is made; return its tree."""
        if block.slot is None:
            return None
        try:
            results = [self._pool.result(number) for number in block.numbers]
        except SourceError:
            self._data.check(block.plan.ids)  # a shard that was replaced explains a failure
            raise
        self._data.check(block.plan.ids)
        for result in results:
            self._caching.learn(result)
            for notice in result.bad[: max(0, _NAMED - self.skipped)]:
                say(notice)
            self.skipped += len(result.bad)
        rows = len(block.plan.ids)
        if block.memory == _RING:
            return Filled(block.slot, rows, block.placement)
        tree = block.placement.copied(self._memories[_OWN][block.slot.offset :], rows)
        own.offer(block.slot)
        return self._recipe.whole([result.found for result in results], tree)


def parts_of(plan: Planned, part_rows: int) -> Iterator[tuple[tuple[int, int], slice[int, int, None]]]:
    """Cut a block at multiples of ``part_rows``, or nowhere for 0, and leave out parts without wanted rows.

    Yields the first of a part's rows in the block and the one behind the last; and which of the wanted they are.
    """
    for first in range(0, plan.rows, part_rows or plan.rows):
        places = first, min(plan.rows, first + (part_rows or plan.rows))
        rows = slice(*(places if plan.kept is None else np.searchsorted(plan.kept, places).tolist()))
        if rows.start < rows.stop:
            yield places, rows


def _release(pool: Workers[Any, Any], files: list[FileIO], pid: int) -> None:
    if os.getpid() != pid:  # a forked child's copy
        return
    pool.close()
    while files:
        files.pop().close()
