"""JPEGs of several parts, decoded whole as one batch by a device beside the CPU; all else as a worker does it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import perf_counter, thread_time
from typing import Any, NamedTuple, Protocol

from penstock.contracts import ByteArray, Region
from penstock.errors import ReadFailed
from penstock.sources.images.crops import Draws
from penstock.sources.images.decoders import JPEG_END, checked
from penstock.sources.images.recipe import Costs, ImageRecipe, ImageStep
from penstock.sources.records.cached import PIXELS
from penstock.sources.samples.worker import BlockPart
from penstock.sources.workers import Steps
from penstock.sources.workers.process import FarFailed

_MOST_CROPS = 128
_MOST_BYTES = 256 << 20
"""Of crops that are made at once."""
_TRIED = 256
_HALVINGS = 2
_MOST_PIXELS = _MOST_BYTES // 3
"""Decoded at once, at most; an image that has more by itself is the CPU's."""
_BASELINE, _EXTENDED = 0xC0, 0xC1
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_SCAN, _ADOBE = 0xDA, 0xEE
_LUMA = {0x11, 0x12, 0x21, 0x22}


class Crop(NamedTuple):
    """What is made of a decoded image."""

    image: int  # its place in the batch
    region: Region
    mirrored: bool


class OutOfMemory(Exception):
    """A device has no memory for a batch."""


class Device(Protocol):
    """What decodes batches; its own order is not that of calls, but for ``synchronize``."""

    def decode(self, jpegs: Sequence[bytes], sizes: Sequence[tuple[int, int]]) -> Sequence[Any]:
        """Begin to decode JPEGs whole; return where the pixels of each come to lie.

        None stands for what cannot be decoded to pixels of that height and width.

        It may write at once into memory of batches before. Raises OutOfMemory.
        """
        ...

    def finish(self, frames: Sequence[Any], crops: Sequence[Crop]) -> ByteArray:
        """Begin to crop, resize and mirror, into memory of the host that is the device's own: crops x pixels."""
        ...

    def synchronize(self) -> None:
        """Wait for all that was begun."""
        ...


def unsuited(recipe: ImageRecipe) -> str:
    """Name what a recipe asks for that a device does not do; empty if there is nothing."""
    how = recipe.augmentation
    asked = {
        "decode=": recipe.decode is not None,
        "jitter=": any(how.jitter),
        'augment="padded"': how.crop == "padded",
        'shrink="area"': how.shrink != "bilinear",
    }
    return ", ".join(name for name, is_asked in asked.items() if is_asked)


def frame_of(jpeg: bytes) -> tuple[int, int] | None:
    """Return height and width of a JPEG as engines decode it: not progressive, 8 bits, of usual colours, whole.

    Source: ITU-T T.81, Annex B; colours as libjpeg takes them.
    """
    if not jpeg.startswith(b"\xff\xd8") or not jpeg.endswith(JPEG_END):
        return None
    at, size, components = 2, None, 0
    while at + 5 <= len(jpeg) and jpeg[at] == 0xFF:
        marker, nbytes = jpeg[at + 1], int.from_bytes(jpeg[at + 2 : at + 4])
        if marker == _SCAN:  # the first of several, if it does not hold all components
            return size if jpeg[at + 4] == components else None
        if marker == _ADOBE:  # its colours may be others
            return None
        if marker in _FRAMES:
            size, components = _frame(marker, jpeg[at + 4 : at + 2 + nbytes])
            if size is None:
                return None
        at += 2 + nbytes
    return None


def _frame(marker: int, segment: bytes) -> tuple[tuple[int, int] | None, int]:
    """Return height and width, None where engines do not decode it, and the number of components."""
    count = segment[5] if len(segment) > 5 else 0
    if marker not in (_BASELINE, _EXTENDED) or segment[0] != 8 or len(segment) != 6 + 3 * count:
        return None, count
    height, width = int.from_bytes(segment[1:3]), int.from_bytes(segment[3:5])
    ids, sampling = segment[6::3], segment[7::3]
    is_grey = sampling == b"\x11"
    is_colour = count == 3 and ids != b"RGB" and sampling[0] in _LUMA and sampling[1:] == b"\x11\x11"
    is_usual = (is_grey or is_colour) and 0 < height * width <= _MOST_PIXELS
    return (height, width) if is_usual else None, count


class _Image(NamedTuple):
    """A JPEG that a device is to decode."""

    part: BlockPart
    row: int
    jpeg: bytes
    size: tuple[int, int]
    label: int
    draws: Draws


