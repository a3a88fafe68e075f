"""Has workers prepare blocks of images, and writes their labels."""

from __future__ import annotations

from collections.abc import Sequence
from io import FileIO
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.contracts import ByteArray, Ids, Records, Tree
from penstock.sources.images.caching import ImageCaching
from penstock.sources.images.worker import ImageRecipe, ImageTask, Prepared, Preparer
from penstock.sources.order import Planned
from penstock.sources.workers.block_maker import BlockMaker, MemoryFile

if TYPE_CHECKING:
    from penstock.sources.images.tabled import TableImages

NO_LABEL = -100
"""The label in place of a skipped image's, which torch's cross_entropy leaves out."""


class ImageBlocks(BlockMaker[ImageTask, Prepared]):
    """Makes blocks of images."""

    def __init__(
        self,
        records: Records,  # where the images lie
        labels: npt.NDArray[Any] | None,  # a row for each image; None if they have none, or it lies beside each
        recipe: ImageRecipe,  # what workers do
        example: Tree,  # a block of one row
        rows: int,  # rows of a full block
        workers: int,  # how many processes
        caching: ImageCaching,  # what is kept of the images
        tabled: TableImages | None = None,
    ) -> None:
        self._tabled = tabled  # the records, if they are those of tables
        self._records, self._labels, self._recipe, self._caching = records, labels, recipe, caching
        self._beside: dict[int, Ids] = {}
        super().__init__(records.root, example, rows, workers, Preparer)

    def setup(self, memories: Sequence[MemoryFile]) -> tuple[tuple[Any, ...], list[FileIO]]:
        files = self._caching.open()
        if self._tabled is not None:
            files.append(self._tabled.open_memory())
        return (self._recipe, memories, self._caching.layouts), files

    def task(self, plan: Planned, cycle: int, memory: int, offset: int) -> ImageTask:
        places = self._records.places(plan.ids) if self._tabled is None else self._tabled.places_of(plan)
        if self._tabled is not None and self._tabled.has_labels:
            self._beside[plan.sample] = self._tabled.labels_of(plan.ids)
        return ImageTask(memory, offset, cycle, plan.sample, plan.rows, places, plan.kept, *self._caching.plan())

    def finish(self, plan: Planned, result: Prepared, leaves: Sequence[ByteArray]) -> None:
        self._caching.learn(result)
        labels = result.labels if self._labels is None else self._labels[plan.ids]
        labels = self._beside.pop(plan.sample, labels)
        if labels is not None:
            labels[[row for row, _, _ in result.bad]] = NO_LABEL if labels.ndim == 1 else 0
            leaves[1][:] = labels.reshape(-1).view(np.uint8)
        self.skip([f"{image.where} is skipped: {image.why}" for image in result.bad])

    def check(self, ids: Ids) -> None:
        self._records.check_unchanged(ids)  # a shard that was replaced explains a failure
