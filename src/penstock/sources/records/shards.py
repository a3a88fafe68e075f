"""Tar shards as records, with the labels that WebDataset puts beside an image."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from penstock.contracts import Ids, Place
from penstock.errors import BadSetting, ReadFailed
from penstock.fingerprint.data import FileVersion
from penstock.linux.cache_folder import cache_folder
from penstock.sources.order import digest
from penstock.sources.records.read import is_remote, objects_like, read, read_ahead, version_of
from penstock.sources.records.tar import Member, members, walk

SUFFIX = ".tar"
_LABEL = ".cls"
_FORMAT = 2
_AT_ONCE = 64
"""Shards that are walked through at once: of objects, each member costs a round trip."""
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


class _Index(msgspec.Struct, array_like=True):
    """The samples of one shard: names, offsets, sizes, and the labels that lie beside them (empty if none do)."""

    names: list[str]
    offsets: list[int]
    nbytes: list[int]
    labels: list[str]


class ShardRecords:
    """The members of tar files that end as asked, shard after shard in the order of their names.

    A shard is walked through once, and its index kept in the user's cache.

    Args:
        shards: A tar, a pattern (``*``, ``{0000..0127}``), or several.
        suffixes: Endings of members that are samples, in small letters.

    Attributes:
        names: Path of each sample within its shard, and within the folder that all of them lie in.
        root: The folder that all shards lie in.
        labels: What the ``.cls`` beside each sample says; empty if there are none.

    Raises:
        BadSetting: there are no such files, one is no tar, or has no sample.
    """

    def __init__(self, shards: str | Path | Sequence[str | Path], suffixes: Sequence[str]) -> None:
        patterns = [shards] if isinstance(shards, (str, Path)) else list(shards)
        self._paths = [path for pattern in patterns for path in _found(str(pattern))]
        if twice := [path for path, times in Counter(self._paths).items() if times > 1]:
            raise BadSetting(f"{twice[0]} is named twice, so its samples would come twice in each epoch")
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            self._versions = list(pool.map(version_of, self._paths))
            indexes = list(pool.map(partial(_indexed, suffixes=tuple(suffixes)), self._paths, self._versions))
        self.names = _within([name for index in indexes for name in index.names])
        self.labels = [label for index in indexes for label in index.labels]
        if len(self.labels) not in (0, len(self.names)):
            without = next(path for path, index in zip(self._paths, indexes, strict=True) if not index.labels)
            raise BadSetting(f"{without} has no {_LABEL} beside its images, and other shards have: pass labels=")
        self._tokens = [version.etag or repr(version) for version in self._versions]
        self.root = _root(self._paths)
        self._shards = np.repeat(np.arange(len(indexes)), [len(index.names) for index in indexes])
        self._offsets = [offset for index in indexes for offset in index.offsets]
        self._nbytes = [nbytes for index in indexes for nbytes in index.nbytes]

    @property
    def description(self) -> str:
        shards = f"{len(self._paths):,} tar files" if len(self._paths) > 1 else self._paths[0]
        return f"{len(self.names):,} members of {shards}"

    def places(self, records: Ids) -> list[Place]:
        chosen: list[int] = records.tolist()
        shards: list[int] = self._shards[records].tolist()
        return [
            Place(self._paths[shard], self._offsets[i], self._nbytes[i], self._tokens[shard])
            for i, shard in zip(chosen, shards, strict=True)
        ]

    def check_unchanged(self, records: Ids) -> None:
        touched: set[int] = set(self._shards[records].tolist())
        for shard in touched:
            path = self._paths[shard]  # of an object, the store compares the version
            if not is_remote(path) and self._versions[shard].difference(version_of(path)):
                raise ReadFailed(
                    f"{path} was written to or replaced since the feed began: its members lie elsewhere now. "
                    "Start the feed again",
                    path,
                )


def _found(pattern: str) -> list[str]:
    """Return the files or objects that a pattern names, sorted."""
    if (match := _RANGE.search(pattern)) is not None:
        first, last = match.groups()
        numbers = (f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1))
        return [path for number in numbers for path in _found(_RANGE.sub(number, pattern, count=1))]
    if is_remote(pattern):
        return objects_like(pattern) if "*" in pattern else [pattern]
    text = os.path.expanduser(pattern)
    found = [text] if os.path.exists(text) else sorted(glob.glob(text, recursive=True))
    if not found:
        raise BadSetting(f"{pattern}: there is no such tar file")
    return list(map(os.path.realpath, found))


def _indexed(path: str, version: FileVersion, suffixes: tuple[str, ...]) -> _Index:
    """Return a shard's index, from the cache if it was walked through before."""
    key = digest(_FORMAT, path, suffixes, msgspec.to_builtins(version))
    cached = cache_folder() / "shards" / f"{key}.msgpack"
    try:
        return msgspec.msgpack.decode(cached.read_bytes(), type=_Index)
    except (OSError, msgspec.DecodeError):
        index = _walked(path, version, suffixes)
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        half = cached.with_suffix(f".{os.getpid()}")
        half.write_bytes(msgspec.msgpack.encode(index))
        half.replace(cached)
    except (OSError, UnicodeEncodeError):  # the next one walks through it again
        pass
    return index


def _walked(path: str, version: FileVersion, suffixes: tuple[str, ...]) -> _Index:
    """Walk through a shard; samples are told apart by their path up to the first dot of its last part."""
    index, labels = _Index([], [], [], []), dict[str, str]()
    for name, offset, nbytes in _members(path, version):
        lower = name.lower()
        if lower.endswith(suffixes) and not os.path.basename(name).startswith("."):
            if offset < 0:
                raise BadSetting(f"{path}: {name} is a symbolic link; pack the files again with --dereference")
            index.names.append(name)
            index.offsets.append(offset)
            index.nbytes.append(nbytes)
        elif lower.endswith(_LABEL):
            labels[_key(name)] = read(Place(path, offset, nbytes, version.etag)).decode(errors="replace").strip()
    if not index.names:
        raise BadSetting(f"{path}: no member ends in {', '.join(sorted(suffixes))}")
    if labels:
        keys = list(map(_key, index.names))
        if missing := [name for name, key in zip(index.names, keys, strict=True) if key not in labels]:
            raise BadSetting(f"{path}: {len(missing):,} images have no {_LABEL} beside them, such as {missing[0]}")
        index.labels = [labels[key] for key in keys]
    return index


def _members(path: str, version: FileVersion) -> Iterator[Member]:
    if is_remote(path):
        return walk(path, version.nbytes, read_ahead(Place(path, 0, version.nbytes, version.etag)))
    return members(path)


def _within(names: list[str]) -> list[str]:
    """Return paths within the folder that all of them lie in, which is no class: ``tar cf x.tar photos``."""
    common = os.path.commonpath([os.path.dirname(os.path.normpath(name)) for name in names])
    return [os.path.relpath(name, common or ".") for name in names]


def _root(paths: list[str]) -> str:
    """Return the folder, or the URL, that all shards lie below; if there is none, all of them in a few words."""
    scheme = "".join(paths[0].rpartition("://")[:2])
    folders = [os.path.dirname(path.removeprefix(scheme)) for path in paths]
    try:
        common = os.path.commonpath(folders)
    except ValueError:  # files and objects
        common = ""
    return scheme + common if common.strip("/") else f"{paths[0]} and {len(paths) - 1} more ({digest(*paths)})"


def _key(name: str) -> str:
    folder, _, file = name.rpartition("/")
    return f"{folder}/{file.split('.', 1)[0]}"
