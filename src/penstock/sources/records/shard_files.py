"""Files or objects that hold many samples each: found, looked through at once, and known by their versions."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.contracts import Ids, Place
from penstock.errors import BadSetting, ReadFailed
from penstock.fingerprint.file_versions import FileVersion
from penstock.linux.files import cache_folder, written_whole
from penstock.sources.order import digest
from penstock.sources.records.files import check_once, is_remote, objects_like, version_of

T = TypeVar("T")
_AT_ONCE = 64
"""Shards that are looked through at once: of objects, each part costs a round trip."""
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


class ShardFiles:
    """Files or objects, as they were at first."""

    parts: Sequence[tuple[str, int]] = ()  # each by its name, and how many samples or rows it holds

    def __init__(self, paths: Sequence[str]) -> None:
        check_once(paths)
        self._paths = self._read_at = paths
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            self._versions = list(pool.map(version_of, paths))
        self._tokens = [version.etag or repr(version) for version in self._versions]
        self.root = _root(paths)  # what they all lie below

    def _check(self, touched: Iterable[int]) -> None:
        """Check that these files are those that were looked through."""
        for shard in touched:
            path = self._paths[shard]  # of an object, the store compares the version
            if not is_remote(path) and self._versions[shard].difference(version_of(path)):
                raise ReadFailed(
                    f"{path} was written to or replaced since the feed began: its samples lie elsewhere now. "
                    "Start the feed again",
                    path,
                )

    def _each(self, look: Callable[..., T], *more: Iterable[Any]) -> list[T]:
        """Return what a function of path, version, and more of each shard finds, in threads."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(look, self._paths, self._versions, *more))


class ShardedRecords(ShardFiles):
    """Samples that lie in shards. Attributes are those of ``Records``, the rest is that of ``ShardFiles``."""

    classes: Sequence[str] = ()

    @property
    def labels(self) -> Sequence[str]:
        """Labels that lie beside the samples; empty if none do."""
        return ()

    def places(self, records: Ids) -> list[Place]:
        shards: list[int] = self._shards[records].tolist()
        chosen = zip(shards, self._starts[records].tolist(), self._nbytes[records].tolist(), strict=True)
        return [Place(self._read_at[shard], start, nbytes, self._tokens[shard]) for shard, start, nbytes in chosen]

    def check_unchanged(self, records: Ids) -> None:
        self._check(set(self._shards[records].tolist()))

    def _lie(self, counts: Sequence[int], starts: npt.ArrayLike, nbytes: npt.ArrayLike) -> None:
        """Take in how many samples each shard holds, one at least in all, and where each of them lies."""
        if not any(counts):
            raise BadSetting(f"{self._paths[0]}{' and others' * (len(self._paths) > 1)}: no member lies there")
        self.parts = [*zip(map(os.path.basename, self._paths), counts, strict=True)]
        self._shards = np.repeat(np.arange(len(counts)), counts)
        self._starts, self._nbytes = np.asarray(starts, np.int64), np.asarray(nbytes, np.int64)


def _root(paths: Sequence[str]) -> str:
    """Return the folder, or the URL, that all shards lie below; if there is none, all of them in a few words."""
    scheme = "".join(paths[0].rpartition("://")[:2])
    folders = [os.path.dirname(path.removeprefix(scheme)) for path in paths]
    try:
        common = os.path.commonpath(folders)
    except ValueError:  # files and objects
        common = ""
    return scheme + common if common.strip("/") else f"{paths[0]} and {len(paths) - 1} more ({digest(*paths)})"


def found(shards: str | Path | Sequence[str | Path]) -> list[str]:
    """Return the tar files or objects that patterns name (``*``, ``{0000..0127}``), those of each sorted."""
    patterns = [shards] if isinstance(shards, (str, Path)) else list(shards)
    return [path for pattern in patterns for path in _found(str(pattern))]


def _found(pattern: str) -> list[str]:
    if (match := _RANGE.search(pattern)) is not None:
        first, last = match.groups()
        numbers = (f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1))
        return [path for number in numbers for path in _found(_RANGE.sub(number, pattern, count=1))]
    if is_remote(pattern):
        return objects_like(pattern) if "*" in pattern else [pattern]
    text = os.path.abspath(os.path.expanduser(pattern))
    paths = [text] if os.path.exists(text) else sorted(glob.glob(text, recursive=True))
    if not paths:
        raise BadSetting(f"{pattern}: there is no such file")
    return list(map(os.path.realpath, paths))


def known(kind: type[T], find: Callable[[], T], version: FileVersion, *key: Any) -> T:
    """Return what was found in a version of a shard: from the user's cache, if it was found before."""
    name = digest(*key, msgspec.to_builtins(version))
    cached = cache_folder() / "shards" / f"{name}.msgpack"
    try:
        return msgspec.msgpack.decode(cached.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        index = find()
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(cached) as half:
            half.write_bytes(msgspec.msgpack.encode(index))
    except (OSError, UnicodeEncodeError):  # the next one looks through it again
        pass
    return index
