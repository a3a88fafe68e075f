"""Images in a column of tables: their bytes lie in memory, a shuffle window at a time."""

from __future__ import annotations

import json
import mmap
import os
from collections import deque
from collections.abc import Sequence
from io import FileIO
from typing import Any

import numpy as np

from penstock.contracts import ByteArray, Ids, Place, Tables
from penstock.errors import BadSetting, SourceError
from penstock.linux.files import memory_file
from penstock.sources.order import Order, Planned
from penstock.sources.samples.tables import TableSamples
from penstock.sources.samples.worker import Samples
from penstock.sources.tables.columns import NoNulls, bytes_columns, columns_of
from penstock.sources.tables.loading import Loaded
from penstock.sources.tables.opening import OpenedTables, check_alike
from penstock.sources.tables.shuffle_windows import ShuffleWindows

_IMAGE, _LABEL = "image", "label"


def image_tables(tables: Tables, image: str | None, label: str | None, threads: int) -> OpenedTables:
    """Open the columns of images, None for the only one that holds bytes, and of labels, None for none."""
    columns = {_IMAGE: _image(tables, image)} | ({} if label is None else {_LABEL: _label(tables, label)})
    fill: dict[str, Any] = {columns[_IMAGE]: b""}  # a worker finds that it is no image
    if label is not None:
        fill[label] = NoNulls("write them without these rows, or pass labels= with a label for each image")
    return OpenedTables(tables, columns, "refuse", fill, None, threads)


class TableImages(TableSamples):
    """The images of tables' rows. Attributes are also those of ``LabelledRecords``, but for places."""

    labels: Sequence[str] = ()

    def __init__(
        self, opened: OpenedTables, order: Order | ShuffleWindows, threads: int, classes: Sequence[str]
    ) -> None:
        self._memory = _Memory()  # it refers to nothing here: whoever forgets a source frees its tables at once
        super().__init__(opened, order, threads, allocate=self._memory.empty)
        self.names: Any = range(order.samples)
        self.parts, self.classes = opened.reading.tables.parts, classes
        self.beside: Any = None  # a label for each image, if they are given apart
        self._asked = deque[Loaded]()  # the shuffle window of each block that is on its way
        self._held = deque[Loaded]()  # those that are in memory
        self._file: FileIO | None = None

    @property
    def description(self) -> str:
        return f"images of {super().description}"

    def begin(self) -> None:
        self._asked.clear()

    def open(self) -> list[FileIO]:
        """Make the memory that images are read to; what was there before is forgotten."""
        self.close()
        self._file = memory_file("penstock-tables")
        self._memory.begin(self._file.fileno())
        return [self._file]

    def samples(self, plan: Planned) -> tuple[Samples, Any]:
        """Return where the images of a block lie, in memory, and their labels."""
        loaded = self.enter(plan)
        if not self._held or self._held[-1] is not loaded:
            self._held.append(loaded)
        self._asked.append(loaded)
        at, rows, path = plan.way.at, loaded.varying[0], f"/proc/self/fd/{self._memory.fd}"
        start = self._memory.offset(rows.values)
        offsets: list[int] = (rows.offsets[at] + start).tolist()
        sizes: list[int] = (rows.offsets[at + 1] - rows.offsets[at]).tolist()
        names = (f"row {row:,} of {self.root}" for row in plan.ids.tolist())
        found = zip(offsets, sizes, names, strict=True)
        places = [Place(path, offset, nbytes, "", name) for offset, nbytes, name in found]
        return places, self._labels(plan, loaded)

    def _labels(self, plan: Planned, loaded: Loaded) -> Any:
        if self.beside is not None or len(self.opened.reading.outputs) == 1:
            return None if self.beside is None else self.beside[plan.ids]
        kind = self.opened.reading.outputs[1].dtype
        labels = np.empty(len(plan.ids) * kind.itemsize, np.uint8)
        loaded.pick(plan.way.at, labels, (0, 0))
        found = labels.view(kind)
        if kind.kind == "u" and len(found) and found.max() >= 1 << 63:
            raise SourceError(f"row {plan.ids[found.argmax()]:,} of {self.root}: int64 does not hold its label")
        return np.asarray(found, np.int64)

    def check(self, ids: Ids) -> None:
        """Free the row groups of blocks already delivered.

        Files are checked when groups are read.
        """
        given = self._asked.popleft()
        while self._held[0] is not given:
            self._memory.free(self._held.popleft().varying[0].values)

    def close(self) -> None:
        """End what reads ahead, and give up what was read."""
        super().close()
        self._held.clear()
        self._asked.clear()
        if self._file is not None:
            self._memory.clear()
            self._file = None


class _Memory:
    """Memory of a file that grows at its end, and is given up piece by piece."""

    def __init__(self) -> None:
        self.begin(-1)

    def begin(self, fd: int) -> None:
        """Lie in this file from now on, which is empty."""
        self.fd = fd
        self._end = 0
        self._pieces: dict[int, tuple[int, mmap.mmap]] = {}

    def empty(self, nbytes: int) -> ByteArray:
        """Return a new piece."""
        whole = max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE
        os.ftruncate(self.fd, self._end + whole)
        piece = mmap.mmap(self.fd, whole, offset=self._end)
        array = np.frombuffer(piece, np.uint8)[:nbytes]
        self._pieces[array.ctypes.data] = self._end, piece
        self._end += whole
        return array

    def offset(self, array: ByteArray) -> int:
        """Return where a piece lies in the file."""
        return self._pieces[array.ctypes.data][0]

    def free(self, array: ByteArray) -> None:
        """Give the pages of a piece back."""
        self._pieces.pop(array.ctypes.data)[1].madvise(mmap.MADV_REMOVE)

    def clear(self) -> None:
        """Give all pieces up; each lasts while it is in use."""
        self._pieces.clear()


def _image(tables: Tables, image: str | None) -> str:
    """Return the column of the images; of a struct, as Hugging Face has it, that of its bytes."""
    check_alike(tables, None if image is None else [image], "name another with image=")
    holds = bytes_columns(tables.schema)
    named = holds if image is None else [name for name in holds if name in (image, f"{image}.bytes")]
    if len(named) != 1:
        wrong = f"{len(holds)} columns hold bytes" if image is None else f"image={image!r} holds no bytes"
        raise BadSetting(f"{tables.root}: {wrong}: pass image=, one of {', '.join(holds) or 'none'}")
    return named[0]


def _label(tables: Tables, label: str) -> str:
    check_alike(tables, [label], "pass labels=")
    (column, *more) = columns_of(tables.schema, [label], tables.root)
    if more or column.kind != "fixed" or column.shape or column.dtype.kind not in "iub":
        holds = column.kind if column.varies else column.dtype
        raise BadSetting(
            f"{tables.root}: label={label!r} holds no whole numbers, but {holds}: pass another column, or labels= "
            f"with a number or a name for each image, such as table[{label!r}].to_pylist()"
        )
    return label


def classes_of(schema: Any, label: str | None) -> Sequence[str]:
    """Return the names of the classes that Hugging Face's ``ClassLabel`` has."""
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        return list(map(str, features[label].get("names", [])))
    except (TypeError, KeyError, ValueError):
        return []
