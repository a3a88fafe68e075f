"""What a worker does: reads the samples of a part of a block, and has them decoded straight into its memory."""

from __future__ import annotations

import mmap
import traceback
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple, Protocol, TypeGuard, cast

import numpy as np

from penstock.contracts import ByteArray, Place, Tree
from penstock.errors import SourceError
from penstock.io.cache.admission import Admitted
from penstock.io.cache.tiers import CacheCounts, CacheLayout, Tiers
from penstock.memory.slots import Placement, place
from penstock.sources.order import Planned
from penstock.sources.records.cached import CachedBlock
from penstock.sources.records.files import is_outage
from penstock.sources.workers import Steps
from penstock.sources.workers.process import serve
from penstock.tree import Array, Node, array_nodes, describe, leaf_from_bytes

Samples = Sequence[Place] | Sequence[Mapping[str, Any]] | Sequence[bytes]
"""Where samples lie, or the samples themselves."""


def are_places(samples: Samples) -> TypeGuard[Sequence[Place]]:
    """Whether samples are to be read from where they lie."""
    return isinstance(samples, list) and isinstance(samples[0], Place)


class MemoryFile(NamedTuple):
    """A file in memory that blocks are written to, by its descriptor."""

    fd: int
    nbytes: int

    def map(self) -> ByteArray:
        """Return its bytes, to read and to write."""
        return np.frombuffer(mmap.mmap(*self), np.uint8)


class BlockShape(NamedTuple):
    """How blocks lie in memory."""

    layout: Node
    arrays: Sequence[Array]  # its leaves
    row_bytes: Sequence[int]  # bytes of a row, of each leaf

    @classmethod
    def of(cls, example: Tree) -> BlockShape:
        """Return the shape of blocks, by one of one row."""
        layout, _, leaves = describe(example)
        return cls(layout, [cast("Array", node) for node in array_nodes(layout)], [leaf.nbytes for leaf in leaves])

    def placed(self, rows: int) -> Placement:
        """Return how a block of some rows lies."""
        return place(self.layout, [nbytes * rows for nbytes in self.row_bytes])

    def arrays_in(self, memory: ByteArray, rows: int) -> list[Any]:
        """Return the leaves of a block that begins where ``memory`` does."""
        parts = self.placed(rows).leaves_in(memory)
        return [leaf_from_bytes(node, part, rows) for node, part in zip(self.arrays, parts, strict=True)]


class SampleTask(NamedTuple):
    """A part of a block to make: some of its wanted rows, one behind the other."""

    plan: Planned  # which of the block's rows they are; without their ids where samples have places
    places: tuple[int, int]  # from which of the block's rows, wanted or not, and up to which one it is cut
    cycle: int
    memory: int  # which of the memories the block is written to
    offset: int  # where that lies there
    rows: int  # rows of the block that are wanted
    first: int  # the place of these among them
    samples: Samples
    is_labelled: bool  # whether their last leaf is written already
    caches: str  # what is kept of samples: one of the layouts that the worker knows; empty for nothing
    admitted: Admitted  # which part of all samples is kept

    def __str__(self) -> str:
        first, behind = (self.plan.sample + place for place in self.places)
        return f"rows {first:,} to {behind - 1:,} of cycle {self.cycle}"


class Made(NamedTuple):
    """What became of a part."""

    bad: list[str]  # what is said of samples that were skipped
    cached: CacheCounts | None  # what became of samples in the cache, if there is one
    found: Any  # what the recipe's step returned


class BlockPart:
    """Wanted rows of a block, for a step that decodes them."""

    def __init__(self, task: SampleTask, arrays: list[Any], recipe: Recipe, tiers: Tiers | None) -> None:
        self.began_s = perf_counter()
        self.plan, self.cycle, self.is_labelled = task.plan, task.cycle, task.is_labelled
        self.samples = task.samples
        self.arrays = arrays  # their part of the leaves in the block's memory, to be written
        places: Sequence[Place] = task.samples if are_places(task.samples) else []
        self.stored = CachedBlock(tiers, task.caches, places, task.admitted)
        self._recipe = recipe
        self.bad: list[str] = []

    def where(self, row: int) -> str:
        """Return where a sample lies, for errors."""
        given = self.samples[row]
        return given.where if isinstance(given, Place) else f"row {self.plan.ids[row]:,} of {self._recipe.root}"

    def skip(self, error: Exception, why: str, notice: str, remedy: str) -> None:
        """Take note of a bad sample; raise SourceError if none is skipped, or if a store does not answer."""
        outage = is_outage(error)
        if outage or not self._recipe.skips:
            own = error.__cause__  # what a user's function raised
            trace = "".join(traceback.format_exception(own)) if own else ""
            raise SourceError(why if outage else f'{why}. {remedy}, or pass on_bad="skip"', trace) from None
        self.bad.append(notice)


Step = Callable[[BlockPart], Steps[Any]]
"""Writes a part, a row at a step; the first step is done ahead. It returns what reaches the recipe's ``whole``."""


class Recipe(Protocol):
    """How samples become rows; it is sent to workers."""

    @property
    def root(self) -> str: ...  # name of the data

    @property
    def skips(self) -> bool: ...  # whether bad samples are skipped

    @property
    def in_ring(self) -> bool: ...  # whether all of a block lies in its memory

    @property
    def part_rows(self) -> int: ...  # rows of a block that one worker makes; 0 for all of them

    def step(self) -> Step:
        """Return what decodes parts, in a worker's process."""
        ...

    def whole(self, found: Sequence[Any], tree: Tree) -> Tree:
        """Return a block that was not made in the ring, with what of its parts does not lie in its memory."""
        ...


class SampleWriter:
    """Makes parts of blocks, in a worker's process."""

    def __init__(
        self,
        recipe: Recipe,
        shape: BlockShape,
        memories: Sequence[MemoryFile],  # where tasks lie
        layouts: Mapping[str, CacheLayout],  # where samples may be kept, by what is kept of them
        step: Step | None = None,  # what decodes parts, in place of the recipe's own
    ) -> None:
        self._recipe, self._shape, self._layouts = recipe, shape, layouts
        self._step = step or recipe.step()
        self._memories = [each.map() for each in memories]
        self._tiers: dict[str, Tiers] = {}

    def __call__(self, task: SampleTask) -> Steps[Made]:
        """Make a part: the first step asks for its samples, and each of the others writes one."""
        if task.caches and task.caches not in self._tiers:
            self._tiers[task.caches] = Tiers(self._layouts[task.caches])
        block = self._shape.arrays_in(self._memories[task.memory][task.offset :], task.rows)
        arrays = [each[task.first : task.first + len(task.samples)] for each in block]
        part = BlockPart(task, arrays, self._recipe, self._tiers.get(task.caches))
        try:
            found = yield from self._step(part)
        finally:
            counts = part.stored.finish()
        return Made(part.bad, counts, found)


def main(fd: int) -> None:
    """Be a worker whose tasks come through a socket."""
    serve(fd, SampleWriter)
