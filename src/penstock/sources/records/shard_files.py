"""Files or objects that hold many samples each: found, looked through at once, and known by their versions."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from penstock.errors import BadSetting, ReadFailed
from penstock.fingerprint.files import FileVersion
from penstock.linux.files import cache_folder, written_whole
from penstock.sources.order import digest
from penstock.sources.records.files import check_once, is_remote, objects_like, version_of

T = TypeVar("T")
_AT_ONCE = 64
"""Shards that are looked through at once: of objects, each part costs a round trip."""
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


class ShardFiles:
    """Shards, and the versions that they had at first.

    Args:
        paths: The files or objects.

    Attributes:
        paths: These.
        versions: The version of each.
        tokens: That in a word, for ``Place.etag``.

    Raises:
        BadSetting: one is named twice.
        ReadFailed: one is not there.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        check_once(paths)
        self.paths = paths
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            self.versions = list(pool.map(version_of, paths))
        self.tokens = [version.etag or repr(version) for version in self.versions]

    def each(self, look: Callable[..., T], *more: Iterable[Any]) -> list[T]:
        """Return what a function of path, version, and more of each shard finds, in threads."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(look, self.paths, self.versions, *more))

    def check_unchanged(self, touched: Iterable[int]) -> None:
        """Check that these shards are those that were looked through.

        Raises:
            ReadFailed: one was written to or replaced.
        """
        for shard in touched:
            path = self.paths[shard]  # of an object, the store compares the version
            if not is_remote(path) and self.versions[shard].difference(version_of(path)):
                raise ReadFailed(
                    f"{path} was written to or replaced since the feed began: its samples lie elsewhere now. "
                    "Start the feed again",
                    path,
                )

    @property
    def root(self) -> str:
        """The folder, or the URL, that all lie below; if there is none, all of them in a few words."""
        first, scheme = self.paths[0], "".join(self.paths[0].rpartition("://")[:2])
        folders = [os.path.dirname(path.removeprefix(scheme)) for path in self.paths]
        try:
            common = os.path.commonpath(folders)
        except ValueError:  # files and objects
            common = ""
        if common.strip("/"):
            return scheme + common
        return f"{first} and {len(self.paths) - 1} more ({digest(*self.paths)})"


def found(pattern: str) -> list[str]:
    """Return the files or objects that a pattern names (``*``, ``{0000..0127}``), sorted.

    Raises:
        BadSetting: there are none.
    """
    if (match := _RANGE.search(pattern)) is not None:
        first, last = match.groups()
        numbers = (f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1))
        return [path for number in numbers for path in found(_RANGE.sub(number, pattern, count=1))]
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
