"""What a worker does: reads the images of a block, decodes, crops and writes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter, thread_time
from typing import Any, NamedTuple

import msgspec
import numpy as np

from penstock.contracts import ByteArray, Ids, Place, Region
from penstock.errors import ReadFailed
from penstock.io.cache.tiers import Admitted, CacheCounts, CacheLayout, Tiers
from penstock.sources.images.crops import Augmentation, Draws, draws_of, union
from penstock.sources.images.decoders import JPEG_END, decoder, whole_image, whole_jpeg
from penstock.sources.images.fields import ImageFields
from penstock.sources.images.opencv import checked, cv2
from penstock.sources.records.cached import CachedBlock
from penstock.sources.workers import Steps
from penstock.sources.workers.block_maker import MemoryFile, skipped
from penstock.sources.workers.pool import serve

_JPEG = b"\xff\xd8"
_PNG = b"\x89PNG\r\n\x1a\n"


class ImageTask(NamedTuple):
    """A block to prepare."""

    memory: int  # which of the memories it is written to
    offset: int  # where its pixels lie there
    cycle: int
    sample: int  # its first sample
    rows: int  # how many rows it has when all are wanted
    places: Sequence[Place]  # where the images lie that are wanted
    kept: Ids | None  # which of the rows these are; None for all
    caches: str = ""  # what is kept of images: one of the layouts that the worker knows; empty for nothing
    admitted: Admitted = Admitted(0.0, 0.0)  # which part of all images is kept

    def __str__(self) -> str:
        return f"rows {self.sample:,} to {self.sample + self.rows - 1:,} of cycle {self.cycle}"


class Bad(NamedTuple):
    """An image that was skipped: its row in the block, where it lies, and what is wrong with it."""

    row: int
    where: str
    why: str


class Costs(msgspec.Struct):
    """What images took, in seconds of a worker."""

    images: int = 0  # how many were prepared
    decoded: int = 0  # how many of them were read and decoded
    read_s: float = 0.0  # time that reading them took
    read_bytes: int = 0  # their bytes
    pixel_bytes: int = 0  # size of these, decoded as a whole
    decode_s: float = 0.0  # CPU time that decoding took
    finish_s: float = 0.0  # CPU time that resizing and all else took
    busy_s: float = 0.0  # time that whole blocks took

    def add(self, other: Costs) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Prepared(NamedTuple):
    """What became of a block; ``labels`` are those that lie beside its images, if they are wanted."""

    bad: list[Bad]
    cached: CacheCounts
    costs: Costs
    labels: Ids | None = None


class ImageRecipe(msgspec.Struct, frozen=True):
    """How images become rows."""

    augmentation: Augmentation  # what is done to them
    crops: int  # how many crops of each
    seed: int  # seed of the crops
    decode: Callable[[bytes], Any] | None
    """A user's function from bytes to pixels; None for the formats that are known."""
    skips: bool  # whether bad images are skipped
    fields: ImageFields | None = None  # what finds the image in a sample; None where it is all of it


