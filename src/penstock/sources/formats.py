"""The formats of data sets that are named in a text, each by a prefix or a suffix, and what opens them.

A new format is a file, and a line here by which ``share``, ``penstock feed`` and ``ImageSource`` find it.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, NamedTuple, cast, get_type_hints

from penstock.basics.packages import require
from penstock.contracts import FieldRecords, Tables
from penstock.errors import BadSetting

SOURCES = {
    "images:": "penstock.sources.images.image_source:ImageSource",
    "tokens:": "penstock.sources.tokens.token_source:TokenSource",
    "packed:": "penstock.sources.packed.packed_source:PackedSource",
    "records:": "penstock.sources.rows.record_source:RecordSource",
}
"""By prefix: a source that takes a path or a pattern, and keywords."""

_RECORDS_BY_SUFFIX = {".tar": "penstock.sources.records.shards:ShardRecords"}
"""What takes several files of records, and the endings of samples."""
_RECORDS_BY_MARK = {
    "://": "penstock.sources.records.files:BucketRecords",
    "": "penstock.sources.records.files:FolderRecords",
}
"""By what stands in its path: what takes one folder of records, and the endings of samples."""
_FIELD_RECORDS_BY_PREFIX = {
    "mds:": "penstock.sources.records.mds:MdsRecords",
    "litdata:": "penstock.sources.records.litdata:LitDataRecords",
}
"""What takes one folder of samples with fields."""
_FIELD_RECORDS_BY_SUFFIX = {".tar": "penstock.sources.records.tar_samples:TarSamples"}
"""What takes several files of samples with fields."""
_TABLES_BY_PREFIX = {
    "hf:": "penstock.sources.tables.arrow:saved_tables",
    "packed:": "penstock.sources.tables.packed:PackedTables",
}
"""What takes one folder of tables."""
_TABLES_BY_SUFFIX = {
    ".parquet": "penstock.sources.tables.parquet:ParquetTables",
    ".arrow": "penstock.sources.tables.arrow:ArrowTables",
}
"""What takes several files of tables."""
_OF_THE_FEED = {"segments", "seed", "shard"}


class NamedSource(NamedTuple):
    """A source that a text names."""

    text: str  # such as ``images:photos``
    make: Callable[..., Any]  # what makes the source
    path: str  # what stands behind the prefix

    @property
    def options(self) -> dict[str, Any]:
        """The source's own keywords, and their types."""
        kinds = get_type_hints(self.make.__init__)
        return {name: kinds[name] for name in self._parameters()}

    def open(self, *, segments: int | None, seed: int, **options: Any) -> Any:
        """Make the source."""
        parameters = self._parameters()
        for name in options.keys() - parameters.keys():
            near = difflib.get_close_matches(name, parameters, 1)
            known = f"did you mean {near[0]}?" if near else f"it has {', '.join(parameters)}"
            raise BadSetting(f"{self.text} has no option {name!r}; {known}")
        for name, parameter in parameters.items():
            if parameter.default is Parameter.empty and name not in options:
                raise BadSetting(f"{self.text} needs {name}=..., as penstock.{self.make.__name__} does")
        return self.make(self.path, segments=segments, seed=seed, **options)

    def _parameters(self) -> dict[str, Parameter]:
        named = signature(self.make).parameters
        return {
            name: each
            for name, each in named.items()
            if each.kind is Parameter.KEYWORD_ONLY and name not in _OF_THE_FEED
        }


def named_source(text: object) -> NamedSource | None:
    """Return the source that a text names; None if it names none."""
    prefix = next((prefix for prefix in SOURCES if isinstance(text, str) and text.startswith(prefix)), None)
    if prefix is None:
        return None
    path = str(text).removeprefix(prefix)
    if not path:
        raise BadSetting(f"{text} names nothing: write {prefix}PATH")
    return NamedSource(str(text), what_opens(SOURCES[prefix]), os.path.expanduser(path))


def records_of(named: Any, suffixes: Sequence[str]) -> Any:
    """Return the ``Records`` of a folder, of an object store's prefix, or of one or several files that hold them.

    ``named`` is one path, URL or pattern, or a list of them; wanted samples end in ``suffixes``, in small letters.
    """
    several = _several(named)
    if opener := _by_suffix(several, _RECORDS_BY_SUFFIX):
        return what_opens(opener)(several, suffixes)
    if not isinstance(named, (str, Path)) or not str(named):
        raise BadSetting(f"images={named!r}: give one folder, or tar files")
    mark = next(mark for mark in _RECORDS_BY_MARK if mark in str(named))
    return what_opens(_RECORDS_BY_MARK[mark])(named, suffixes)


def has_prefix(named: Any) -> bool:
    """Whether a text names a format whose samples always have fields."""
    return isinstance(named, str) and named.startswith((*_FIELD_RECORDS_BY_PREFIX,))


def field_records_of(named: Any) -> FieldRecords | None:
    """Return the ``FieldRecords`` of a folder that a prefix names the format of, or of files; None of others."""
    opener, there = _known(named, _FIELD_RECORDS_BY_PREFIX, _FIELD_RECORDS_BY_SUFFIX)
    return what_opens(opener)(there) if opener else None


def tables_of(named: Any, cache: Any = None) -> Tables | None:
    """Return the ``Tables`` of a folder that a prefix names the format of, or of files; None of others."""
    opener, there = _known(named, _TABLES_BY_PREFIX, _TABLES_BY_SUFFIX)
    if not opener:
        return None
    require("RecordSource of tables", "columns", "pyarrow")
    from penstock.sources.records.shard_files import found

    return what_opens(opener)(there if isinstance(there, str) else found(there), cache)


def _known(named: Any, by_prefix: dict[str, str], by_suffix: dict[str, str]) -> tuple[str, Any]:
    """Return what opens a folder or files, and the folder without its prefix, or the files."""
    for prefix, opener in by_prefix.items():
        if isinstance(named, str) and named.startswith(prefix):
            return opener, named.removeprefix(prefix)
    several = _several(named)
    return _by_suffix(several, by_suffix), several


def _several(named: Any) -> list[Any]:
    return cast("list[Any]", [*named] if isinstance(named, (list, tuple)) else [named])


def _by_suffix(several: list[Any], openers: dict[str, str]) -> str:
    """Return what opens files that all end in one way; empty if they do not."""
    fitting = (to for suffix, to in openers.items() if all(str(each).endswith(suffix) for each in several))
    return next(fitting, "") if several else ""


def what_opens(place: str) -> Callable[..., Any]:
    """Return what stands at ``module:name``, which is imported now."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
