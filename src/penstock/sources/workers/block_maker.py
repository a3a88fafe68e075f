"""Blocks that workers make: handed out in order, written into slots of the ring or of this process, and given."""

from __future__ import annotations

import mmap
import os
import traceback
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import FileIO
from itertools import count
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from penstock.basics.terminal import say
from penstock.contracts import ByteArray, Ids, SourceBlock, Tree
from penstock.errors import BadSetting, SourceError, Untravelled
from penstock.linux.files import memory_file
from penstock.linux.fork import close_in_children
from penstock.memory.room import aligned
from penstock.memory.slots import Filled, OwnSlots, Placement, Slot, Slots, place
from penstock.sources.order import Planned
from penstock.sources.records.files import is_outage
from penstock.sources.sharding import UNTRAVELLED
from penstock.sources.workers import Steps, Workers
from penstock.sources.workers.here import Here
from penstock.sources.workers.pool import WorkerPool
from penstock.tree import describe

Task = TypeVar("Task")
Result = TypeVar("Result")

_OWN, _RING = 0, 1
_MOST_OWN_BYTES = 1 << 30
_NAMED = 3
"""Skipped samples that are named on stderr; all are counted."""


class MemoryFile(NamedTuple):
    """A file in memory that blocks are written to, by its descriptor."""

    fd: int
    nbytes: int

    def map(self) -> ByteArray:
        """Return its bytes, to read and to write."""
        return np.frombuffer(mmap.mmap(*self), np.uint8)


def skipped(error: Exception, why: str, remedy: str, *, skips: bool) -> str:
    """Return why a bad sample is skipped; raise SourceError if none is, or if a store does not answer."""
    outage = is_outage(error)
    if skips and not outage:
        return why
    own = error.__cause__  # what a user's function raised
    trace = "".join(traceback.format_exception(own)) if own else ""
    raise SourceError(why if outage else f'{why}. {remedy}, or pass on_bad="skip"', trace) from None


class _Begun(NamedTuple):
    """A block on its way; one without rows has no slot."""

    plan: Planned
    number: int
    memory: int
    slot: Slot | None
    placement: Placement


