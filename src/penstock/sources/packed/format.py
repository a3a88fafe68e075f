"""The files of a packed data set: one ``.npy`` array per leaf, and a manifest that names them.

docs/contracts/packed.md describes the format for readers without Penstock.
"""

from __future__ import annotations

import errno
import math
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TypeVar, cast

import msgspec
import numpy as np

from penstock.contracts import ByteArray
from penstock.errors import BadSetting, PackDamaged, ReadFailed
from penstock.io.files import open_file
from penstock.tree import Array, Node, array_nodes


def read_bytes(path: Path, offset: int = 0, nbytes: int | None = None) -> ByteArray:
    """Read bytes of a file from ``offset``, up to its end unless ``nbytes`` come before."""
    try:
        fd, size = open_file(str(path), direct=False)
        try:
            content = np.empty(max(0, size - offset) if nbytes is None else nbytes, np.uint8)
            done = 0
            while came := os.preadv(fd, [content[done:].data], offset + done):
                done += came
            return content[:done]
        finally:
            os.close(fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ReadFailed(f"{path} cannot be read: {error.strerror}", str(path), offset, error.errno or 0) from None


FORMAT = "penstock packed 2"

_SEAL = b'"crc32": '


class _Head(msgspec.Struct):
    format: str
    crc32: int | None = None


Page = TypeVar("Page", bound=msgspec.Struct)


def sealed(page: msgspec.Struct) -> bytes:
    """Return the text of a page, whose last field ``crc32`` is the CRC-32 of every byte before that key."""
    body, _, _ = msgspec.json.format(msgspec.json.encode(page), indent=1).rpartition(_SEAL)
    return body + _SEAL + f"{zlib.crc32(body)}\n}}\n".encode()


def read_page(path: Path, kind: type[Page], remedy: str) -> Page:
    """Read and check a sealed page."""
    text = read_bytes(path).tobytes()
    found = zlib.crc32(text.rpartition(_SEAL)[0])
    try:
        head = msgspec.json.decode(text, type=_Head)
        # A flipped bit hits the format or the seal, not both: a page without a seal is an older Penstock's.
        if head.format != FORMAT and head.crc32 in (None, found):
            raise BadSetting(
                f"{path} is of format {head.format!r}, and this Penstock reads {FORMAT!r}: pack again into a new "
                "folder, or read it with the Penstock that packed it"
            )
        if head.crc32 != found:
            packed = "it does not say its own CRC-32" if head.crc32 is None else f"{head.crc32:08x} was packed"
            raise PackDamaged(f"{path} is damaged: its CRC-32 is {found:08x}, and {packed}. {remedy}")
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PackDamaged(f"{path} is damaged: {error}. {remedy}") from None


MANIFEST = "penstock.json"
JOURNAL = "packing.json"
HEADER_BYTES = 4096
"""Size of a file's header, so that its first row is aligned for direct I/O."""
SUM = np.dtype("<u4")

_LOOKED_AT, _NAMED = 1000, 3


class Leaf(msgspec.Struct, frozen=True, kw_only=True):
    """One leaf of the samples' tree, and its files."""

    name: str  # its path in the tree, such as ``batch['image']``
    file: str  # file of an array of all rows, one after the other
    checksums: str  # file of an array of the CRC-32 of each row
    dtype: str  # NumPy's type; an unsigned integer for types that NumPy lacks (bfloat16)
    shape: tuple[int, ...]  # shape of one row
    checksums_crc32: int = 0  # CRC-32 of the content of ``checksums``, without its header

    @property
    def row_bytes(self) -> int:
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Content of ``penstock.json``, which is written last: where it is, all is there."""

    format: str  # ``"penstock packed 2"``
    source: str  # what was packed, in words
    rows: int  # rows of every leaf
    leaves: tuple[Leaf, ...]  # leaves, in the order of the tree
    layout: Node  # the tree, from which Penstock rebuilds it
    crc32: int = 0  # CRC-32 of the page that this is written to (see ``sealed``)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * sum(leaf.row_bytes for leaf in self.leaves)


def folder_at(folder: str | Path) -> Path:
    """Check a folder's path, and return it."""
    asked = cast("object", folder)  # of any type: it comes from a user
    if not isinstance(asked, (str, Path)) or not str(asked) or "\0" in str(asked):
        raise BadSetting(f"folder={folder!r}: give the path of a folder")
    return Path(folder)


def header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Make the header of a ``.npy`` file (version 1.0 of NumPy's format), padded to ``HEADER_BYTES``."""
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    room = HEADER_BYTES - 10
    return b"\x93NUMPY\x01\x00" + room.to_bytes(2, "little") + text.encode().ljust(room - 1) + b"\n"


def remedy(folder: Path) -> str:
    """Say what to do about a damaged data set."""
    return f"Restore it from a copy, or delete {folder} and pack again"


def check_file(path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    """Compare a file's size and header with those in the manifest."""
    try:
        size = path.stat().st_size
        found = read_bytes(path, 0, HEADER_BYTES).tobytes()
    except FileNotFoundError:
        raise PackDamaged(f"{path} is missing. {remedy(path.parent)}") from None
    except OSError as error:
        raise ReadFailed(f"{path} cannot be read: {error.strerror}", str(path), 0, error.errno or 0) from None
    nbytes = HEADER_BYTES + np.dtype(dtype).itemsize * math.prod(shape)
    if size != nbytes:
        raise PackDamaged(
            f"{path} has {size:,} bytes and should have {nbytes:,}: it was cut short, or is another file. "
            f"{remedy(path.parent)}"
        )
    packed = header(dtype, shape)
    if found != packed:
        texts = [part[10:].decode("ascii", "replace").strip()[:200] for part in (found, packed)]
        raise PackDamaged(
            f"the header of {path} is not the one that was packed, so NumPy would read it wrongly: it says "
            f"{texts[0]!r}, and {MANIFEST} says {texts[1]!r}. {remedy(path.parent)}"
        )


def read_set(folder: Path) -> Manifest:
    """Read a folder's manifest, and compare it with the sizes and headers of its files."""
    manifest = read_manifest(folder)
    for path, dtype, shape in files_of(folder, manifest):
        check_file(path, dtype, shape)
    return manifest


def files_of(folder: Path, manifest: Manifest) -> Iterator[tuple[Path, str, tuple[int, ...]]]:
    """Yield each file of a packed data set, with the type and shape of its array."""
    for leaf in manifest.leaves:
        yield folder / leaf.file, leaf.dtype, (manifest.rows, *leaf.shape)
        yield folder / leaf.checksums, SUM.str, (manifest.rows,)


def read_manifest(folder: Path) -> Manifest:
    """Read a folder's manifest."""
    path = folder / MANIFEST
    try:
        manifest = read_page(path, Manifest, remedy(folder))
    except FileNotFoundError:
        raise BadSetting(_nothing(folder)) from None
    except ReadFailed as error:
        if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.EINVAL):  # no file can have this path
            raise BadSetting(_nothing(folder)) from None
        raise
    try:
        _check_sense(manifest)
    except (TypeError, ValueError) as error:
        raise PackDamaged(f"{path} is damaged: {error}. {remedy(folder)}") from None
    for leaf, node in zip(manifest.leaves, array_nodes(manifest.layout), strict=True):
        if isinstance(node, Array) and node.library == "torch" and not np.dtype(leaf.dtype).isnative:
            raise BadSetting(
                f"leaf {leaf.name} of {folder} was packed on a machine of the other byte order, which torch does "
                "not read: pack again on one of this kind"
            )
    return manifest


def _nothing(folder: Path) -> str:
    """Say why a folder holds no packed data set, and where one is nearby."""
    if (folder / JOURNAL).exists():
        return f"{folder} is not packed to its end: repeat the penstock pack that began it"
    what = f"it has no {MANIFEST}" if folder.is_dir() else "it is no folder"
    if not os.path.lexists(folder):
        what = "there is no such folder"
    near = [str(found.parent) for found in _manifests_near(folder)]
    found = f"There is one in {', '.join(near)}" if near else "penstock pack makes one"
    return f"no packed data set in {folder}: {what}. {found}"


def _manifests_near(folder: Path) -> list[Path]:
    """Find a few manifests above, beside or in a folder, looking at its first 1,000 files."""
    above = folder.absolute().parent
    near = [above]
    for place in (folder, above):
        with suppress(OSError), os.scandir(place) as entries:
            near += [Path(entry.path) for entry in islice(entries, _LOOKED_AT)]
    return sorted(path for place in near if os.path.isfile(path := place / MANIFEST))[:_NAMED]


def _check_sense(manifest: Manifest) -> None:
    if manifest.rows < 1 or len(list(array_nodes(manifest.layout))) != len(manifest.leaves):
        raise ValueError(f"it names {manifest.rows} rows and {len(manifest.leaves)} leaves of another tree")
    for leaf in manifest.leaves:
        if os.path.basename(leaf.file) != leaf.file or os.path.basename(leaf.checksums) != leaf.checksums:
            raise ValueError(f"the file of leaf {leaf.name} lies elsewhere: {leaf.file!r}, {leaf.checksums!r}")
        if np.dtype(leaf.dtype).hasobject or min(leaf.shape, default=0) < 0:
            raise ValueError(f"leaf {leaf.name} cannot be of {leaf.dtype} with shape {leaf.shape}")
