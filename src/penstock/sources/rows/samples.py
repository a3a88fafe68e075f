"""Blocks of samples that come one by one: of records with fields, or of rows that a user's function decodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from io import FileIO
from typing import Any

import numpy as np

from penstock.contracts import ByteArray, Ids, Place, Records, Tree
from penstock.io.cache.cache import Cache
from penstock.io.cache.tiers import Admitted, CacheCounts, CacheLayout
from penstock.sources.order import Planned, permutation
from penstock.sources.records.cached import BYTES
from penstock.sources.rows.leaves import example_of
from penstock.sources.rows.settings import RowSettings
from penstock.sources.rows.worker import Made, RowRecipe, RowTask, RowWriter
from penstock.sources.workers.block_maker import BlockMaker, MemoryFile

_ASKED = 1024


class SampleBlocks(BlockMaker[RowTask, Made]):
    """Makes blocks of samples.

    ``samples`` returns where samples lie, or the samples; it is called in the order of blocks.
    """

    def __init__(
        self,
        root: str,  # name of the data
        samples: Callable[[Planned], Sequence[Place] | Sequence[Mapping[str, Any]]],
        check: Callable[[Ids], None],  # raises what explains that samples failed, or forbids to give them
        recipe: RowRecipe,  # what workers do
        settings: RowSettings,
        count: int,  # how many samples there are
        caching: SampleCaching | None,
    ) -> None:
        self._samples, self._check, self._recipe = samples, check, recipe
        self._settings = settings  # how they become blocks
        self._caching = caching  # what is kept of the samples; None for nothing
        self.in_ring = all(leaf.kind == "fixed" for leaf in recipe.leaves)
        super().__init__(
            root, example_of(recipe.leaves), min(settings.batch_size, count), settings.workers, RowWriter
        )

    def setup(self, memories: Sequence[MemoryFile]) -> tuple[tuple[Any, ...], list[FileIO]]:
        files = [] if self._caching is None else self._caching.open()
        return (self._recipe, memories, self._caching and self._caching.layout), files

    def task(self, plan: Planned, cycle: int, memory: int, offset: int) -> RowTask:
        admitted = Admitted(0.0, 0.0) if self._caching is None else self._caching.admitted
        return RowTask(memory, offset, cycle, plan.sample, plan.ids, self._samples(plan), admitted)

    def finish(self, plan: Planned, result: Made, leaves: Sequence[ByteArray]) -> None:
        if self._caching is not None:
            self._caching.counts.add(result.cached)
        self.skip([f"{why}: it is skipped" for why in result.bad])

    def check(self, ids: Ids) -> None:
        self._check(ids)

    def whole(self, result: Made, tree: Tree) -> Tree:
        if self.in_ring:
            return tree
        varying = dict(result.varying.given(self._settings.ragged))
        return {
            leaf.name: tree[leaf.name] if leaf.kind == "fixed" else varying[leaf.name]
            for leaf in self._recipe.leaves
        }


class SampleCaching:
    """What is kept of samples, as they are stored."""

    def __init__(self, cache: Cache, records: Records, samples: int) -> None:
        cache.refuse_pixels("samples")
        self._cache, self._root = cache, records.root
        some = records.places(np.sort(permutation(samples, 0)[:_ASKED]))
        self._bytes = sum(each.nbytes or 0 for each in some) / len(some)
        self._samples = samples  # how many samples there are
        self.counts = CacheCounts()
        self.layout: CacheLayout | None = None

    def open(self) -> list[FileIO]:
        """Learn what was kept before; return files of the memory, which last while somebody has them open."""
        memory, files = self._cache.open_memory()
        self.layout = self._cache.layout(self._root, BYTES, memory)
        return files

    @property
    def admitted(self) -> Admitted:
        """Which part of the samples is kept."""
        assert self.layout is not None
        return Admitted.of(self.layout, self._samples, self._bytes)