class Preparer:
    """Prepares blocks, in a worker's process."""

    def __init__(
        self, recipe: ImageRecipe, memories: Sequence[MemoryFile], layouts: Mapping[str, CacheLayout]
    ) -> None:
        cv2.setNumThreads(1)
        self._recipe = recipe
        self._decoder = decoder()
        self._memories = [each.map() for each in memories]  # where tasks lie
        self._layouts = layouts  # where images may be kept, by what is kept of them
        self._tiers: dict[str, Tiers] = {}

    def __call__(self, task: ImageTask) -> Steps[Prepared]:
        """Write the pixels of a block: the first step asks for its images, and each of the others writes one."""
        began, recipe, bad = perf_counter(), self._recipe, list[Bad]()
        size, count = recipe.augmentation.size, len(task.places)
        shape = count, recipe.crops, size, size, 3
        pixels = self._memories[task.memory][task.offset : task.offset + math.prod(shape)].reshape(shape)
        draws = draws_of(recipe.seed, task.cycle, task.sample, task.rows, recipe.crops)
        if task.kept is not None:
            draws = draws[task.kept]
        if task.caches and task.caches not in self._tiers:
            self._tiers[task.caches] = Tiers(self._layouts[task.caches])
        images = CachedBlock(self._tiers.get(task.caches), task.caches, task.places, task.admitted)
        busy_s = perf_counter() - began
        yield
        began, self._costs = perf_counter(), Costs()
        labelled = recipe.fields is not None and recipe.fields.label is not None
        labels = np.zeros(count, np.int64) if labelled else None
        try:
            for row, place in enumerate(task.places):
                try:
                    label = self._write(images, row, draws[row], pixels[row])
                    if labels is not None:
                        labels[row] = label
                except (ValueError, ReadFailed) as error:
                    where = place.where
                    why = str(error) if isinstance(error, ReadFailed) else f"{where} cannot be decoded: {error}"
                    bad.append(Bad(row, where, skipped(error, why, "Remove or replace it", skips=recipe.skips)))
                    pixels[row] = 0
                busy_s += perf_counter() - began
                yield
                began = perf_counter()
        finally:
            counts = images.finish()
        self._costs.busy_s = busy_s + perf_counter() - began
        return Prepared(bad, counts, self._costs, labels)

    def _write(self, images: CachedBlock, row: int, draws: Draws, to: ByteArray) -> int:
        """Write the crops of one image; return the label that lies beside it, or 0."""
        augmentation, costs, label = self._recipe.augmentation, self._costs, 0
        began = thread_time()
        pixels = images.pixels(row)
        if pixels is None:
            asked = perf_counter()
            encoded = images.encoded(row)
            costs.read_s += perf_counter() - asked
            read = thread_time()
            try:
                image, label = self._found(encoded)
                pixels, regions, box = self._decoded(image, draws, whole=images.keeps_pixels(row))
            except ValueError:
                if not images.forget(row):
                    raise
                encoded = images.encoded(row)
                image, label = self._found(encoded)
                pixels, regions, box = self._decoded(image, draws, whole=False)
            images.keep(row, encoded, pixels)
            decoded = thread_time()
            costs.decoded += 1
            costs.read_bytes += len(encoded)
            costs.decode_s += decoded - read
            began = decoded
        else:
            box = Region(0, 0, *pixels.shape[:2])
            regions = augmentation.regions(box.height, box.width, draws)
        for region, each, crop in zip(regions, draws, to, strict=True):
            within = region._replace(top=region.top - box.top, left=region.left - box.left)
            augmentation.finish(_part(pixels, within), each, crop)
        costs.images += 1
        costs.finish_s += thread_time() - began
        return label

    def _found(self, sample: bytes) -> tuple[bytes, int]:
        """Return the image that a sample holds, and the label beside it, or 0."""
        return (sample, 0) if self._recipe.fields is None else self._recipe.fields(sample)

    def _decoded(self, encoded: bytes, draws: Draws, *, whole: bool) -> tuple[ByteArray, list[Region], Region]:
        """Return pixels, the regions of the image that its crops take, and the region that the pixels are."""
        augmentation = self._recipe.augmentation
        if not encoded:
            raise ValueError("there are no bytes, as where tables hold a null or a path alone")
        if self._recipe.decode is not None or not encoded.startswith(_JPEG):
            pixels = self._whole(encoded)
            box = Region(0, 0, *pixels.shape[:2])
            self._costs.pixel_bytes += pixels.nbytes
            return pixels, augmentation.regions(box.height, box.width, draws), box
        height, width = checked(*self._decoder.size(encoded))
        self._costs.pixel_bytes += height * width * 3
        regions = augmentation.regions(height, width, draws)
        box = Region(0, 0, height, width) if whole else union(regions)
        try:
            if not encoded.endswith(JPEG_END):
                raise ValueError("only a whole decode sees, whatever the crop, whether the image was cut short")
            return self._decoder.decode(encoded, box), regions, box
        except ValueError:  # or a kind that this decoder does not know, or damage
            return _part(whole_jpeg(encoded), box), regions, box

    def _whole(self, encoded: bytes) -> ByteArray:
        if self._recipe.decode is None:
            if encoded.startswith(_PNG) and len(encoded) > 24:
                checked(int.from_bytes(encoded[20:24]), int.from_bytes(encoded[16:20]))
            return whole_image(encoded)
        try:
            pixels = np.asarray(self._recipe.decode(encoded))
        except Exception as error:  # whatever a user's decoder raises for a bad image
            raise ValueError(f"decode= raised {type(error).__name__}: {error}") from error
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
            raise ValueError(
                f"decode= returned {pixels.dtype} of shape {pixels.shape}; it must return uint8 of shape "
                "(height, width, 3), RGB"
            )
        return pixels


def _part(pixels: ByteArray, region: Region) -> ByteArray:
    top, left, height, width = region
    return pixels[top : top + height, left : left + width]


def main(fd: int) -> None:
    """Be a worker whose tasks come through a socket."""
    serve(fd, Preparer)
