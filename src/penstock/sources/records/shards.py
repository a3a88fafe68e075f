"""Tar shards as records, with the labels that WebDataset puts beside an image."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from penstock.contracts import Ids, Place
from penstock.errors import BadSetting, ReadFailed
from penstock.fingerprint.files import FileVersion
from penstock.linux.files import cache_folder, written_whole
from penstock.sources.order import digest
from penstock.sources.records.files import check_once, is_remote, objects_like, read, read_ahead, version_of
from penstock.sources.records.tar import Member, members, walk

_LABEL = ".cls"
_FORMAT = 6
_AT_ONCE = 64
"""Shards that are walked through at once: of objects, each member costs a round trip."""
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


class _Index(NamedTuple):
    """The samples of one shard, their labels (empty if none do), why some have none, and all folders."""

    samples: list[Member]
    labels: list[str]
    unlabelled: str
    folders: list[str]


class _Group(NamedTuple):
    """What follows one another with one key: members, images, and labels by their names without ``.cls``."""

    key: str
    members: set[str]
    images: list[Member]
    labels: dict[str, str]


class ShardRecords:
    """The members of tar files that end as asked, shard after shard in the order of their names.

    A shard is walked through once, and its index is kept in the user's cache. Attributes are those of ``Records``.

    Args:
        shards: A tar, a pattern (``*``, ``{0000..0127}``), or several.
        suffixes: Endings of members that are samples, in small letters.

    Raises:
        BadSetting: there are no such files, one is no tar, or has no sample.
    """

    def __init__(self, shards: str | Path | Sequence[str | Path], suffixes: Sequence[str]) -> None:
        patterns = [shards] if isinstance(shards, (str, Path)) else list(shards)
        self._paths = [path for pattern in patterns for path in _found(str(pattern))]
        check_once(self._paths)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            self._versions = list(pool.map(version_of, self._paths))
            indexes = list(pool.map(partial(_indexed, suffixes=tuple(suffixes)), self._paths, self._versions))
        self._samples = [sample for index in indexes for sample in index.samples]
        names = [sample.name for sample in self._samples]
        self.names, self.classes = _within(names, {folder for index in indexes for folder in index.folders})
        self._labels = [label for index in indexes for label in index.labels]
        reasons = (
            index.unlabelled or f"{path} has no {_LABEL} beside its images, and other shards have"
            for path, index in zip(self._paths, indexes, strict=True)
            if index.unlabelled or (self._labels and not index.labels)
        )
        self._unlabelled = next(reasons, "")
        self._tokens = [version.etag or repr(version) for version in self._versions]
        self.root = _root(self._paths)
        counts = [len(index.samples) for index in indexes]
        self.parts = [*zip(map(os.path.basename, self._paths), counts, strict=True)]
        self._shards = np.repeat(np.arange(len(indexes)), counts)

    @property
    def labels(self) -> Sequence[str]:
        """Content of the ``.cls`` beside each sample; ``BadSetting`` if some have one, and others have none."""
        if self._unlabelled:
            raise BadSetting(f"{self._unlabelled}: pass labels=")
        return self._labels

    @property
    def description(self) -> str:
        shards = f"{len(self._paths):,} tar files" if len(self._paths) > 1 else self._paths[0]
        return f"{len(self.names):,} members of {shards}"

    def places(self, records: Ids) -> list[Place]:
        shards: list[int] = self._shards[records].tolist()
        chosen: list[Member] = [self._samples[i] for i in records.tolist()]
        return [
            Place(self._paths[shard], sample.offset, sample.nbytes, self._tokens[shard])
            for sample, shard in zip(chosen, shards, strict=True)
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
    text = os.path.abspath(os.path.expanduser(pattern))
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
        with written_whole(cached) as half:
            half.write_bytes(msgspec.msgpack.encode(index))
    except (OSError, UnicodeEncodeError):  # the next one walks through it again
        pass
    return index


def _walked(path: str, version: FileVersion, suffixes: tuple[str, ...]) -> _Index:
    """Walk through a shard."""
    groups, folders, doubtful, last = list[_Group](), set[str](), set[str](), 0
    for member in _members(path, version):
        name, offset, nbytes, tar = member
        folders.add(os.path.dirname(name))
        again = bool(groups) and name in groups[-1].members
        if again or tar != last or not groups or _key(name) != groups[-1].key:
            if again and tar == last:  # of those before it, some may be this one's
                doubtful.add(_key(name))
            groups.append(_Group(_key(name), set(), [], {}))
            last = tar
        groups[-1].members.add(name)
        lower = name.lower()
        if offset < 0 and lower.endswith((*suffixes, _LABEL)):
            raise BadSetting(f"{path}: {name} is a symbolic link; pack the files again with --dereference")
        if lower.endswith(suffixes) and not os.path.basename(name).startswith("."):
            groups[-1].images.append(member)
        elif lower.endswith(_LABEL):
            text = read(Place(path, offset, nbytes, version.etag)).decode(errors="replace")
            groups[-1].labels[name[: -len(_LABEL)]] = text
    samples = [image for group in groups for image in group.images]
    if not samples:
        raise BadSetting(f"{path}: no member ends in {', '.join(sorted(suffixes))}")
    return _Index(samples, *_labels(path, groups, doubtful), sorted(folders))


def _labels(path: str, groups: Sequence[_Group], doubtful: Container[str]) -> tuple[list[str], str]:
    """Return the label of each image, or why some have none.

    As in WebDataset, a sample is what follows one another with one key: the path up to the first dot of its last
    part. A key may come again, as in tars that were joined, each time with a label; right after itself only where
    a tar ends between the two, else nobody knows which belong together. A label that lies elsewhere counts where
    its key comes once.
    """
    images = Counter(group.key for group in groups if group.images)
    times = Counter(group.key for group in groups if group.labels)
    apart = {group.key: group.labels for group in groups if group.labels and images[group.key] == 1}
    found: list[str] = []
    missing: list[str] = []
    for key, _, samples, own in groups if times else ():
        beside = own or apart.get(key, {})
        certain = images[key] == times[key] and key not in doubtful
        for name, *_ in samples:
            fitting = (os.path.splitext(name)[0], key, *(beside if len(beside) == len(samples) == 1 else ()))
            of = [beside[each] for each in fitting if certain and each in beside]
            (found if of else missing).append(of[0] if of else name)
    if not missing:
        return found, ""
    key = _key(missing[0])
    count = max(images[key], times[key])
    again = f" (its key comes {count} times, with {times[key]} {_LABEL})" if count > 1 else ""
    return [], f"{path}: {len(missing):,} images have no {_LABEL} beside them, such as {missing[0]}{again}"


def _members(path: str, version: FileVersion) -> Iterator[Member]:
    if is_remote(path):
        return walk(path, version.nbytes, read_ahead(Place(path, 0, version.nbytes, version.etag)))
    return members(path)


def _within(names: Sequence[str], folders: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return paths within the folder that all of them lie in, which is no class: ``tar cf x.tar photos``.

    And the uppermost of the folders in it.
    """
    names = [name.lstrip("/") for name in names]
    common = os.path.commonpath([os.path.dirname(os.path.normpath(name)) for name in names]) or "."
    inside = {os.path.relpath(folder.lstrip("/") or ".", common).split("/", 1)[0] for folder in folders}
    return [os.path.relpath(name, common) for name in names], sorted(inside - {".", ".."})


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
    folder, slash, file = name.rpartition("/")
    return folder + slash + file.split(".", 1)[0]
