"""What a worker does: reads the samples of a block, has them decoded, and writes them row by row."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np

from penstock.contracts import Ids, Place
from penstock.errors import ReadFailed
from penstock.io.cache.tiers import Admitted, CacheCounts, CacheLayout, Tiers
from penstock.memory.slots import place
from penstock.sources.records.cached import BYTES, CachedBlock
from penstock.sources.rows.leaves import BAD, RowLeaf, VaryingLeaves, example_of
from penstock.sources.workers import Steps
from penstock.sources.workers.block_maker import MemoryFile, skipped
from penstock.sources.workers.pool import serve
from penstock.tree import describe


class RowTask(NamedTuple):
    """A block to make."""

    memory: int  # which of the memories it is written to
    offset: int  # where it lies there
    cycle: int
    sample: int  # its first sample
    ids: Ids  # numbers of its samples in the data
    samples: Sequence[Place] | Sequence[Mapping[str, Any]]  # where its samples lie, or the samples themselves
    admitted: Admitted = Admitted(0.0, 0.0)  # which part of all samples is kept in the cache

    def __str__(self) -> str:
        return f"rows {self.sample:,} to {self.sample + len(self.samples) - 1:,} of cycle {self.cycle}"


class Made(NamedTuple):
    """What became of a block."""

    varying: VaryingLeaves  # those leaves that are not in its memory
    bad: list[str]  # samples that were skipped, and why
    cached: CacheCounts  # what became of samples in the cache


class RowRecipe(msgspec.Struct, frozen=True):
    """How samples become rows."""

    leaves: tuple[RowLeaf, ...]  # the leaves of a row
    root: str  # name of the data
    names: Mapping[str, str]  # fields of a sample by the names that they get; empty for those that it has
    parse: Callable[[bytes], dict[str, Any]] | None
    """From a sample's bytes to its fields; None where it comes as fields."""
    decode: Callable[[Any], Any] | None  # a user's function from fields to leaves; None for none
    skips: bool  # whether bad samples are skipped

    def sample(self, fields: Mapping[str, Any]) -> Any:
        """Return a sample's leaves."""
        named = {name: fields[field] for name, field in self.names.items()} if self.names else dict(fields)
        if self.decode is None:
            return named
        try:
            return self.decode(named)
        except Exception as error:  # whatever a user's function raises
            at = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{os.path.basename(at.filename)}, line {at.lineno}"
            raise ValueError(f"decode= raised {type(error).__name__}: {error} ({where})") from error


class RowWriter:
    """Makes blocks, in a worker's process."""

    def __init__(self, recipe: RowRecipe, memories: Sequence[MemoryFile], layout: CacheLayout | None) -> None:
        self._recipe = recipe
        self._memories = [each.map() for each in memories]  # where tasks lie
        self._tiers = None if layout is None else Tiers(layout)  # where samples are kept
        self._fixed = example_of(recipe.leaves)
        self._layout = describe(self._fixed).layout

    def __call__(self, task: RowTask) -> Steps[Made]:
        """Write the leaves of a block: the first step asks for its samples, and each of the others writes one."""
        rows, recipe, bad = len(task.samples), self._recipe, list[str]()
        places = [each for each in task.samples if isinstance(each, Place)]
        kept = CachedBlock(self._tiers, BYTES, places, task.admitted)
        yield
        placement = place(self._layout, [leaf.nbytes * rows for leaf in self._fixed.values()])
        parts = placement.leaves_in(self._memories[task.memory][task.offset :])
        arrays = {
            name: part.view(leaf.dtype).reshape(rows, *leaf.shape[1:])
            for (name, leaf), part in zip(self._fixed.items(), parts, strict=True)
        }
        varying = VaryingLeaves(recipe.leaves)
        try:
            for row in range(rows):
                try:
                    sample = self._sample(kept, task, row)
                except (ValueError, ReadFailed) as error:
                    given, sample = task.samples[row], None
                    where = given.where if isinstance(given, Place) else f"row {task.ids[row]:,} of {recipe.root}"
                    bad.append(skipped(error, f"{where}: {error}", "Mend it", skips=recipe.skips))
                for name, array in arrays.items():
                    if name == BAD:
                        array[row] = sample is None
                    else:
                        array[row] = 0 if sample is None else sample[name]
                varying.add(sample)
                yield
        finally:
            counts = kept.finish()
        return Made(varying, bad, counts)

    def _sample(self, kept: CachedBlock, task: RowTask, row: int) -> dict[str, Any]:
        """Return the leaves of a sample."""
        given = task.samples[row]
        return self._checked(self._recipe.sample(self._parsed(kept, row) if isinstance(given, Place) else given))

    def _parsed(self, kept: CachedBlock, row: int) -> dict[str, Any]:
        assert self._recipe.parse is not None
        data = kept.encoded(row)
        try:
            fields = self._recipe.parse(data)
        except ValueError:
            if not kept.forget(row):
                raise
            data = kept.encoded(row)
            fields = self._recipe.parse(data)
        kept.keep(row, data, np.empty((0, 0), np.uint8))
        return fields

    def _checked(self, sample: Any) -> dict[str, Any]:
        """Return a sample with values of the types that the first one had."""
        own = {leaf.name: leaf for leaf in self._recipe.leaves if leaf.name != BAD}
        is_dict = isinstance(sample, Mapping)
        names = [*map(str, cast("Mapping[Any, Any]", sample))] if is_dict else [type(sample).__name__]
        if not is_dict or {*names} != {*own}:
            raise ValueError(f"it has {', '.join(names)}, and the first sample {', '.join(own)}")
        return {name: leaf.checked(sample[name]) for name, leaf in own.items()}


def main(fd: int) -> None:
    """Be a worker whose tasks come through a socket."""
    serve(fd, RowWriter)