class BatchStep(ImageStep):
    """Decodes parts of blocks of images; those whose first steps are done one after another are a batch."""

    def __init__(self, recipe: ImageRecipe, device: Device) -> None:
        super().__init__(recipe)
        self._device = device
        crops = min(_MOST_CROPS, _MOST_BYTES // (3 * recipe.augmentation.size**2))
        self._most = max(1, crops // recipe.crops)  # images of a batch
        self._seen = self._taken = 0  # images, and those of them that were the device's
        self._halvings = 0
        self._waiting: deque[_Image] = deque()  # those that are not decoded, in the order of rows
        self._made: dict[tuple[BlockPart, int], tuple[_Image, ByteArray]] = {}  # and their crops

    def __call__(self, part: BlockPart) -> Steps[Costs]:
        """Write the pixels and labels of a part, an image at a step; the first step reads them."""
        if not self._taken and self._seen >= _TRIED:
            raise FarFailed(f"none of {self._seen} images is a JPEG that it decodes")
        draws = self.draws(part)
        images = (self._image(part, row, draws[row]) for row in range(len(part.samples)))
        found = [image for image in images if image is not None]
        self._waiting += found
        self._seen, self._taken = self._seen + len(part.samples), self._taken + len(found)
        try:
            return (yield from super().__call__(part))
        finally:  # after an error rows are left
            self._waiting = deque(image for image in self._waiting if image.part is not part)
            self._made = {where: made for where, made in self._made.items() if where[0] is not part}

    def write(self, part: BlockPart, row: int, draws: Draws, to: ByteArray) -> int:
        if self._waiting and self._waiting[0][:2] == (part, row):
            self._decode()
        if (made := self._made.pop((part, row), None)) is None:
            return super().write(part, row, draws, to)
        image, to[:] = made
        encoded = part.stored.encoded(row)
        part.stored.keep(row, encoded)
        self.costs.images += 1
        self.costs.decoded += 1
        self.costs.beside += 1
        self.costs.read_bytes += len(encoded)
        return image.label

    def _image(self, part: BlockPart, row: int, draws: Draws) -> _Image | None:
        """Return a row's image if it is the device's; what cannot be read or found is told by the CPU's code."""
        if part.stored.kind == PIXELS:
            return None
        with suppress(ReadFailed, ValueError):
            sample = part.stored.ahead(row)
            jpeg, label = (sample, 0) if self.recipe.fields is None else self.recipe.fields(sample)
            if (size := frame_of(jpeg)) is not None:
                return _Image(part, row, jpeg, checked(*size), label, draws)
        return None

    def _decode(self) -> None:
        """Have the device make the next batch, whose rows are then written one after another."""
        began, began_s, images, pixels = thread_time(), perf_counter(), list[_Image](), 0
        while self._waiting and len(images) < self._most:
            height, width = self._waiting[0].size
            if images and pixels + height * width > _MOST_PIXELS:
                break
            pixels += height * width
            images.append(self._waiting.popleft())
        try:
            self._made |= self._batch(images)
        except OutOfMemory:
            self._waiting.extendleft(reversed(images))
            if self._halvings == _HALVINGS or self._most == 1:
                raise FarFailed(f"there is no memory for {self._most} images at once") from None
            self._halvings, self._most = self._halvings + 1, self._most // 2
            self._decode()
            return
        except Exception as error:  # whatever a library raises
            raise FarFailed(f"{type(error).__name__}: {error}") from error
        self.costs.pixel_bytes += 3 * pixels
        self.costs.decode_s += thread_time() - began
        self.costs.beside_s += perf_counter() - began_s

    def _batch(self, images: Sequence[_Image]) -> Mapping[tuple[BlockPart, int], tuple[_Image, ByteArray]]:
        device, augmentation = self._device, self.recipe.augmentation
        device.synchronize()  # it may still read what is written now
        frames = device.decode([image.jpeg for image in images], [image.size for image in images])
        device.synchronize()  # nothing else waits for a decoder's own streams
        crops = [
            Crop(number, augmentation.region(*image.size, draws), augmentation.mirrors(draws))
            for number, image in enumerate(images)
            if frames[number] is not None
            for draws in image.draws
        ]
        made = [image for image, frame in zip(images, frames, strict=True) if frame is not None]
        if not made:
            return {}
        pixels = device.finish(frames, crops)
        device.synchronize()
        rows = pixels.reshape(len(made), self.recipe.crops, *pixels.shape[1:])
        return {(image.part, image.row): (image, row) for image, row in zip(made, rows, strict=True)}
