"""Images as a source: decoded, cropped and resized by workers, straight into the ring."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from penstock.basics.packages import require
from penstock.basics.sizes import check_one_of, whole_number
from penstock.basics.terminal import say
from penstock.errors import BadSetting
from penstock.io.cache.admission import CacheChoice, ImageCosts
from penstock.io.cache.cache import Cache
from penstock.linux.cgroups import cores
from penstock.sources.images.opening import opened_images
from penstock.sources.order import digest
from penstock.sources.records.files import is_remote
from penstock.sources.records.offsets import OffsetRecords
from penstock.sources.samples.blocks import SampleBlocks
from penstock.sources.samples.sample_source import OrderSettings, RecordSamples, SampleSource
from penstock.sources.workers.far import Standing

if TYPE_CHECKING:
    from penstock.sources.images.caching import Sides

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Those of torchvision's ``IMG_EXTENSIONS``."""


class ImageSource(SampleSource):
    """Feeds images of a folder, decoded, cropped, resized and augmented.

    A batch is ``(images, labels)``: uint8 of shape ``(rows, size, size, 3)``, RGB, and int64 classes; or the
    images alone if they have no labels. What an image becomes depends on ``seed``, the cycle and the image's place
    in it: after a crash, a resume, or on another machine the same pixels come.

    Args:
        images: Folder of images, in class folders or not; or tar files of them, such as
            WebDataset's shards, with a label in a ``.cls`` beside each or not: one, a pattern
            (``"train-{0000..0127}.tar"``, ``"*.tar"``), or several. Both may lie in an object store
            (``"s3://bucket/prefix"``, ``"s3://bucket/*.tar"``). Or shards: ``"mds:FOLDER"`` of MosaicML's,
            ``"litdata:FOLDER"`` of LitData's chunks. Or tables: Parquet or Arrow files (``"x/*.parquet"``), or
            what Hugging Face's ``save_to_disk`` wrote (``"hf:FOLDER"``).
        size: Side of the square that comes out, in pixels.
        augment: ``"rrc"`` for random crops (RandomResizedCrop), half of them mirrored; ``"center"`` for the
            middle, as in validation, resized alike; ``"whole"`` for all of the image, resized to the square;
            ``"padded"`` for that, shifted at random by up to ``padding``, half of them mirrored (RandomCrop).
        scale: Least and most part of an image's area that a random crop takes.
        ratio: Least and most width of a random crop, of its height.
        flip: Probability of a mirror image; None for 0.5 where crops are random, else 0.
        padding: Black pixels on each side that ``"padded"`` adds; None for an eighth of ``size``.
        jitter: Strength of random changes of brightness, contrast, saturation and hue, as for ColorJitter.
        crops: Crops of each image; several make images of shape ``(rows, crops, size, size, 3)``.
        shrink: ``"bilinear"``, over means of pixels where crops shrink to less than half; or ``"area"``, which
            aliases less still, and takes longer.
        labels: A dict from paths within the folder to labels, a file with a path and its labels in each line, or a
            label for each image in order of ``paths``; None for what lies beside them (``.cls``), or the class
            folders. Where images have several labels, or none, a row of 0 and 1 for each class.
        decode: Function from a file's bytes to pixels, uint8 of shape ``(height, width, 3)``; None for what OpenCV
            knows.
        suffixes: Endings of the names of images.
        image: Field of the samples of shards that holds the image, encoded: a column, or in a tar the ending of
            members (``"jpg"``); None for the only one that holds images. A tar's members are images by
            themselves, unless this or ``label`` is given.
        label: Field that holds the label, a whole number; None for no labels, or those of ``labels``.
        shuffle_bytes: Memory in which images of tables are shuffled, as they are encoded; see ``RecordSource``.
        cache: Where images that are far away, or dear to decode, are kept; None for nowhere.
        on_bad: ``"fail"`` if an image that cannot be decoded ends the feed; ``"skip"`` for a black image with the
            label -100, which torch's ``cross_entropy`` leaves out (of several labels, none).
        workers: Processes that decode; None for one on each core, or two for an object store.
        gpu: ``"auto"`` to have the first GPU that is visible decode too, while the workers are late: JPEGs that
            are not progressive, by torchvision. Which images it decodes depends on the moment, and of JPEGs with
            fewer colours than pixels (4:2:0) its pixels are others, on an H200 by 0.5 on average and by up to 68:
            batches are not the same bit for bit from run to run. None for the CPU alone.
        batch_size: Rows of a block.
        shuffle: Draw a new random order in each cycle; False for the order of ``paths``.
        drop_last: Whether trainers leave out of each epoch the rows that fill none of their batches, unless they
            say otherwise.
        segments: Parts of a cycle that are shuffled each by itself; None for one.
        seed: Random seed of the order and of the crops.
        shard: ``(rank, world)`` of a data-parallel run that reads this source alone, without a feed; ``(0, 1)`` to
            give each rank all of it.

    Attributes:
        cached: How many images came from the cache so far, and how many did not.
        classes: Names of the classes; empty if there are no labels.
        decoder: What decodes JPEGs, in words.
        workers: Processes that decode.

    Raises:
        BadSetting: there is no such folder, or an argument is out of range.
        PackageMissing: simplejpeg or OpenCV is not installed; the message has the command.

    Examples:
        >>> source = penstock.ImageSource("photos", size=32, batch_size=2, workers=1)
        >>> [(images.shape, sorted(labels.tolist())) for images, labels in source]
        [((2, 32, 32, 3), [0, 1])]
        >>> list(source.classes)
        ['cats', 'dogs']
        >>> source.close()
    """

    def __init__(
        self,
        images: str | Path | Sequence[str | Path],
        *,
        size: int = 224,
        augment: Literal["rrc", "center", "whole", "padded"] = "rrc",
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        flip: float | None = None,
        padding: int | None = None,
        jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0),
        crops: int = 1,
        shrink: Literal["bilinear", "area"] = "bilinear",
        labels: str | Path | Mapping[str, Any] | Sequence[Any] | None = None,
        decode: Callable[[bytes], Any] | None = None,
        suffixes: Sequence[str] = SUFFIXES,
        image: str | None = None,
        label: str | None = None,
        shuffle_bytes: int | str = "1GiB",
        cache: Cache | None = None,
        on_bad: Literal["fail", "skip"] = "fail",
        workers: int | None = None,
        gpu: Literal["auto"] | None = None,
        batch_size: int = 128,
        shuffle: bool = True,
        drop_last: bool = False,
        segments: int | None = None,
        seed: int = 0,
        shard: tuple[int, int] | None = None,
    ) -> None:
        require("ImageSource", "images", "simplejpeg", "cv2")
        from penstock.sources.images.batches import unsuited
        from penstock.sources.images.caching import ImageCaching
        from penstock.sources.images.crops import Augmentation
        from penstock.sources.images.decoders import decoder
        from penstock.sources.images.gpu import GPU_SIDE, lacks
        from penstock.sources.images.recipe import ImageRecipe

        size = whole_number("size", size, 1, 2**14)
        crops = whole_number("crops", crops, 1, 1024)
        for name, value, known in (
            ("augment", augment, ("rrc", "center", "whole", "padded")),
            ("shrink", shrink, ("bilinear", "area")),
            ("on_bad", on_bad, ("fail", "skip")),
        ):
            check_one_of(name, value, known)
        if gpu not in (None, "auto"):
            raise BadSetting(f'gpu={gpu!r}: it must be "auto", or None for the CPU alone')
        scale, ratio = _range("scale", scale, 1.0), _range("ratio", ratio, math.inf)
        (flip,) = _numbers("flip", [(0.5 if augment in ("rrc", "padded") else 0.0) if flip is None else flip], 1)
        if not 0 <= flip <= 1:
            raise BadSetting(f"flip={flip!r}: it must be a probability, from 0 to 1")
        if padding is not None and augment != "padded":
            raise BadSetting(f'padding={padding!r}: only with augment="padded"')
        padding = size // 8 if padding is None else whole_number("padding", padding, 0, 2**14)
        brightness, contrast, saturation, hue = _numbers("jitter", jitter, 4)
        if not all(0 <= each < math.inf for each in (brightness, contrast, saturation, hue)) or hue > 0.5:
            raise BadSetting(f"jitter={jitter!r}: give four numbers from 0 on, the last (of the hue) at most 0.5")
        Cache.check(cache)
        endings = _endings(suffixes)
        if any(is_remote(str(each)) for each in (images if isinstance(images, (list, tuple)) else [images])):
            require("ImageSource of a URL", "s3", "obstore")
        settings = OrderSettings.checked(shuffle_bytes, batch_size, segments, seed, shuffle)
        data, records, labelled, fields = opened_images(images, endings, image, label, labels, cache, settings)
        # While one waits for a store, another decodes.
        usual = max(1, int(cores())) * (2 if is_remote(data.root) else 1)
        self.workers = usual if workers is None else whole_number("workers", workers, 1, 1024)
        self.classes: Sequence[str] = records.classes if labelled is None else labelled.classes
        augmentation = Augmentation(
            size, augment, scale, ratio, flip, (brightness, contrast, saturation, hue), shrink, padding
        )
        pixels = np.empty((1, *(() if crops == 1 else (crops,)), size, size, 3), np.uint8)
        values = None if labelled is None else labelled.values
        first = values[:1] if values is not None else None if label is None else np.zeros(1, np.int64)
        recipe = ImageRecipe(data.root, augmentation, crops, seed, decode, on_bad == "skip", fields)
        self._caching = ImageCaching(
            cache if isinstance(data, RecordSamples) else None,
            records,
            self.workers,
            decodes=decode is not None,
            beside=fields is not None,
        )
        self.cached = self._caching.counts
        example = pixels if first is None else (pixels, first)
        asked = unsuited(recipe)
        self._no_gpu = "" if gpu is None else f"{asked} is done by the CPU alone" if asked else lacks()
        if self._no_gpu:
            say(f"{GPU_SIDE.name} is left out, and the workers do all: {self._no_gpu}")
        side = GPU_SIDE if gpu is not None and not self._no_gpu else None
        blocks = SampleBlocks(data, recipe, example, self.workers, self._caching, side)
        self._image_blocks = blocks
        self._open(data, blocks, drop_last=drop_last, shard=shard)
        self.order = digest("images", self._order.digest, records.names, *records.parts)
        self.decoder = "a function of yours" if decode is not None else decoder().name

    @property
    def description(self) -> str:
        images = f"{self._data.description}, decoded by {self.decoder} in {self.workers} workers"
        skipped = self._blocks.skipped
        black = f"{skipped:,} bad ones came as black images" if skipped else ""
        gpu = f"the GPU is left out: {self._no_gpu}" if self._no_gpu else ""
        if (beside := self._image_blocks.beside) is not None:
            gpu = _in_words(beside, self._caching.sides)
        return "; ".join(filter(None, (images, gpu, black, self._caching.description)))

    @property
    def paths(self) -> Sequence[str]:
        """The file, or URL, of each image by its id; in a shard, its name or number behind the shard's path."""
        if not isinstance(self._data, RecordSamples):
            return [f"{self._data.root}, row {row:,}" for row in range(self.samples)]
        records = self._data.records
        if isinstance(records, OffsetRecords):
            return [f"{records.root}/{name}" for name in records.names]
        places = zip(records.places(np.arange(self.samples)), records.names, strict=True)
        return [at.path if at.path.endswith(f"/{name}") else f"{at.path}/{name}" for at, name in places]

    @property
    def costs(self) -> ImageCosts:
        """What images took so far that were read where they lie."""
        return self._caching.costs

    def choices(self, cache: Cache) -> list[CacheChoice]:
        """Return what a cache could keep of these images, the best first, by what was measured so far."""
        return self._caching.choices(cache)


def _in_words(beside: Standing, sides: Sides) -> str:
    """Say what a GPU does of the decoding."""
    told = list[str]()
    if sides.part:
        rates = f"{sides.beside_per_s:,.0f} images/s, where a worker makes {sides.worker_per_s:,.0f}"
        told.append(f"{beside.name} made {sides.part:.0%} of them, at {rates}")
    if beside.lost:
        told.append(f"{beside.name} is left out: {beside.lost}")
    elif beside.deaths:
        told.append(f"{beside.deaths} of its processes died")
    elif not sides.part:
        does = "made none of them yet" if beside.is_ready else "is starting"
        told.append(f"{beside.name} {does if beside.is_started else 'was not needed yet'}")
    return "; ".join(told)


def _endings(suffixes: Sequence[str]) -> tuple[str, ...]:
    try:
        endings = tuple(each.lower() for each in ([suffixes] if isinstance(suffixes, str) else suffixes))
    except (TypeError, AttributeError):
        endings = ("",)
    if not endings or not all(endings):
        raise BadSetting(f"suffixes={suffixes!r}: give endings of names, such as ('.jpg', '.png')")
    return endings


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
