"""Tar files of samples, as WebDataset writes them: the members that follow one another with one key."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from penstock.errors import BadSetting
from penstock.fingerprint.file_versions import FileVersion
from penstock.sources.records import values
from penstock.sources.records.shard_files import ShardedRecords, found, known
from penstock.sources.records.shards import key_of
from penstock.sources.records.tar import end_of, members_in, members_of
from penstock.sources.records.values import Reader

_FORMAT = "tar samples 1"
_KEY = "__key__"
_READERS: Mapping[str, tuple[str, Reader]] = {
    "cls": ("int64", lambda data: np.int64(int(data))),
    "json": (values.JSON, values.plain),
    "txt": (values.TEXT, values.text),
    "npy": ("array", values.npy),
    **dict.fromkeys(("jpg", "jpeg"), (values.JPEG, values.same)),
    "png": (values.PNG, values.same),
    **dict.fromkeys(("webp", "bmp", "ppm", "pgm", "tif", "tiff"), (values.IMAGE, values.same)),
}
_OTHER: tuple[str, Reader] = (values.BYTES, values.same)


class _Sample(NamedTuple):
    """A sample of one tar: its key, and the bytes from the headers of its first member to the end of its last."""

    key: str
    start: int
    end: int


class _TarIndex(NamedTuple):
    """The samples of one shard, and the endings that all of them have."""

    samples: list[_Sample]
    endings: list[str]


class TarSamples(ShardedRecords):
    """The samples of tar files, in the order of the files' names. Attributes are those of ``FieldRecords``.

    A field is the part of its members' names behind the first dot, in small letters: ``"jpg"``, ``"seg.png"``;
    those that some samples do not have are left out. The key is another. ``shards`` is a tar, a pattern (``*``,
    ``{0000..0127}``), or several.
    """

    def __init__(self, shards: str | Path | Sequence[str | Path]) -> None:
        super().__init__(found(shards))
        indexes = self._each(_indexed)
        samples = [sample for index in indexes for sample in index.samples]
        self.names: Sequence[str] = [sample.key for sample in samples]
        counts = [len(index.samples) for index in indexes]
        self._lie(counts, [start for _, start, _ in samples], [end - start for _, start, end in samples])
        endings = set[str].intersection(*({*index.endings} for index in indexes if index.samples))
        self.parse = TarParser(tuple(sorted(endings)))
        self.fields: Mapping[str, str] = self.parse.fields
        shown = f"{len(counts):,} tar files" if len(counts) > 1 else self._paths[0]
        self.description = f"{len(samples):,} samples of {shown}"


class TarParser(msgspec.Struct, frozen=True):
    """Parses samples that are a part of a tar."""

    endings: tuple[str, ...]  # the fields that each of them has

    @property
    def fields(self) -> Mapping[str, str]:
        """The type of each field."""
        return {_KEY: values.TEXT, **{ending: _read_as(ending)[0] for ending in self.endings}}

    def __call__(self, sample: bytes) -> dict[str, Any]:
        return values.without_surprise(self._parsed, sample)

    def only(self, fields: Collection[str]) -> TarParser:
        """Return a parser of these fields alone."""
        return TarParser(tuple(ending for ending in self.endings if ending in fields))

    def _parsed(self, sample: bytes) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, offset, nbytes, _ in members_in(sample):
            ending = _ending(name)
            if ending and found.setdefault(_KEY, key_of(name)) != key_of(name):
                raise ValueError(f"{name} is no part of {found[_KEY]}")
            if ending in self.endings:
                try:
                    found[ending] = _read_as(ending)[1](sample[offset : offset + nbytes])
                except (ValueError, *values.DAMAGE) as error:
                    raise ValueError(f"{name} cannot be read: {error}") from None
        return {field: found[field] for field in self.fields}


def _read_as(ending: str) -> tuple[str, Reader]:
    """Return the type of a field and what reads it, by the last part of its ending, as in WebDataset."""
    return _READERS.get(ending.rpartition(".")[2], _OTHER)


def _ending(name: str) -> str:
    """Return the field that a member is; empty if it is part of no sample."""
    stem, _, ending = name.rpartition("/")[2].partition(".")
    return ending.lower() if stem else ""


def _indexed(path: str, version: FileVersion) -> _TarIndex:
    """Return a shard's index, from the cache if it was walked through before."""
    return known(_TarIndex, partial(_walked, path, version), version, _FORMAT, path)


def _walked(path: str, version: FileVersion) -> _TarIndex:
    """Walk through a shard."""
    samples: list[_Sample] = []
    endings: list[set[str]] = []
    seen: set[tuple[int, str]] = set()
    last, end = (0, ""), 0
    for member in members_of(path, version):
        name, offset, _, tar = member
        ending = _ending(name)
        if offset < end and (ending or offset >= 0):
            raise BadSetting(
                f"{path}: {name} is a link, so its sample does not lie in one piece; pack the files again with "
                "--dereference --hard-dereference"
            )
        if ending:
            if (tar, key_of(name)) != last:
                last = tar, key_of(name)
                samples.append(_Sample(last[1], end, end))
                endings.append(set())
                if last in seen:
                    raise BadSetting(
                        f"{path}: members of the sample {last[1]} lie apart, the last is {name}: pack them "
                        "one after another (tar --sort=name)"
                    )
                seen.add(last)
            if ending in endings[-1]:
                raise BadSetting(f"{path}: the sample {last[1]} has two members that end in .{ending}")
            endings[-1].add(ending)
            samples[-1] = samples[-1]._replace(end=end_of(member))
        end = max(end, end_of(member))
    if end and not samples:  # not one that is empty, among others
        raise BadSetting(f"{path}: no member has a name such as key.jpg, so it holds no sample")
    return _TarIndex(samples, sorted(set[str].intersection(*endings)) if endings else [])
