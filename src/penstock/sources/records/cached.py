"""Samples that are kept: what a worker finds in a cache and adds to it, and which of them there is room for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from io import FileIO
from time import perf_counter, time_ns
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from penstock.contracts import ByteArray, Place, Records
from penstock.io.cache.admission import Admitted
from penstock.io.cache.cache import Cache
from penstock.io.cache.keys import hash64, keys_of, origin_of
from penstock.io.cache.slab import Item
from penstock.io.cache.tiers import CacheCounts, CacheLayout, Found, Tiers, kept_bytes
from penstock.sources.order import permutation
from penstock.sources.records.files import is_remote, read, version_of

if TYPE_CHECKING:
    from penstock.sources.samples.worker import Made

T = TypeVar("T")
PIXELS, BYTES = "pixels", "bytes"
_JUST_WRITTEN_NS = 100_000_000
_MOST_SIDE = 2**16 - 1
_REQUESTS = 32
"""Objects that a worker asks for at once."""
_ASKED = 1024
"""Samples whose size is asked for, at most."""


class CachedBlock:
    """Samples of one part of a block, from ``tiers`` that keep some as ``kind``, or else from their places."""

    def __init__(self, tiers: Tiers | None, kind: str, places: Sequence[Place], admitted: Admitted) -> None:
        self._tiers, self.kind, self._places = tiers, kind, places
        self.read_s = 0.0  # time for which samples were waited for
        self._found: list[Found | None] = [None] * len(places)
        self._wanted: list[int | None] = [None] * len(places)
        self._ahead: dict[int, bytes] = {}  # samples that were read before they are decoded
        self._origins: dict[int, int] = {}  # of samples that were read where they lie
        self._expected: dict[int, Found] = {}
        if tiers is not None:
            self._keys = keys_of(
                [hash64(each.path) for each in places],
                [each.offset for each in places],
                [each.nbytes or 0 for each in places],
            )
            self._found = tiers.find(self._keys)
            self._expected = {row: found for row, found in enumerate(self._found) if found is not None}
            tiers.expect(self._expected.values())
            self._wanted = tiers.wanted(self._keys, admitted)
        self._coming: dict[int, Future[bytes]] = {
            row: _fetchers().submit(read, place)
            for row, place in enumerate(places)
            if self._found[row] is None and is_remote(place.path)
        }

    def pixels(self, row: int) -> ByteArray | None:
        """Return an image's pixels, if they were kept."""
        if self.kind != PIXELS or (hit := self._hit(row)) is None:
            return None
        return hit[0].reshape(hit[1], hit[2], 3)

    def decoded(self, row: int, decode: Callable[[bytes], T]) -> tuple[T, bytes]:
        """Return what a sample's bytes become, and these; kept ones that no longer can are read where they lie."""
        while True:
            began = perf_counter()
            data = self.encoded(row)
            self.read_s += perf_counter() - began
            try:
                return decode(data), data
            except ValueError:
                if not self._forget(row):
                    raise

    def encoded(self, row: int) -> bytes:
        """Return a sample's bytes as they are stored: those that were kept, or else read where they lie."""
        if row in self._ahead:
            return self._ahead.pop(row)
        if self.kind == BYTES and (hit := self._hit(row)) is not None:
            return hit[0].tobytes()
        place = self._places[row]
        if self._wanted[row] is not None:
            self._origins[row] = _origin(place)
        encoded = self._coming.pop(row).result() if row in self._coming else read(place)
        if self._tiers is not None:
            self._tiers.counts.missed += 1
        return encoded

    def ahead(self, row: int) -> bytes:
        """Return a sample's bytes, which are not read again when it is decoded."""
        began = perf_counter()
        self._ahead[row] = found = self.encoded(row)
        self.read_s += perf_counter() - began
        return found

    def _forget(self, row: int) -> bool:
        """Take a sample from where it lies from now on; return whether it came from the cache."""
        was, self._found[row] = self._found[row], None
        return was is not None and row not in self._origins

    def keeps_pixels(self, row: int) -> bool:
        """Whether the pixels of an image that was just read are to be kept, all of them."""
        return self.kind == PIXELS and self._origins.get(row, 0) != 0

    def keep(self, row: int, encoded: bytes, pixels: ByteArray | None = None) -> None:
        """Keep a sample that was just read and decoded, if it is to be kept."""
        origin, tier = self._origins.get(row, 0), self._wanted[row]
        if not origin or tier is None or self._tiers is None:
            return
        item = Item(int(self._keys[row]), origin, encoded)
        if pixels is not None and self.kind == PIXELS:
            height, width = pixels.shape[:2]
            if max(height, width) > _MOST_SIDE:
                return
            item = Item(item.key, origin, pixels.copy().reshape(-1), height, width)
        self._tiers.keep(item, tier)

    def finish(self) -> CacheCounts | None:
        """Add to the cache what was read, and forget what is still coming; return what became of them lately."""
        for each in self._coming.values():
            each.cancel()
        if self._tiers is None:
            return None
        self._tiers.forget(self._expected.values())
        self._tiers.flush()
        return self._tiers.take_counts()

    def _hit(self, row: int) -> tuple[ByteArray, int, int] | None:
        found = self._found[row]
        if found is None or self._tiers is None:
            return None
        hit = self._tiers.read(found, _origin(self._places[row]))
        if hit is not None:
            self._expected.pop(row, None)
        return hit


@cache
def _fetchers() -> ThreadPoolExecutor:
    """Return the threads that wait for object stores."""
    return ThreadPoolExecutor(_REQUESTS)


def _origin(place: Place) -> int:
    """Return the version of what a place lies in; 0 if it was written just now, and may be again at once."""
    if place.etag:
        return hash64(place.etag)
    version = version_of(place.path)
    if abs(time_ns() - version.ctime_ns) < _JUST_WRITTEN_NS:
        return 0
    return origin_of(version)


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
        """Take in what became of a part of a block."""
        if made.cached is not None:
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
