"""Tar shards as records, with the labels that WebDataset puts beside an image."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from penstock.contracts import Place
from penstock.errors import BadSetting
from penstock.fingerprint.files import FileVersion
from penstock.sources.records.files import read
from penstock.sources.records.shard_files import ShardedRecords, found, known
from penstock.sources.records.tar import Member, members_of

_LABEL = ".cls"
_FORMAT = 7
_SHOWN = 3


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
        names = [sample.name for sample in samples]
        self.names, self.classes = _within(names, {folder for index in indexes for folder in index.folders})
        self._labels = [label for index in indexes for label in index.labels]
        reasons = (
            index.unlabelled or f"{path} has no {_LABEL} beside its images, and other shards have"
            for path, index in zip(self._paths, indexes, strict=True)
            if index.unlabelled or (self._labels and not index.labels)
        )
        self._unlabelled = next(reasons, "")
        counts = [len(index.samples) for index in indexes]
        self._lie(counts, [sample.offset for sample in samples], [sample.nbytes for sample in samples])

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


def _indexed(path: str, version: FileVersion, suffixes: tuple[str, ...]) -> _Index:
    """Return a shard's index, from the cache if it was walked through before."""
    return known(_Index, partial(_walked, path, version, suffixes), version, _FORMAT, path, suffixes)


def _walked(path: str, version: FileVersion, suffixes: tuple[str, ...]) -> _Index:
    """Walk through a shard."""
    groups, folders, doubtful, last = list[_Group](), set[str](), set[str](), 0
    for member in members_of(path, version):
        name, offset, nbytes, tar = member
        folders.add(os.path.dirname(name))
        again = bool(groups) and name in groups[-1].members
        if again or tar != last or not groups or key_of(name) != groups[-1].key:
            if again and tar == last:  # of those before it, some may be this one's
                doubtful.add(key_of(name))
            groups.append(_Group(key_of(name), set(), [], {}))
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
    if several := _several(groups):
        raise BadSetting(
            f"{path}: a sample has several images, {' and '.join(several[:_SHOWN])}: pass "
            "image= and label=, the endings of those wanted (image='jpg', label='cls'), or suffixes= of one"
        )
    return _Index(samples, *_labels(path, groups, doubtful), sorted(folders))


def _several(groups: Sequence[_Group]) -> list[str]:
    """Return images that are parts of one sample: they share its label, or have endings that another key has too.

    Endings with numbers may be names of files, as of ``cat.0.jpg`` and ``dog.0.jpg``.
    """
    some = [(group, [name for name, *_ in group.images]) for group in groups if len(group.images) > 1]
    endings = [tuple(sorted(name.removeprefix(group.key) for name in names)) for group, names in some]
    keys = Counter(ending for _, ending in {*zip([group.key for group, _ in some], endings, strict=True)})
    for (group, names), ending in zip(some, endings, strict=True):
        of_each = {os.path.splitext(name)[0] for name in names}
        numbered = any(map(str.isdigit, ".".join(ending).split(".")))
        share = group.key in group.labels and not (len(of_each) == len(names) and of_each <= {*group.labels})
        if share or (not group.labels and keys[ending] > 1 and not numbered):
            return names
    return []


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
    key = key_of(missing[0])
    count = max(images[key], times[key])
    again = f" (its key comes {count} times, with {times[key]} {_LABEL})" if count > 1 else ""
    return [], f"{path}: {len(missing):,} images have no {_LABEL} beside them, such as {missing[0]}{again}"


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
