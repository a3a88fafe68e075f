"""Tar shards as records, with the labels that WebDataset puts beside an image."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from penstock.contracts import Place
from penstock.errors import BadSetting
from penstock.fingerprint.file_versions import FileVersion
from penstock.sources.records.files import read
from penstock.sources.records.shard_files import ShardedRecords, found, known
from penstock.sources.records.tar import Member, members_of

_LABEL = ".cls"
_FORMAT = 8
_SHOWN = 3


class _ShardIndex(NamedTuple):
    """The samples of one shard, their labels (empty if none do), why some have none, and all folders."""

    samples: list[Member]
    labels: list[str]
    unlabelled: str
    folders: list[str]


class _Group(NamedTuple):
    """The members of one tar that have one key, whether they lie together or apart: a sample, as in WebDataset."""

    key: str
    images: dict[str, None]  # a set in their order
    labels: dict[str, str]  # by their names without ``.cls``
    twice: list[str]  # those members that come again, as after ``tar -A``: nobody knows which belong together


class ShardRecords(ShardedRecords):
    """The members of tar files that end as asked, shard after shard in the order of their names.

    A shard is walked through once, and its index is kept in the user's cache. Attributes are those of ``Records``.
    ``shards`` is a tar, a pattern (``*``, ``{0000..0127}``), or several; ``suffixes`` are endings of members that
    are samples, in small letters.
    """

    def __init__(self, shards: str | Path | Sequence[str | Path], suffixes: Sequence[str]) -> None:
        super().__init__(found(shards))
        indexes = self._each(partial(_indexed, suffixes=tuple(suffixes)))
        samples = [sample for index in indexes for sample in index.samples]
        counts = [len(index.samples) for index in indexes]
        self._lie(counts, [sample.offset for sample in samples], [sample.nbytes for sample in samples])
        names = [sample.name for sample in samples]
        self.names, self.classes = _within(names, {folder for index in indexes for folder in index.folders})
        self._labels = [label for index in indexes for label in index.labels]
        reasons = (
            index.unlabelled or f"{path} has no {_LABEL} beside its images, and other shards have"
            for path, index in zip(self._paths, indexes, strict=True)
            if index.unlabelled or (self._labels and index.samples and not index.labels)
        )
        self._unlabelled = next(reasons, "")

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


def _indexed(path: str, version: FileVersion, suffixes: tuple[str, ...]) -> _ShardIndex:
    """Return a shard's index, from the cache if it was walked through before."""
    return known(_ShardIndex, partial(_walked, path, version, suffixes), version, _FORMAT, path, suffixes)


def _walked(path: str, version: FileVersion, suffixes: tuple[str, ...]) -> _ShardIndex:
    """Walk through a shard."""
    samples, folders, groups = list[Member](), set[str](), dict[tuple[int, str], _Group]()
    for member in members_of(path, version):
        name, offset, nbytes, tar = member
        folders.add(os.path.dirname(name))
        lower, key, stem = name.lower(), key_of(name), name[: -len(_LABEL)]
        if offset < 0 and lower.endswith((*suffixes, _LABEL)):
            raise BadSetting(f"{path}: {name} is a symbolic link; pack the files again with --dereference")
        group = groups.setdefault((tar, key), _Group(key, {}, {}, []))
        if lower.endswith(suffixes) and not os.path.basename(name).startswith("."):
            samples.append(member)
            group.twice.extend([name] if name in group.images else [])
            group.images[name] = None
        elif lower.endswith(_LABEL):
            group.twice.extend([name] if stem in group.labels else [])
            group.labels[stem] = read(Place(path, offset, nbytes, version.etag)).decode(errors="replace")
    if folders and not samples:  # not one that is empty, among others
        raise BadSetting(f"{path}: no member ends in {', '.join(sorted(suffixes))}")
    if several := _several([*groups.values()]):
        raise BadSetting(
            f"{path}: a sample has several images, {' and '.join(several[:_SHOWN])}: pass "
            "image= and label=, the endings of those wanted (image='jpg', label='cls'), or suffixes= of one"
        )
    labelled = samples if any(group.labels for group in groups.values()) else ()
    labels = _labels(path, [(name, groups[tar, key_of(name)]) for name, _, _, tar in labelled])
    return _ShardIndex(samples, *labels, sorted(folders))


def _several(groups: Sequence[_Group]) -> list[str]:
    """Return images that are parts of one sample: they share its label, or have endings that another key has too.

    Endings with numbers may be names of files, as of ``cat.0.jpg`` and ``dog.0.jpg``.
    """
    some = [group for group in groups if len(group.images) > 1]
    endings = [tuple(sorted(name.removeprefix(group.key) for name in group.images)) for group in some]
    keys = Counter(ending for _, ending in {*zip([group.key for group in some], endings, strict=True)})
    for (key, names, labels, _), ending in zip(some, endings, strict=True):
        of_each = {os.path.splitext(name)[0] for name in names}
        numbered = any(map(str.isdigit, ".".join(ending).split(".")))
        share = key in labels and not (len(of_each) == len(names) and of_each <= {*labels})
        if share or (not labels and keys[ending] > 1 and not numbered):
            return [*names]
    return []


def _labels(path: str, images: Sequence[tuple[str, _Group]]) -> tuple[list[str], str]:
    """Return the label of each image, or why some have none."""
    found: list[str] = []
    missing: list[tuple[str, _Group]] = []
    for name, group in images:
        key, others, labels, twice = group
        fitting = (os.path.splitext(name)[0], key, *(labels if len(labels) == len(others) == 1 else ()))
        of = [] if twice else [labels[each] for each in fitting if each in labels]
        found += of[:1]
        missing += [] if of else [(name, group)]
    if not missing:
        return found, ""
    name, group = missing[0]
    again = f" ({group.twice[0]} comes twice)" if group.twice else ""
    return [], f"{path}: {len(missing):,} images have no {_LABEL} beside them, such as {name}{again}"


def _within(names: Sequence[str], folders: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return paths within the folder that all of them lie in, which is no class: ``tar cf x.tar photos``.

    And the uppermost of the folders in it.
    """
    names = [name.lstrip("/") for name in names]
    common = os.path.commonpath([os.path.dirname(os.path.normpath(name)) for name in names]) or "."
    inside = {os.path.relpath(folder.lstrip("/") or ".", common).split("/", 1)[0] for folder in folders}
    return [os.path.relpath(name, common) for name in names], sorted(inside - {".", ".."})


def key_of(name: str) -> str:
    """Return what the members of a sample have in common: the path up to the first dot of its last part."""
    folder, slash, file = name.rpartition("/")
    return folder + slash + file.split(".", 1)[0]
