"""How images become rows: found in what is stored, decoded by regions, cropped and written, a part at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter, thread_time
from typing import Any

import msgspec
import numpy as np

from penstock.contracts import ByteArray, Region, Tree
from penstock.errors import ReadFailed
from penstock.sources.images.crops import Augmentation, Draws, draws_of, union
from penstock.sources.images.decoders import JPEG_END, checked, decoder, named_lines, whole_image, whole_jpeg
from penstock.sources.images.opencv import cv2
from penstock.sources.samples.worker import BlockPart
from penstock.sources.workers import Steps

NO_LABEL = -100
"""The label in place of a skipped image's, which torch's cross_entropy leaves out."""
_JPEG = b"\xff\xd8"
_PNG = b"\x89PNG\r\n\x1a\n"


class ImageFields(msgspec.Struct, frozen=True):
    """Finds the image and the label in a sample's bytes."""

    parse: Callable[[bytes], dict[str, Any]]  # from a sample's bytes to its fields
    image: str  # the field of the image
    label: str | None  # the field of the label; None for none

    def __call__(self, sample: bytes) -> tuple[bytes, int]:
        """Return the image as it is encoded, and its label, or 0."""
        values = self.parse(sample)
        label = 0 if self.label is None else int(values[self.label])
        if not -(2**63) <= label < 2**63:
            raise ValueError(f"int64 does not hold the label {label}")
        return values[self.image], label


class Costs(msgspec.Struct):
    """What images took, in seconds of a worker."""

    images: int = 0  # how many were prepared
    decoded: int = 0  # how many of them were read and decoded
    read_s: float = 0.0  # time that reading them took
    read_bytes: int = 0  # their bytes
    pixel_bytes: int = 0  # size of these, decoded as a whole
    decode_s: float = 0.0  # CPU time that decoding took
    finish_s: float = 0.0  # CPU time that resizing and all else took
    busy_s: float = 0.0  # time that whole parts took
    beside: int = 0  # how many of the images a device beside the workers decoded
    beside_s: float = 0.0  # time that that took

    def add(self, other: Costs) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class ImageRecipe(msgspec.Struct, frozen=True):
    """How images become rows: a leaf of pixels, and one of labels if they have any."""

    root: str  # name of the data
    augmentation: Augmentation  # what is done to them
    crops: int  # how many crops of each
    seed: int  # seed of the crops
    decode: Callable[[bytes], Any] | None
    """A user's function from bytes to pixels; None for the formats that are known."""
    skips: bool  # whether bad images are skipped
    fields: ImageFields | None  # what finds the image in a sample; None where it is all of it
    in_ring: bool = True
    part_rows: int = 32  # of a block, that one worker makes

    def step(self) -> ImageStep:
        return ImageStep(self)

    def whole(self, found: Sequence[Any], tree: Tree) -> Tree:
        return tree