class BlockMaker(ABC, Generic[Task, Result]):
    """Workers, and the memory in which they make the blocks of one source; a full one has ``rows``."""

    in_ring = True  # whether blocks are made in the ring where there is room

    def __init__(
        self,
        name: str,
        example: Tree,
        rows: int,
        workers: int,
        make: Callable[..., Callable[[Task], Steps[Result]]],
    ) -> None:
        self._name = name  # what is read, for errors
        self._make = make  # makes, from what ``setup`` returns, the function that does a task in steps
        self._workers: Callable[[], Workers[Task, Result]] = partial(WorkerPool, workers, make.__module__)
        """Makes the workers, which start with the first task."""
        self.skipped = 0  # bad samples so far
        self._layout, _, leaves = describe(example)  # a block of one row
        self._row_bytes = [leaf.nbytes for leaf in leaves]
        self.block_bytes = sum(aligned(nbytes * rows) for nbytes in self._row_bytes) or 1  # size of a full block
        self._forget()

    @abstractmethod
    def setup(self, memories: Sequence[MemoryFile]) -> tuple[tuple[Any, ...], list[FileIO]]:
        """Return what workers are prepared with, and files that they need besides these memories."""

    @abstractmethod
    def task(self, plan: Planned, cycle: int, memory: int, offset: int) -> Task:
        """Return the task of making a block, which begins at an offset of one of the memories."""

    @abstractmethod
    def finish(self, plan: Planned, result: Result, leaves: Sequence[ByteArray]) -> None:
        """Take in the answer to a block, and write the leaves that workers do not write."""

    @abstractmethod
    def check(self, ids: Ids) -> None:
        """Raise what explains that a block failed, or forbids to give it."""

    def whole(self, result: Result, tree: Tree) -> Tree:
        """Return a block with what workers do not write to memory, if it was not made in the ring."""
        return tree

    def __getstate__(self) -> object:
        if self._files:
            raise Untravelled(UNTRAVELLED.format(self._name))
        return object.__getstate__(self)

    def use(self, slots: Slots) -> int:
        """Make blocks in these slots from now on; return how many are of use at once."""
        self.close()
        self._slots = slots if self.in_ring else None
        return self._pool.capacity + 1 if self.in_ring else 0

    def blocks(self, plans: Iterator[Planned], cycle: int) -> Iterator[SourceBlock]:
        """Yield the blocks of a plan."""
        if self._pid != os.getpid():  # a forked child's copy, whose workers are its parent's
            self._forget()
        if self._is_open:
            raise BadSetting(f"a pass over {self._name} is still open: close it before the next")
        self._is_open = True
        begun: deque[_Begun] = deque()
        own = OwnSlots(0, 0)
        try:
            own = self._prepared()
            plan, numbers, memories = next(plans, None), count(), self._memories
            while plan is not None or begun:
                while plan is not None and len(begun) <= self._pool.capacity:
                    if (block := self._begin(plan, next(numbers), cycle, own, waits=bool(begun))) is None:
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

    def work_here(self) -> None:
        """Make blocks in this process from the next pass on."""
        self.close()
        self._workers = partial(Here, self._make)
        self._forget()

    def skip(self, bad: Sequence[str]) -> None:
        """Count bad samples, and name the first of all."""
        for why in bad[: max(0, _NAMED - self.skipped)]:
            say(why)
        self.skipped += len(bad)

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
        weakref.finalize(self, _release, self._pool, self._files, self._pid)

    def _prepared(self) -> OwnSlots:
        """Return slots in memory of this process's own; workers learn of all memory before they start."""
        most = max(2, _MOST_OWN_BYTES // self.block_bytes)
        spare = 1 if self._slots is not None else min(self._pool.capacity + 1, most)
        if not self._memories:
            file = memory_file("penstock-blocks", spare * self.block_bytes)
            self._files.append(file)
            files = [MemoryFile(file.fileno(), spare * self.block_bytes)]
            memories = [files[0].map()]
            if self._slots is not None:
                files.append(MemoryFile(*self._slots.ring_file))
                memories.append(self._slots.ring_memory)
            setup, others = self.setup(files)
            self._files += others
            for each in self._files:
                close_in_children(each)
            self._pool.prepare(setup, [*(each.fd for each in files), *(each.fileno() for each in others)])
            self._memories = memories
        return OwnSlots(spare, self.block_bytes)

    def _begin(self, plan: Planned, number: int, cycle: int, own: OwnSlots, *, waits: bool) -> _Begun | None:
        """Have a block made; None if that must wait for a slot, which comes free where some have begun."""
        placement = place(self._layout, [nbytes * len(plan.ids) for nbytes in self._row_bytes])
        if not len(plan.ids):
            return _Begun(plan, number, _OWN, None, placement)
        memory, slot = _RING, None if self._slots is None else self._slots.take()
        if slot is None:
            memory, slot = _OWN, None if self._slots is not None and waits else own.take()
        if slot is None:
            return None
        self._pool.submit(number, self.task(plan, cycle, memory, slot.offset))
        return _Begun(plan, number, memory, slot, placement)

    def _given(self, block: _Begun, own: OwnSlots) -> Any:
        """Wait until a block is made; return its tree."""
        if block.slot is None:
            return None
        try:
            result = self._pool.result(block.number)
        except SourceError:
            self.check(block.plan.ids)
            raise
        self.check(block.plan.ids)
        memory = self._memories[block.memory][block.slot.offset :]
        self.finish(block.plan, result, block.placement.leaves_in(memory))
        rows = len(block.plan.ids)
        if block.memory == _RING:
            return Filled(block.slot, rows, block.placement)
        tree = block.placement.copied(memory, rows)
        own.offer(block.slot)
        return self.whole(result, tree)


def _release(pool: Workers[Any, Any], files: list[FileIO], pid: int) -> None:
    if os.getpid() != pid:  # a forked child's copy
        return
    pool.close()
    while files:
        files.pop().close()
