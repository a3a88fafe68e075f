"""A packed data set as a table: its leaves are columns, and its groups runs of rows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.contracts import ByteArray, Ids
from penstock.errors import BadSetting
from penstock.io.cache.cache import Cache
from penstock.sources.packed.format import Leaf, folder_at
from penstock.sources.packed.leaf_files import PackedFiles, read_rows
from penstock.sources.tables.table_files import pa
from penstock.tree import Array, Branch, Node, array_nodes

_GROUP_BYTES = 1 << 20


class PackedTables:
    """Runs of rows of a packed data set. Attributes are those of ``Tables``.

    A column is a leaf of the samples' tree, called as those of LitData: ``"image"`` of a dict, ``"0"`` of a tuple,
    ``"box.0"`` of both.
    """

    unlike: Mapping[str, str] = {}

    def __init__(self, folder: str, cache: Cache | None = None) -> None:
        if cache is not None:
            raise BadSetting(
                "cache= keeps what is read of an object store, and packed rows are here: leave it out"
            )
        self._folder = folder_at(folder and os.path.realpath(os.path.expanduser(folder)))
        self.root = str(self._folder)
        self._files = PackedFiles(self._folder, keep_bytes=0, verify=True)
        self._files.load()
        manifest = self._files.manifest
        self._leaves = [*zip(_names(manifest.layout, ()), manifest.leaves, strict=True)]
        nodes = zip(self._leaves, array_nodes(manifest.layout), strict=True)
        self.schema: Any = pa.schema([(name, self._type(name, leaf, node)) for (name, leaf), node in nodes])
        self._step = max(1, _GROUP_BYTES // max(1, sum(self._files.row_bytes)))
        self.group_rows: Ids = np.diff(np.append(np.arange(0, manifest.rows, self._step), manifest.rows))
        self.parts = [(self._folder.name, manifest.rows)]
        self.description = f"{len(self.group_rows):,} runs of the packed rows in {self.root}"

    def group_bytes(self, column: str) -> Ids:
        return self.group_rows * dict(self._leaves)[column].row_bytes

    def ranges(self, column: str) -> None:
        """Packed data sets have no statistics."""

    def may_hold(self, expression: Any) -> list[bool]:
        return [True] * len(self.group_rows)

    def read(self, group: int, columns: Sequence[str]) -> Any:
        rows = range(group * self._step, group * self._step + int(self.group_rows[group]))
        arrays: dict[str, Any] = {}
        for i, (name, leaf) in enumerate(self._leaves):
            if name in columns:
                content = read_rows(self._folder / leaf.file, leaf.row_bytes, rows.start, len(rows)).reshape(-1)
                self._files.check(i, rows, content)
                arrays[name] = _array(content, leaf)
        self._files.check_unchanged()
        return pa.table(arrays)

    def where(self, group: int) -> str:
        return f"{self.root}, rows from {group * self._step:,} on"

    def _type(self, name: str, leaf: Leaf, node: Any) -> Any:
        """Return Arrow's type of a leaf; torch's bfloat16 lies there as whole numbers."""
        try:
            if node.library == "torch" and np.dtype(leaf.dtype).name != node.dtype:
                raise NotImplementedError
            return _array(np.empty(0, np.uint8), leaf).type
        except (NotImplementedError, ValueError):
            raise BadSetting(
                f"{self.root}: {name!r} is of {node.dtype} and shape {leaf.shape}, which tables do not have: read "
                "this by PackedSource"
            ) from None


def _names(node: Node, path: tuple[str, ...]) -> Iterator[str]:
    if isinstance(node, Branch):
        for key, child in zip(node.keys or range(len(node.children)), node.children, strict=True):
            yield from _names(child, (*path, str(key)))
    elif isinstance(node, Array):
        yield ".".join(path) or "0"


def _array(content: ByteArray, leaf: Leaf) -> Any:
    """Return rows of a leaf as an array of Arrow's."""
    kind = np.dtype(leaf.dtype)
    values = content.view(kind)
    if kind.kind in "SU":  # of which Arrow would cut off what stands behind a zero
        array = pa.array(values.tolist(), pa.from_numpy_dtype(kind))
    else:
        array = pa.array(values.astype(kind.newbyteorder("="), copy=False))
    for length in reversed(leaf.shape):
        array = pa.FixedSizeListArray.from_arrays(array, length)
    return array
