"""Decides what a cache keeps of images, and counts what came of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from io import FileIO

import numpy as np
import simplejpeg  # pyright: ignore[reportMissingTypeStubs]

from penstock.basics.terminal import say
from penstock.contracts import Place, Records
from penstock.errors import BadSetting, PenstockError
from penstock.io.cache.cache import Cache
from penstock.io.cache.folder import read_rate
from penstock.io.cache.keep import CacheChoice, ImageCosts, choose_kept
from penstock.io.cache.tiers import LEAST_RECORDS, Admitted, CacheCounts, CacheLayout, kept_bytes
from penstock.io.files import DIRECT_ALIGNMENT
from penstock.linux.cgroups import cores
from penstock.sources.images.decoders import size_of
from penstock.sources.images.opencv import cv2
from penstock.sources.images.worker import Costs, Prepared
from penstock.sources.order import permutation
from penstock.sources.records.cached import BYTES, PIXELS
from penstock.sources.records.files import is_remote, read

_DECODERS = f"OpenCV {cv2.__version__}, simplejpeg {simplejpeg.__version__}"
"""What whole images are decoded by, whose versions may differ in pixels; regions are equal to whole images."""
_ASKED = 1024
_DECODED = 64
_LEAST_MEASURED = 64
_MOST_MEASURED = 1000


class ImageCaching:
    """What is kept of the images of one source; ``workers`` are the processes that prepare them.

    ``decodes`` says whether a user's function decodes, of whose pixels nothing is known from one run to the next;
    ``beside`` whether labels lie beside images, in the same bytes.
    """

    def __init__(
        self, cache: Cache | None, records: Records, workers: int, *, decodes: bool, beside: bool
    ) -> None:
        if cache is not None and cache.keep == PIXELS and decodes:
            raise BadSetting(
                'keep="pixels" cannot be used with decode=: another function would be given the pixels of this '
                'one. Pass keep="bytes"'
            )
        if cache is not None and cache.keep == PIXELS and beside:
            raise BadSetting(
                'keep="pixels" cannot be used where images are fields of samples, whose other fields would be '
                'lost. Pass keep="bytes"'
            )
        self._cache, self._records, self._workers = cache, records, workers
        self._samples = len(records.names)
        self._measured = Costs()
        self._later = Costs()
        self._kind = ""
        self._image_bytes: dict[str, float] = {BYTES: 0.0, PIXELS: 0.0}
        self._choice: CacheChoice | None = None
        self.counts = CacheCounts()  # what became of images, so far
        self.layouts: dict[str, CacheLayout] = {}
        if cache is not None and (cache.keep != "auto" or decodes or beside):
            self._kind = BYTES if decodes or beside else cache.keep

    def open(self) -> list[FileIO]:
        """Learn what was kept before; return files of the memory, which last while somebody has them open."""
        if self._cache is None:
            return []
        memory, files = self._cache.open_memory()
        kinds = (self._kind,) if self._kind else (BYTES, PIXELS)
        names = {BYTES: self._records.root, PIXELS: f"{self._records.root} ({_DECODERS})"}
        self.layouts = {kind: self._cache.layout(names[kind], kind, memory) for kind in kinds}
        if not self._kind:
            sizes = {kind: kept_bytes(layout) for kind, layout in self.layouts.items()}
            best = max(sizes, key=lambda kind: sizes[kind])
            self._kind = best if sizes[best] else ""
        if not self._image_bytes[BYTES]:
            self._estimate(max(self._cache.limit, self._cache.memory_bytes) // LEAST_RECORDS)
        return files

    def plan(self) -> tuple[str, Admitted]:
        """Return what the next block's images are kept as, and which part of them."""
        if not self._kind:
            return "", Admitted(0.0, 0.0)
        nbytes = self._image_bytes[self._kind] + DIRECT_ALIGNMENT / 2  # records end within a page
        return self._kind, Admitted.of(self.layouts[self._kind], self._samples, nbytes)

    def learn(self, prepared: Prepared) -> None:
        """Take in what became of a block."""
        if self._cache is None:
            self._measured.add(prepared.costs)
            return
        if prepared.cached.damaged and not self.counts.damaged:
            say("a cached image was not what had been kept, and was read again; penstock cache check finds all")
        self.counts.add(prepared.cached)
        (self._later if self.counts.hits > self.counts.missed else self._measured).add(prepared.costs)
        if self._measured.decoded and self._kind != BYTES:
            self._image_bytes[PIXELS] = self._measured.pixel_bytes / self._measured.decoded
        enough = min(max(_LEAST_MEASURED, self._samples // 20), _MOST_MEASURED)
        if not self._kind and self._measured.decoded >= min(enough, self._samples):
            self._choose(self._cache)

    @property
    def description(self) -> str:
        """What is kept, and what came of it, in words; empty without a cache."""
        if self._cache is None:
            return ""
        if not self._kind:
            return "measuring what to keep"
        seen = self.counts.hits + self.counts.missed
        text = (
            f"{self.counts.hits / seen:.0%} of {seen:,} images came from {self._kind} in the cache" if seen else ""
        )
        if self._choice is not None:
            came = self._later.images / max(self._later.busy_s, 1e-9)
            text += f" (of {self._choice.part:.0%} it keeps {self._kind}: "
            text += f"{self._choice.images_per_s:,.0f} images/s expected"
            text += f", {came * self._workers:,.0f} come)" if self._later.images else ")"
        if self.counts.damaged:
            text += f"; {self.counts.damaged:,} were damaged and read again"
        if self.counts.stale:
            text += f"; {self.counts.stale:,} were of files that have changed since"
            if self.counts.full:
                text += " (penstock cache drop makes room)"
        return text + (f"; nothing more is kept: {self.counts.full}" if self.counts.full else "")

    @property
    def costs(self) -> ImageCosts:
        """The costs of images that were read where they lie."""
        seen, count = self._measured, max(1, self._measured.decoded)
        return ImageCosts(
            seen.read_bytes / count,
            max(1.0, seen.pixel_bytes / count),
            seen.read_s / count,
            seen.decode_s / count,
            seen.finish_s / max(1, seen.images),
        )

    def choices(self, cache: Cache) -> list[CacheChoice]:
        """Return what a cache could keep, the best first, by what was measured so far."""
        return choose_kept(
            self.costs,
            images=self._samples,
            workers=self._workers,
            cores=cores(),
            reads_ahead=is_remote(self._records.root),
            memory_bytes=cache.memory_bytes,
            disk_bytes=cache.limit,
            disk_bytes_per_s=read_rate(cache.folder, direct=cache.is_direct),
        )

    def _choose(self, cache: Cache) -> None:
        costs = self.costs
        self._choice = self.choices(cache)[0]
        self._kind = self._choice.kind
        self._image_bytes = {BYTES: costs.nbytes, PIXELS: costs.pixel_bytes}
        say(f"the cache keeps {self._kind} of {self._choice.part:.0%} of the images")

    def _estimate(self, most: int) -> None:
        """Estimate the mean size of what is kept, from some random images that are not larger than this."""
        some = self._records.places(np.sort(permutation(self._samples, 0)[:_ASKED]))
        self._image_bytes[BYTES] = _mean(some, _stored_bytes, most)
        if self._kind == PIXELS:
            self._image_bytes[PIXELS] = _mean(some[:: -(-len(some) // _DECODED)], _pixel_bytes, most)


def _mean(places: list[Place], of: Callable[[Place], int], most: int) -> float:
    sizes: list[int] = []
    for place in places:
        with suppress(OSError, ValueError, PenstockError):  # a bad image, which its worker names
            sizes.append(of(place))
    fitting = [size for size in sizes if size <= most]
    return sum(fitting) / len(fitting) if fitting else 1.0


def _stored_bytes(place: Place) -> int:
    return os.stat(place.path).st_size if place.nbytes is None else place.nbytes


def _pixel_bytes(place: Place) -> int:
    height, width = size_of(read(place))
    return 3 * height * width
