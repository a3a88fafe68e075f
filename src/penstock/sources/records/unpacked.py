"""Compressed shards, unpacked whole in the user's cache, where their samples are read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from penstock.basics.packages import require
from penstock.basics.sizes import size_text
from penstock.basics.terminal import printable, say
from penstock.contracts import Place
from penstock.errors import BadSetting, ReadFailed
from penstock.fingerprint.file_versions import FileVersion
from penstock.linux.files import cache_folder, locked, written_whole
from penstock.sources.order import digest
from penstock.sources.records.files import is_remote, read

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