class ImageStep:
    """Decodes parts of blocks of images, in a worker's process."""

    def __init__(self, recipe: ImageRecipe) -> None:
        cv2.setNumThreads(1)
        self.recipe = recipe
        self._decoder = decoder()
        self.costs = Costs()
        self._where: Callable[[], str] = str  # says where the image at hand lies

    def __call__(self, part: BlockPart) -> Steps[Costs]:
        """Write the pixels and labels of a part, an image at a step."""
        recipe, costs, draws = self.recipe, Costs(), self.draws(part)
        side = recipe.augmentation.size
        pixels = part.arrays[0].reshape(len(part.samples), recipe.crops, side, side, 3)
        labels = part.arrays[1] if part.arrays[1:] else None
        costs.busy_s = perf_counter() - part.began_s
        yield
        self.costs = costs  # until here the images of the part before were written
        for row in range(len(part.samples)):
            began = perf_counter()
            self._where = partial(part.where, row)
            try:
                label = self.write(part, row, draws[row], pixels[row])
                if labels is not None and not part.is_labelled:
                    labels[row] = label
            except (ValueError, ReadFailed) as error:
                where = part.where(row)
                why = str(error) if isinstance(error, ReadFailed) else f"{where} cannot be decoded: {error}"
                part.skip(error, why, f"{where} is skipped: {why}", "Remove or replace it")
                pixels[row] = 0
                if labels is not None:
                    labels[row] = NO_LABEL if labels.ndim == 1 else 0
            costs.busy_s += perf_counter() - began
            yield
        costs.read_s = part.stored.read_s
        return costs

    def draws(self, part: BlockPart) -> Draws:
        """Draw the numbers of a part's rows."""
        recipe, plan = self.recipe, part.plan
        kept = np.arange(plan.rows) if plan.kept is None else plan.kept
        first, behind = int(kept[0]), int(kept[-1]) + 1
        return draws_of(recipe.seed, part.cycle, plan.sample, behind - first, recipe.crops, first)[kept - first]

    def write(self, part: BlockPart, row: int, draws: Draws, to: ByteArray) -> int:
        """Write the crops of one image; return the label that lies beside it, or 0."""
        augmentation, costs, label, began = self.recipe.augmentation, self.costs, 0, thread_time()
        stored = part.stored
        pixels = stored.pixels(row)
        if pixels is None:

            def decode(sample: bytes) -> tuple[ByteArray, list[Region], Region, int]:
                began = thread_time()
                image, label = (sample, 0) if self.recipe.fields is None else self.recipe.fields(sample)
                found = *self._decoded(image, draws, whole=stored.keeps_pixels(row)), label
                costs.decode_s += thread_time() - began
                return found

            (pixels, regions, box, label), encoded = stored.decoded(row, decode)
            stored.keep(row, encoded, pixels)
            costs.decoded += 1
            costs.read_bytes += len(encoded)
            began = thread_time()
        else:
            box = Region(0, 0, *pixels.shape[:2])
            regions = augmentation.regions(box.height, box.width, draws)
        for region, each, crop in zip(regions, draws, to, strict=True):
            within = region._replace(top=region.top - box.top, left=region.left - box.left)
            augmentation.finish(_part(pixels, within), each, crop)
        costs.images += 1
        costs.finish_s += thread_time() - began
        return label

    def _decoded(self, encoded: bytes, draws: Draws, *, whole: bool) -> tuple[ByteArray, list[Region], Region]:
        """Return pixels, the regions of the image that its crops take, and the region that the pixels are."""
        augmentation = self.recipe.augmentation
        if not encoded:
            raise ValueError("there are no bytes, as where tables hold a null or a path alone")
        if self.recipe.decode is not None or not encoded.startswith(_JPEG):
            pixels = self._whole(encoded)
            box = Region(0, 0, *pixels.shape[:2])
            self.costs.pixel_bytes += pixels.nbytes
            return pixels, augmentation.regions(box.height, box.width, draws), box
        height, width = checked(*self._decoder.size(encoded))
        self.costs.pixel_bytes += height * width * 3
        regions = augmentation.regions(height, width, draws)
        box = Region(0, 0, height, width) if whole else union(regions)
        try:
            if not encoded.endswith(JPEG_END):
                raise ValueError("only a whole decode sees, whatever the crop, whether the image was cut short")
            return self._decoder.decode(encoded, box), regions, box
        except ValueError:  # or a kind that this decoder does not know, or damage
            return _part(whole_jpeg(encoded), box), regions, box

    def _whole(self, encoded: bytes) -> ByteArray:
        if self.recipe.decode is None:
            if encoded.startswith(_PNG) and len(encoded) > 24:
                checked(int.from_bytes(encoded[20:24]), int.from_bytes(encoded[16:20]))
            with named_lines(self._where):
                return whole_image(encoded)
        try:
            pixels = np.asarray(self.recipe.decode(encoded))
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
