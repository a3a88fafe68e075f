"""Decides what a cache keeps of images, and counts what came of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import simplejpeg  # pyright: ignore[reportMissingTypeStubs]

from penstock.basics.terminal import say
from penstock.contracts import Place, Records
from penstock.errors import BadSetting, PenstockError
from penstock.io.cache.admission import LEAST_RECORDS, CacheChoice, ImageCosts, choose_kept
from penstock.io.cache.cache import Cache
from penstock.io.cache.folder import read_rate
from penstock.io.files import DIRECT_ALIGNMENT
from penstock.linux.cgroups import cores
from penstock.sources.images.decoders import size_of
from penstock.sources.images.opencv import cv2
from penstock.sources.images.recipe import Costs
from penstock.sources.records.cached import BYTES, PIXELS, SampleCaching
from penstock.sources.records.files import is_remote, read
from penstock.sources.samples.worker import Made

_DECODERS = f"OpenCV {cv2.__version__}, simplejpeg {simplejpeg.__version__}"
"""What whole images are decoded by, whose versions may differ in pixels; regions are equal to whole images."""
_DECODED = 64
_LEAST_MEASURED = 64
_MOST_MEASURED = 1000


class Sides(NamedTuple):
    """Who decoded images."""

    part: float  # part of all images that a device beside the workers made
    beside_per_s: float  # images a second while it was at work
    worker_per_s: float  # images a second of one worker


class ImageCaching(SampleCaching):
    """What is kept of the images of one source: their bytes or, if that pays, their pixels.

    ``decodes`` says whether a user's function decodes, of whose pixels nothing is known from one run to the next;
    ``beside`` whether labels lie beside images, in the same bytes.
    """

    spare_bytes = DIRECT_ALIGNMENT / 2  # records end within a page

    def __init__(
        self, cache: Cache | None, records: Records, workers: int, *, decodes: bool, beside: bool
    ) -> None:
        super().__init__(cache, records)
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
        self._root, self._workers = records.root, workers
        self._measured = Costs()
        self._later = Costs()
        self._choice: CacheChoice | None = None
        self._sample_bytes[PIXELS] = 0.0
        if cache is not None and not decodes and not beside:
            self._kind = "" if cache.keep == "auto" else cache.keep

    def learn(self, made: Made) -> None:
        if made.cached is not None and made.cached.damaged and not self.counts.damaged:
            say("a cached image was not what had been kept, and was read again; penstock cache check finds all")
        super().learn(made)
        is_later = made.cached is not None and self.counts.hits > self.counts.missed
        (self._later if is_later else self._measured).add(made.found)
        if self._measured.decoded and self._kind != BYTES:
            self._sample_bytes[PIXELS] = self._measured.pixel_bytes / self._measured.decoded
        enough = min(max(_LEAST_MEASURED, self._samples // 20), _MOST_MEASURED)
        if self._cache is not None and not self._kind and self._measured.decoded >= min(enough, self._samples):
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

    @property
    def sides(self) -> Sides:
        """What workers made so far, and what a device beside them."""
        seen = self._measured
        workers_s = seen.busy_s - seen.beside_s
        return Sides(
            seen.beside / max(1, seen.images),
            seen.beside / seen.beside_s if seen.beside else 0.0,
            (seen.images - seen.beside) / workers_s if workers_s > 0 else 0.0,
        )

    def choices(self, cache: Cache) -> list[CacheChoice]:
        """Return what a cache could keep, the best first, by what was measured so far."""
        return choose_kept(
            self.costs,
            images=self._samples,
            workers=self._workers,
            cores=cores(),
            reads_ahead=is_remote(self._root),
            memory_bytes=cache.memory_bytes,
            disk_bytes=cache.limit,
            disk_bytes_per_s=read_rate(cache.folder, direct=cache.is_direct),
        )

    def _choose(self, cache: Cache) -> None:
        costs = self.costs
        self._choice = self.choices(cache)[0]
        self._kind = self._choice.kind
        self._sample_bytes = {BYTES: costs.nbytes, PIXELS: costs.pixel_bytes}
        say(f"the cache keeps {self._kind} of {self._choice.part:.0%} of the images")

    def _names(self, root: str) -> dict[str, str]:
        names = {BYTES: root, PIXELS: f"{root} ({_DECODERS})"}
        return {self._kind: names[self._kind]} if self._kind else names

    def _estimate(self, cache: Cache, records: Records) -> None:
        some, most = self._some(records), max(cache.limit, cache.memory_bytes) // LEAST_RECORDS
        self._sample_bytes[BYTES] = _mean(some, _stored_bytes, most)
        if self._kind == PIXELS:
            self._sample_bytes[PIXELS] = _mean(some[:: -(-len(some) // _DECODED)], _pixel_bytes, most)


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
