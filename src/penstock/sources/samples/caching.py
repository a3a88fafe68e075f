"""Decides what a cache keeps of samples, and counts what came of it."""

from __future__ import annotations

from io import FileIO

import numpy as np

from penstock.contracts import Place, Records
from penstock.io.cache.cache import Cache
from penstock.io.cache.tiers import Admitted, CacheCounts, CacheLayout, kept_bytes
from penstock.sources.order import permutation
from penstock.sources.records.cached import BYTES
from penstock.sources.samples.worker import Made

_ASKED = 1024
"""Samples whose size is asked for, at most."""


class SampleCaching:
    """What is kept of the samples of one source, as they are stored; without a cache nothing."""

    spare_bytes = 0.0
    """Bytes that a sample takes beside its own."""

    def __init__(self, cache: Cache | None = None, records: Records | None = None) -> None:
        self._cache, self._records = cache, records
        self._samples = 0 if records is None else len(records.names)
        self._kind = "" if cache is None else BYTES  # what is kept; empty for nothing yet
        self._sample_bytes: dict[str, float] = {BYTES: 0.0}  # mean size of a sample, by what is kept of it
        self.counts = CacheCounts()  # what became of samples, so far
        self.layouts: dict[str, CacheLayout] = {}  # where samples may be kept, by what is kept of them

    def open(self) -> list[FileIO]:
        """Learn what was kept before; return files of the memory, which last while somebody has them open."""
        if self._cache is None or self._records is None:
            return []
        memory, files = self._cache.open_memory()
        names = self._names(self._records.root)
        self.layouts = {kind: self._cache.layout(names[kind], kind, memory) for kind in names}
        if not self._kind:  # it goes on with that of which most is there
            sizes = {kind: kept_bytes(layout) for kind, layout in self.layouts.items()}
            best = max(sizes, key=lambda kind: sizes[kind])
            self._kind = best if sizes[best] else ""
        if not self._sample_bytes[BYTES]:
            self._estimate(self._cache, self._records)
        return files

    def plan(self) -> tuple[str, Admitted]:
        """Return what the next block's samples are kept as, and which part of them."""
        if not self._kind:
            return "", Admitted(0.0, 0.0)
        nbytes = self._sample_bytes[self._kind] + self.spare_bytes
        return self._kind, Admitted.of(self.layouts[self._kind], self._samples, nbytes)

    def learn(self, made: Made) -> None:
        """Take in what became of a block."""
        self.counts.add(made.cached)

    @property
    def description(self) -> str:
        """What came of it, in words; empty if nothing did."""
        seen = self.counts.hits + self.counts.missed
        return f"{self.counts.hits / seen:.0%} of {seen:,} came from the cache" if seen else ""

    def _names(self, root: str) -> dict[str, str]:
        """Return the names of the data in the cache, by what may be kept of them."""
        return {BYTES: root}

    def _some(self, records: Records) -> list[Place]:
        """Return where some random samples lie."""
        return records.places(np.sort(permutation(self._samples, 0)[:_ASKED]))

    def _estimate(self, cache: Cache, records: Records) -> None:
        """Estimate the mean size of what is kept."""
        some = self._some(records)
        self._sample_bytes[BYTES] = sum(each.nbytes or 0 for each in some) / len(some)
