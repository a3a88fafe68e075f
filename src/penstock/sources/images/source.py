"""Images as a source: decoded, cropped and resized by workers, straight into the ring."""

from __future__ import annotations

import math
import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import FileIO
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np

from penstock.contracts import ByteArray, Cursor, Records, SourceBlock, Wanted
from penstock.errors import BadSetting
from penstock.linux.cores import cores
from penstock.linux.fork import close_in_children
from penstock.memory.placement import Placement, place
from penstock.memory.room import aligned
from penstock.memory.slots import Filled, OwnSlots, Slot, Slots
from penstock.packages import require
from penstock.sizes import whole_number
from penstock.sources.alone import Alone
from penstock.sources.images.labels import labels_of
from penstock.sources.images.pool import WorkerPool
from penstock.sources.order import Order, Planned, digest, planned
from penstock.sources.records.folder import FolderRecords
from penstock.sources.records.shards import SUFFIX, ShardRecords
from penstock.terminal import say
from penstock.tree import Array, array_nodes, build, describe, leaf_from_bytes

if TYPE_CHECKING:
    from penstock.sources.images.worker import Bad

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
_OWN, _RING = 0, 1
_MOST_OWN_BYTES = 1 << 30
_NAMED = 3
"""Skipped images that are named on stderr; all are counted."""

NO_LABEL = -100
"""The label in place of a skipped image's, which torch's cross_entropy leaves out."""


class _Begun(NamedTuple):
    """A block on its way."""

    plan: Planned
    number: int
    memory: int
    slot: Slot | None
    placement: Placement | None


