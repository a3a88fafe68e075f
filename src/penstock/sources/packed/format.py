"""The files of a packed data set: one array a leaf, as NumPy stores it, and a page that names them.

docs/contracts/packed.md describes it for who reads it without Penstock.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from penstock.errors import BadSetting, PackDamaged, ReadFailed
from penstock.tree import Node, array_nodes

FORMAT = "penstock packed 1"
MANIFEST = "penstock.json"
JOURNAL = "packing.json"
HEADER_BYTES = 4096
"""Before a file's first row, which therefore lies as every disk wants it."""
SUM = np.dtype("<u4")


class Leaf(msgspec.Struct, frozen=True, kw_only=True):
    """One leaf of the samples' tree, and its files.

    Attributes:
        name: Its path in the tree, such as ``batch['image']``.
        file: An array of all rows, one after the other.
        checksums: An array of the CRC-32 of each row.
        dtype: As NumPy reads it; an unsigned integer for what NumPy does not know (bfloat16).
        shape: Of one row.
        checksums_crc32: Of the content of ``checksums``, without its header.
    """

    name: str
    file: str
    checksums: str
    dtype: str
    shape: tuple[int, ...]
    checksums_crc32: int = 0

    @property
    def row_bytes(self) -> int:
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What ``penstock.json`` says; it is written last, so that where it is, all is there.

    Attributes:
        format: ``"penstock packed 1"``.
        source: What was packed, in words.
        rows: Of every leaf.
        leaves: In the order of the tree.
        layout: The tree, as Penstock builds it again.
    """

    format: str
    source: str
    rows: int
    leaves: tuple[Leaf, ...]
    layout: Node

    @property
    def nbytes(self) -> int:
        """Of all rows."""
        return self.rows * sum(leaf.row_bytes for leaf in self.leaves)


def header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The header of a ``.npy`` file (version 1.0 of NumPy's format), filled up to ``HEADER_BYTES``."""
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    room = HEADER_BYTES - 10
    return b"\x93NUMPY\x01\x00" + room.to_bytes(2, "little") + text.encode().ljust(room - 1) + b"\n"


def remedy(folder: Path) -> str:
    """What to do about a data set that is damaged."""
    return f"Restore it from a copy, or delete {folder} and pack again"


def check_header(path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    """Compare what a file says of itself to NumPy with what the manifest says of it.

    Raises:
        PackDamaged: they differ, or it has no such header.
        ReadFailed: the disk fails.
    """
    try:
        with open(path, "rb") as file:
            found = file.read(HEADER_BYTES)
    except OSError as error:
        raise ReadFailed(f"{path}: {error.strerror}", str(path), 0, error.errno or 0) from None
    packed = header(dtype, shape)
    if found != packed:
        texts = [part[10:].decode("ascii", "replace").strip()[:200] for part in (found, packed)]
        raise PackDamaged(
            f"the header of {path} is not the one that was packed, so NumPy would read it wrongly: it says "
            f"{texts[0]!r}, and {MANIFEST} says {texts[1]!r}. {remedy(path.parent)}"
        )


def read_manifest(folder: Path) -> Manifest:
    """What a folder says of itself, compared with the sizes of its files.

    Raises:
        BadSetting: there is no packed data set, or it is not finished, or of another version.
        PackDamaged: it contradicts itself, or a file is missing or has another size.
    """
    path = folder / MANIFEST
    try:
        told = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if (folder / JOURNAL).exists():
            raise BadSetting(f"{folder} is not packed to its end: run the same penstock pack again") from None
        what = f"it has no {MANIFEST}" if folder.exists() else "there is no such folder"
        raise BadSetting(
            f"{folder} holds no packed data set: {what}. Restore it from a copy, or make a new one with "
            "penstock pack"
        ) from None
    try:
        version: Any = msgspec.json.decode(told, type=dict[str, Any]).get("format")
        if version != FORMAT:
            raise BadSetting(
                f"{path} is of format {version!r}, and this Penstock reads {FORMAT!r}: read it with the Penstock "
                "that packed it, or pack again into a new folder"
            )
        manifest = msgspec.json.decode(told, type=Manifest)
        _check_sense(manifest)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        if isinstance(error, BadSetting):
            raise
        raise PackDamaged(f"{path} is damaged: {error}. {remedy(folder)}") from None
    for leaf in manifest.leaves:
        check_size(folder / leaf.file, HEADER_BYTES + manifest.rows * leaf.row_bytes)
        check_size(folder / leaf.checksums, HEADER_BYTES + manifest.rows * SUM.itemsize)
    return manifest


def _check_sense(manifest: Manifest) -> None:
    if manifest.rows < 1 or len(list(array_nodes(manifest.layout))) != len(manifest.leaves):
        raise ValueError(f"it names {manifest.rows} rows and {len(manifest.leaves)} leaves of another tree")
    for leaf in manifest.leaves:
        if os.path.basename(leaf.file) != leaf.file or os.path.basename(leaf.checksums) != leaf.checksums:
            raise ValueError(f"the file of leaf {leaf.name} lies elsewhere: {leaf.file!r}, {leaf.checksums!r}")
        if np.dtype(leaf.dtype).hasobject or min(leaf.shape, default=0) < 0:
            raise ValueError(f"leaf {leaf.name} cannot be of {leaf.dtype} with shape {leaf.shape}")


def check_size(path: Path, nbytes: int) -> None:
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        raise PackDamaged(f"{path} is missing. {remedy(path.parent)}") from None
    except OSError as error:
        raise PackDamaged(f"{path} cannot be read: {error.strerror}") from None
    if found != nbytes:
        raise PackDamaged(
            f"{path} has {found:,} bytes and should have {nbytes:,}: it was cut short, or is another file. "
            f"{remedy(path.parent)}"
        )
