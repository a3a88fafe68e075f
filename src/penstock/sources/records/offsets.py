"""Shards that begin with a table of offsets, as MosaicML's and LitData's do: where samples lie."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.basics.packages import require
from penstock.basics.sizes import size_text
from penstock.basics.terminal import printable, say
from penstock.contracts import Place
from penstock.errors import BadSetting, ReadFailed
from penstock.fingerprint.file_versions import FileVersion
from penstock.linux.files import cache_folder, locked, written_whole
from penstock.sources.order import digest
from penstock.sources.records.files import is_remote, read, version_of
from penstock.sources.records.shard_files import ShardedRecords, known
from penstock.sources.records.values import ColumnParser

CODECS = {"zstd": "zstd", "gz": "gzip", "bz2": "bz2", "br": "brotli"}
"""Names of compressions that are known, in indexes and in pyarrow."""
_AT_ONCE = 4
_SUFFIX = ".shard"
_PIECE_BYTES = 4 << 20


class Packed(msgspec.Struct, frozen=True):
    """A compressed shard."""

    path: str  # where it lies
    version: FileVersion
    codec: str  # how it was compressed
    sizes: tuple[int, ...]  # how many bytes it may become

    @property
    def unpacked(self) -> Path:
        """The file that it is unpacked to."""
        name = digest("unpacked", self.path, self.codec, msgspec.to_builtins(self.version))
        return cache_folder() / "shards" / f"{name}{_SUFFIX}"

    @property
    def is_missing(self) -> bool:
        """Whether it is still to be unpacked."""
        return not self.unpacked.exists() or self.unpacked.stat().st_size not in self.sizes


def unpack(shards: Sequence[Packed]) -> None:
    """Unpack those that were not before, each whole."""
    if not any(shard.is_missing for shard in shards):
        return
    require(f"a shard that is compressed ({shards[0].codec})", "columns", "pyarrow")
    folder = cache_folder() / "shards"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder, os.O_RDONLY | os.O_DIRECTORY), ThreadPoolExecutor(_AT_ONCE) as pool:
            for half in folder.glob(f".*{_SUFFIX}.*"):  # of one who was killed: who unpacks has locked the folder
                half.unlink()
            missing = [shard for shard in shards if shard.is_missing]
            total = size_text(sum(shard.version.nbytes for shard in missing))
            if missing:  # no other process has unpacked them meanwhile
                say(f"{len(missing):,} compressed shards ({total}) are unpacked in {printable(str(folder))}")
            list(pool.map(_unpack, missing))
    except OSError as error:
        raise BadSetting(
            f"{shards[0].path} and the shards beside it are compressed, and cannot be unpacked in {folder}: "
            f"{error.strerror}. Point XDG_CACHE_HOME to a disk with more room"
        ) from None


def _unpack(shard: Packed) -> None:
    arrow: Any = import_module("pyarrow")
    path, whole = shard.path, Place(shard.path, 0, shard.version.nbytes, shard.version.etag)
    with written_whole(shard.unpacked) as half, half.open("wb") as to:
        packed = arrow.BufferReader(read(whole)) if is_remote(path) else arrow.OSFile(path)
        with packed, arrow.CompressedInputStream(packed, CODECS[shard.codec]) as stream:
            while piece := _read(stream, path):
                if to.write(piece) and to.tell() > max(shard.sizes):
                    break
        if to.tell() not in shard.sizes:
            became = f"it becomes {to.tell():,} bytes or more, and its index says {shard.sizes[0]:,}"
            raise ReadFailed(f"{path} is damaged: {became}", path)


def _read(stream: Any, path: str) -> bytes:
    try:
        return stream.read(_PIECE_BYTES)
    except OSError as error:  # pyarrow's words for damage
        raise ReadFailed(f"{path} cannot be decompressed: {error}", path) from None


T = TypeVar("T")
INDEX = "index.json"
_FORMAT = "offsets 1"
_HEAD_BYTES = 8
"""How many samples there are, and the end of the table, beside an offset for each."""


class Shard(NamedTuple):
    """A shard, as an index describes it."""

    name: str  # its path within the folder
    samples: int  # how many it holds
    nbytes: tuple[int, ...]  # its size, or sizes that versions of its format would write, once it is unpacked
    compression: str = ""  # how it is compressed, such as ``"zstd:3"``; empty if it is not
    packed_bytes: int | None = None  # its size as it lies there, if the index says it
    hashes: Mapping[str, str] = {}  # of all its bytes as they lie there, by the name of an algorithm
    left: Shard | None = None  # as its own library leaves it there when that has unpacked it

    def as_lies_in(self, root: str) -> Shard:
        """Return the shard as it lies in a folder: unpacked, where it was left so, and not written anew since."""
        if self.left is None or is_remote(root):
            return self
        left, packed = Path(root, self.left.name), Path(root, self.name)
        with suppress(OSError):
            seen = left.stat()
            is_newest = not packed.exists() or packed.stat().st_mtime_ns <= seen.st_mtime_ns
            return self.left if is_newest and seen.st_size in self.left.nbytes else self
        return self


class OffsetRecords(ShardedRecords):
    """The samples of shards that begin with the offsets of their samples. Attributes are those of ``Records``.

    ``kind`` is what they are, for a person; ``shards`` are those of the index, in its order.
    """

    def __init__(self, root: str, kind: str, shards: Sequence[Shard], parse: ColumnParser) -> None:
        self.parse = parse  # what parses a sample
        self.fields: Mapping[str, str] = parse.fields  # the type of each column
        shards = [shard for shard in shards if shard.samples]
        if not shards:
            raise BadSetting(f"{root}: its {INDEX} names no sample")
        if not self.fields:
            raise BadSetting(f"{root}: its {INDEX} names no column")
        for name in [each.name for shard in shards for each in (shard, shard.left) if each]:
            if name[:1] == "/" or ".." in name.split("/") or not name.isprintable():
                raise BadSetting(f"{root}: its {INDEX} names {name!r}, which is no file in it")
        described, shards = shards, [shard.as_lies_in(root) for shard in shards]
        try:
            super().__init__([f"{root}/{shard.name}" for shard in shards])
        except ReadFailed as error:
            raise BadSetting(f"{error}; {root}/{INDEX} names it: fetch it, or write the data again") from None
        self.root = root  # the folder, or its URL
        whole = self._each(_whole, shards)
        unpack([packed for packed in whole if isinstance(packed, Packed)])
        tables = self._each(_offsets, shards, whole)
        self._read_at = [str(each.unpacked) if isinstance(each, Packed) else each for each in whole]
        self.names: Sequence[str] = [f"{shard.name}/{i}" for shard in described for i in range(shard.samples)]
        starts = np.concatenate([table[:-1] for table in tables])
        self._lie([shard.samples for shard in shards], starts, np.concatenate([*map(np.diff, tables)]))
        # By the index's names: the order is the same, whoever has unpacked them.
        self.parts = [(os.path.basename(shard.name), shard.samples) for shard in described]
        self.description = f"{len(self.names):,} samples in {len(shards):,} of {kind} of {root}"


def opened(folder: str | os.PathLike[str], kind: str) -> tuple[str, bytes]:
    """Return where shards lie, and their index."""
    root = str(folder).rstrip("/")
    if not root:
        raise BadSetting(f"no folder of {kind} is named: its path stands behind the prefix")
    if not is_remote(root):
        root = os.path.realpath(os.path.expanduser(root))
    path = f"{root}/{INDEX}"
    try:
        version = version_of(path)
        return root, read(Place(path, 0, version.nbytes, version.etag))
    except ReadFailed as error:
        raise BadSetting(f"{folder} is no folder of {kind}: {error}") from None


def decoded(root: str, index: bytes, kind: type[T]) -> T:
    """Return what an index says."""
    try:
        return msgspec.json.decode(index, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadSetting(f"{root}/{INDEX} is damaged, or of another version: {error}") from None


def _whole(path: str, version: FileVersion, shard: Shard) -> str | Packed:
    """Return where a shard can be read, or that it has to be unpacked."""
    sizes = shard.nbytes if not shard.compression else () if shard.packed_bytes is None else (shard.packed_bytes,)
    if sizes and version.nbytes not in sizes:
        raise BadSetting(
            f"{path} has {version.nbytes:,} bytes, and its {INDEX} says {sizes[0]:,}: it was cut short, or "
            "belongs to another index"
        )
    if shard.hashes and not is_remote(path):
        known(bool, partial(_compared, path, shard.hashes), version, "hash 1", path, sorted(shard.hashes.items()))
    if not shard.compression:
        return path
    codec = shard.compression.partition(":")[0]
    if codec not in CODECS:
        raise BadSetting(f"{path} is compressed by {codec!r}: known are {', '.join(CODECS)}")
    return Packed(path, version, codec, shard.nbytes)


def _compared(path: str, hashes: Mapping[str, str]) -> bool:
    """Compare a file with one of its hashes, which takes reading all of it; return whether that could be done."""
    for name in hashes:
        if name in hashlib.algorithms_guaranteed and not name.startswith("shake"):
            with open(path, "rb") as file:
                found = hashlib.file_digest(file, name).hexdigest()
            if found != hashes[name]:
                raise BadSetting(
                    f"{path} is damaged, or belongs to another index: its {name} is {found}, and its {INDEX} says "
                    f"{hashes[name]}. Fetch it or write it again"
                )
            return True
    say(f"{printable(path)}: its hashes ({', '.join(hashes)}) are none of hashlib's, and are not compared")
    return False


def _offsets(path: str, version: FileVersion, shard: Shard, whole: str | Packed) -> npt.NDArray[np.int64]:
    """Return where a shard's samples begin, and where the last one ends."""
    is_packed = isinstance(whole, Packed)
    nbytes = whole.unpacked.stat().st_size if is_packed else version.nbytes
    table_bytes = 4 * shard.samples + _HEAD_BYTES
    if nbytes in (shard.nbytes or (nbytes,)) and table_bytes < nbytes:
        place = (
            Place(str(whole.unpacked), 0, table_bytes) if is_packed else Place(path, 0, table_bytes, version.etag)
        )
        table = known(bytes, partial(read, place), version, _FORMAT, path, table_bytes)
        offsets = np.frombuffer(table, "<u4").astype(np.int64)[1:]
        said = struct.unpack_from("<I", table)[0]
        if said != shard.samples:
            raise BadSetting(f"{path} has {said:,} samples, and its {INDEX} says {shard.samples:,}")
        if (offsets == table_bytes).all():
            raise BadSetting(
                f"{path} holds rows in Arrow's format, which are not read: LitData writes rows of plain values so "
                "where pyarrow is installed. Write images with litdata's Jpeg, or the rows as Parquet"
            )
        if offsets[0] >= table_bytes and offsets[-1] == nbytes and (np.diff(offsets) > 0).all():
            return offsets
    raise BadSetting(
        f"{path} is damaged, or is no such shard: {shard.samples:,} samples do not lie one after another in its "
        f"{nbytes:,} bytes"
    )