class ImageSource(Alone):
    """Feeds images of a folder, decoded, cropped, resized and augmented.

    A batch is ``(images, labels)``: uint8 of shape ``(rows, size, size, 3)``, RGB, and int64 classes; or the
    images alone if they have no labels. What an image becomes depends on ``seed``, the cycle and the image's place
    in it: after a crash, a resume, or on another machine the same pixels come.

    Args:
        images: Folder of JPEGs, PNGs and WebPs, in class folders or not; or tar files of them, such as
            WebDataset's shards, with a label in a ``.cls`` beside each or not: one, a pattern
            (``"train-{0000..0127}.tar"``, ``"*.tar"``), or several.
        size: Side of the square that comes out, in pixels.
        augment: ``"rrc"`` for random crops (RandomResizedCrop), half of them mirrored; ``"center"`` for the
            middle, as in validation, resized alike.
        scale: Least and most part of an image's area that a random crop takes.
        ratio: Least and most width of a random crop, of its height.
        flip: Probability of a mirror image; None for 0.5 with ``"rrc"``, else 0.
        jitter: Strength of random changes of brightness, contrast, saturation and hue, as for ColorJitter.
        crops: Crops of each image; several make images of shape ``(rows, crops, size, size, 3)``.
        shrink: ``"bilinear"``, which is fast, or ``"area"``, which aliases less where crops are much larger than
            ``size``.
        labels: A dict from paths within the folder to labels, a file with a path and its labels in each line, or a
            label for each image in order of the paths; None for what lies beside them (``.cls``), or the class
            folders. Where images have several labels, or none, a row of 0 and 1 for each class.
        decode: Function from a file's bytes to pixels, uint8 of shape ``(height, width, 3)``; None for JPEG, PNG
            and WebP.
        suffixes: Endings of the names of images, in small letters.
        on_bad: ``"fail"`` if an image that cannot be decoded ends the feed; ``"skip"`` for a black image with the
            label -100, which torch's ``cross_entropy`` leaves out (of several labels, none).
        workers: Processes that decode; None for one on each core.
        batch_size: Rows of a block.
        shuffle: Draw a new random order in each cycle; False keeps the order of the paths.
        drop_last: Whether trainers leave out of each epoch the rows that fill none of their batches, unless they
            say otherwise.
        segments: Parts of a cycle at which a trainer may join; None for 16, or fewer where each would have less
            than 16,000 images to shuffle.
        seed: Random seed of the order and of the crops.

    Attributes:
        classes: Names of the classes; empty if there are no labels.

    Raises:
        BadSetting: there is no such folder, or an argument is out of range.
        PackageMissing: simplejpeg or OpenCV is not installed; the message says how.
    """

    seekable = True
    selects = True

    def __init__(
        self,
        images: str | Path | Sequence[str | Path],
        *,
        size: int = 224,
        augment: Literal["rrc", "center"] = "rrc",
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        flip: float | None = None,
        jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0),
        crops: int = 1,
        shrink: Literal["bilinear", "area"] = "bilinear",
        labels: str | Path | Mapping[str, Any] | Sequence[Any] | None = None,
        decode: Callable[[bytes], Any] | None = None,
        suffixes: Sequence[str] = SUFFIXES,
        on_bad: Literal["fail", "skip"] = "fail",
        workers: int | None = None,
        batch_size: int = 128,
        shuffle: bool = True,
        drop_last: bool = False,
        segments: int | None = None,
        seed: int = 0,
    ) -> None:
        require("ImageSource", "images", "simplejpeg", "cv2")
        from penstock.sources.images.choose import decoder
        from penstock.sources.images.crops import Augmentation
        from penstock.sources.images.worker import Recipe

        size = whole_number("size", size, 1, 2**14)
        crops = whole_number("crops", crops, 1, 1024)
        self.batch_size = whole_number("batch_size", batch_size, 1, 2**31 - 1)
        seed = whole_number("seed", seed, -(2**63), 2**64 - 1)
        if segments is not None:
            segments = whole_number("segments", segments, 1)
        for name, value, known in (
            ("augment", augment, ("rrc", "center")),
            ("shrink", shrink, ("bilinear", "area")),
            ("on_bad", on_bad, ("fail", "skip")),
        ):
            if value not in known:
                raise BadSetting(f"{name}={value!r}: it must be one of {', '.join(known)}")
        scale, ratio = _range("scale", scale, 1.0), _range("ratio", ratio, math.inf)
        (flip,) = _numbers("flip", [(0.5 if augment == "rrc" else 0.0) if flip is None else flip], 1)
        if not 0 <= flip <= 1:
            raise BadSetting(f"flip={flip!r}: it must be a probability, from 0 to 1")
        brightness, contrast, saturation, hue = _numbers("jitter", jitter, 4)
        if not all(0 <= each < math.inf for each in jitter) or hue > 0.5:
            raise BadSetting(f"jitter={jitter!r}: give four numbers from 0 on, the last (of the hue) at most 0.5")
        workers = max(1, int(cores())) if workers is None else whole_number("workers", workers, 1, 1024)
        self._records = _records(images, suffixes)
        told = labels_of(self._records.names, self._records.labels or None if labels is None else labels)
        self.classes: Sequence[str] = () if told is None else told.classes
        self._labels = None if told is None else told.values
        augmentation = Augmentation(
            size, augment, scale, ratio, flip, (brightness, contrast, saturation, hue), shrink
        )
        self._recipe = Recipe(augmentation, crops, seed, decode, on_bad == "skip")
        self._order = Order(len(self._records.names), self.batch_size, segments, seed, shuffle=shuffle)
        self.samples = self._order.samples
        self.batches = self._order.batches
        self.segment_starts = self._order.segment_starts
        self.drop_last = drop_last
        self.order = digest("images", self._order.digest)
        shape = (size, size, 3) if crops == 1 else (crops, size, size, 3)
        pixels = np.empty((1, *shape), np.uint8)
        self._layout, _, leaves = describe(pixels if self._labels is None else (pixels, self._labels[:1]))
        self._nodes = list(array_nodes(self._layout))
        self._row_bytes = [leaf.nbytes for leaf in leaves]
        rows = min(self.batch_size, self.samples)
        self.slot_bytes = self.block_bytes = sum(aligned(nbytes * rows) for nbytes in self._row_bytes)
        self._decoder_name = decoder().name if decode is None else "a function of yours"
        self._skipped = 0
        self._workers = workers
        self._slots: Slots | None = None
        self._forget()

    @property
    def description(self) -> str:
        said = f"{self._records.description}, decoded by {self._decoder_name} in {self._workers} workers"
        return f"{said}; {self._skipped:,} bad ones came as black images" if self._skipped else said

    def open(self, at: Cursor, wanted: Wanted | None = None, salt: int = 0) -> Iterator[SourceBlock]:
        # No salt: a draw belongs to a place in the cycle, where always the same image is.
        if self._pid != os.getpid():  # a forked child's copy, whose workers are its parent's
            self._forget()
        if self._is_open:
            raise BadSetting("a pass over these images is still open: close it before the next")
        self._is_open = True
        begun: deque[_Begun] = deque()
        own = OwnSlots(0, 0)
        try:
            own = self._prepared()
            plans = planned(self._order.blocks(at), wanted)
            plan, numbers, memories = next(plans, None), count(), self._memories
            while plan is not None or begun:
                while plan is not None and len(begun) <= self._pool.capacity:
                    if (block := self._begin(plan, next(numbers), at.cycle, own, begun)) is None:
                        break
                    begun.append(block)
                    plan = next(plans, None)
                first = begun[0]
                if first.slot is not None:
                    self._finish(first, self._pool.result(first.number))
                tree = self._given(first, own)
                begun.popleft()
                yield first.plan.block(tree)
                if self._memories is not memories:
                    raise BadSetting("the source was closed while a pass over it was open")
        finally:
            try:
                self._pool.settle()
            finally:
                for block in begun:
                    self._offer(block, own)
                self._is_open = False

    def fill(self, slots: Slots) -> int:
        self.close()
        self._slots = slots
        return self._pool.capacity + 1

    def close(self) -> None:
        if self._pid == os.getpid():
            _release(self._pool, self._files, self._pid)
        self._forget()

    def _forget(self) -> None:
        """Forget workers and memory, to begin again."""
        self._pid = os.getpid()
        self._is_open = False
        self._slots = None
        self._memories: list[ByteArray] = []
        self._files: list[FileIO] = []
        self._pool: WorkerPool[Any, Any] = WorkerPool(self._workers, "penstock.sources.images.worker")
        weakref.finalize(self, _release, self._pool, self._files, self._pid)

    def _prepared(self) -> OwnSlots:
        """Return slots in memory of this process's own; workers learn of all memory before they start."""
        most = max(2, _MOST_OWN_BYTES // self.slot_bytes)
        spare = 1 if self._slots is not None else min(self._pool.capacity + 1, most)
        if not self._memories:
            nbytes = spare * self.slot_bytes
            file = FileIO(os.memfd_create("penstock-images", os.MFD_CLOEXEC), "r+")
            self._files.append(file)
            close_in_children(file)
            file.truncate(nbytes)
            files = [(file.fileno(), nbytes)]
            memories = [np.frombuffer(mmap.mmap(*files[0]), np.uint8)]
            if self._slots is not None:
                files.append(self._slots.ring_file)
                memories.append(self._slots.ring_memory)
            self._pool.prepare((self._recipe, files), [fd for fd, _ in files])
            self._memories = memories
        return OwnSlots(spare, self.slot_bytes)

    def _begin(
        self, plan: Planned, number: int, cycle: int, own: OwnSlots, begun: Sequence[_Begun]
    ) -> _Begun | None:
        """Have a block prepared; None if that must wait for a slot."""
        from penstock.sources.images.worker import Task

        rows = len(plan.ids)
        if not rows:
            return _Begun(plan, number, _OWN, None, None)
        memory, slot = _RING, None if self._slots is None else self._slots.take()
        if slot is None:
            if self._slots is not None and begun:  # slots come free when blocks that have begun are given
                return None
            memory, slot = _OWN, own.take()
            if slot is None:
                return None
        placement = place(self._layout, [nbytes * rows for nbytes in self._row_bytes])
        places = self._records.places(plan.ids)
        task = Task(memory, slot.offset, cycle, plan.sample, plan.rows, places, plan.kept)
        self._pool.submit(number, task)
        return _Begun(plan, number, memory, slot, placement)

    def _finish(self, block: _Begun, bad: Sequence[Bad]) -> None:
        """Write the labels of a block whose pixels are there; count the images that were skipped."""
        assert block.slot is not None
        assert block.placement is not None
        self._records.check_unchanged(block.plan.ids)
        if self._labels is not None:
            lie = self._memories[block.memory][block.slot.offset :][block.placement.leaf_offsets[1] :]
            labels = self._labels[block.plan.ids]
            labels[[row for row, _, _ in bad]] = NO_LABEL if labels.ndim == 1 else 0
            lie[: labels.nbytes] = labels.reshape(-1).view(np.uint8)
        for image in bad[: max(0, _NAMED - self._skipped)]:
            say(f"{image.where} is skipped: {image.why}")
        self._skipped += len(bad)

    def _given(self, block: _Begun, own: OwnSlots) -> Any:
        """Return a finished block's tree."""
        if block.slot is None or block.placement is None:
            return None
        rows = len(block.plan.ids)
        if block.memory == _RING:
            return Filled(block.slot, rows, block.placement)
        memory = self._memories[_OWN][block.slot.offset : block.slot.offset + block.placement.nbytes].copy()
        own.offer(block.slot)
        leaves = zip(self._nodes, block.placement.leaves_in(memory), strict=True)
        return build(self._layout, [leaf_from_bytes(cast(Array, node), leaf, rows) for node, leaf in leaves])

    def _offer(self, block: _Begun, own: OwnSlots) -> None:
        if block.slot is not None:
            places = self._slots if block.memory == _RING else own
            if places is not None:  # the source was closed amid the pass
                places.offer(block.slot)


def _records(images: str | Path | Sequence[str | Path], suffixes: Sequence[str]) -> Records:
    some = [images] if isinstance(images, (str, Path)) else images
    if all(str(each).endswith(SUFFIX) for each in some):
        return ShardRecords(some, suffixes)
    if isinstance(images, (str, Path)):
        return FolderRecords(images, suffixes)
    raise BadSetting(f"images={images!r}: give one folder, or tar files")


def _release(pool: WorkerPool[Any, Any], files: list[FileIO], pid: int) -> None:
    if os.getpid() != pid:  # a forked child's copy
        return
    pool.close()
    while files:
        files.pop().close()


def _range(name: str, given: Any, most: float) -> tuple[float, float]:
    least, greatest = _numbers(name, given, 2)
    if not 0 < least <= greatest <= most:
        highest = f" and at most {most:g}" if most < math.inf else ""
        raise BadSetting(f"{name}={given!r}: give the least and the most, above 0{highest}")
    return least, greatest


def _numbers(name: str, given: Any, count: int) -> list[float]:
    try:
        numbers = [float(each) for each in given]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != count:
        raise BadSetting(f"{name}={given!r}: give {count} number{'s' * (count > 1)}")
    return numbers
