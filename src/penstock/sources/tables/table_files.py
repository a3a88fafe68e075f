"""Files of tables: opened where they lie, their schemas compared, and a part of one as a file that Arrow reads."""

from __future__ import annotations

import io
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from penstock.contracts import Ids, Place
from penstock.errors import BadSetting, ReadFailed
from penstock.fingerprint.file_versions import FileVersion
from penstock.io.cache.admission import Admitted
from penstock.io.cache.cache import Cache
from penstock.io.cache.tiers import Tiers
from penstock.sources.records.cached import BYTES, CachedBlock
from penstock.sources.records.files import is_remote, read
from penstock.sources.records.shard_files import ShardFiles

pa: Any = import_module("pyarrow")


_PART_BYTES = 1 << 20
"""About so much is read at once."""
Fetch = Callable[[Place], bytes]
"""Reads a part of an object."""


class OwnOfThreads(threading.local):
    """What each thread has for itself; in another process, nothing."""

    def __reduce__(self) -> Any:
        return OwnOfThreads, ()


class CachedParts:
    """Fetches parts of objects, and keeps them in a cache; any thread may.

    The cache's memory is not used, as rows stay in memory; ``nbytes`` is the size of all objects.
    """

    def __init__(self, cache: Cache, root: str, nbytes: int) -> None:
        self._layout = cache.layout(root, BYTES, None)
        parts = max(1, nbytes // _PART_BYTES)
        self._admitted = Admitted.of(self._layout, parts, nbytes / parts)
        self._own = OwnOfThreads()

    def __call__(self, place: Place) -> bytes:
        if not hasattr(self._own, "tiers"):
            self._own.tiers = Tiers(self._layout)
        kept = CachedBlock(self._own.tiers, BYTES, [place], self._admitted)
        data = kept.encoded(0)
        kept.keep(0, data)
        kept.finish()
        return data


class RemoteFile(io.RawIOBase):
    """An object of a store as a file; another version than ``version`` is not read."""

    def __init__(self, url: str, version: FileVersion, fetch: Fetch) -> None:
        self._whole = Place(url, 0, version.nbytes, version.etag)
        self._fetch = fetch  # reads a part of it
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        assert self._whole.nbytes is not None
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._whole.nbytes}[whence]
        return self._at

    def read(self, nbytes: int = -1, /) -> bytes:
        assert self._whole.nbytes is not None
        left = max(0, self._whole.nbytes - self._at)
        data = self._fetch(self._whole._replace(offset=self._at, nbytes=left if nbytes < 0 else min(nbytes, left)))
        self._at += len(data)
        return data


def opened(path: str, version: FileVersion, fetch: Fetch) -> Any:
    """Return what Arrow opens: a path, or a file of an object store."""
    return pa.PythonFile(RemoteFile(path, version, fetch), "r") if is_remote(path) else path


def fetching(cache: Cache | None, root: str, paths: Sequence[str], versions: Sequence[FileVersion]) -> Fetch:
    """Return what reads parts of files."""
    if cache is None:
        return read
    cache.refuse_pixels("tables")
    if not all(map(is_remote, paths)):
        raise BadSetting(
            "cache= keeps what is read of an object store (s3://...), and these files are here: leave it out"
        )
    return CachedParts(cache, root, sum(version.nbytes for version in versions))


class TableFiles(ShardFiles):
    """Files whose rows lie in groups, file after file. Attributes are those of ``Tables``.

    Parts of objects of a store are kept in ``cache``; None for nowhere.
    """

    def __init__(self, paths: Sequence[str], cache: Cache | None = None) -> None:
        super().__init__(paths)
        if len(paths) == 1:
            self.root = paths[0]
        self._fetch = fetching(cache, self.root, paths, self._versions)

    def _hold(self, kind: str, files: str, schemas: Iterable[Any], groups: Sequence[tuple[int, int]]) -> None:
        """Take in what the files hold: the schema of each, and the file and rows of each group.

        ``kind`` is what their groups are, and ``files`` what they are, for a person.
        """
        paths = self._paths
        self.schema, self.unlike = _alike(paths, schemas)
        self._folders = {part for path in paths for part in os.path.dirname(path).split("/") if "=" in part}
        if not groups:
            raise BadSetting(f"{paths[0]}{' and others' * (len(paths) > 1)}: no row lies there")
        file_of, rows = np.array(groups, np.int64).T
        self.group_rows: Ids = rows.copy()
        its_rows: list[int] = [int(rows[file_of == i].sum()) for i in range(len(paths))]
        self.parts = [*zip(map(os.path.basename, paths), its_rows, strict=True)]
        many = f"{len(paths):,} {files}" if len(paths) > 1 else paths[0]
        self.description = f"{len(groups):,} {kind} of {many}"

    def check_folders(self, named: Any) -> None:
        """Refuse columns of Hive's layout, which no file has; folders that ``named`` itself names are none.

        ``named`` is the path or pattern of the files, or several.
        """
        several = [named] if isinstance(named, (str, Path)) else named
        asked = {part for each in several for part in os.path.abspath(each).split("/")}  # such as a run's lr=0.1
        held = {part.partition("=")[0] for part in self._folders - asked} - {*self.schema.names}
        if held:
            raise BadSetting(
                f"{self._paths[0]}: folders (NAME=VALUE) hold {', '.join(sorted(held))}, which is not read "
                "from there: write it into the files, or pass columns=, a list of those of the files"
            )


def opened_for_datasets(path: str, version: FileVersion, fetch: Fetch) -> tuple[Any, Any]:
    """Return what ``pyarrow.dataset`` opens, and its file system, if it is one."""
    files: Any = import_module("pyarrow.fs")
    return opened(path, version, fetch), None if is_remote(path) else files.LocalFileSystem()


def _alike(paths: Sequence[str], schemas: Iterable[Any]) -> tuple[Any, dict[str, str]]:
    """Return the schema of the columns that all files have alike, and what each other column is in which files."""
    first, *others = schemas
    kinds: dict[str, Any] = {field.name: field.type for field in first}
    unlike = dict[str, str]()
    for path, schema in zip(paths[1:], others, strict=True):
        if schema.equals(first):
            continue
        its: dict[str, Any] = {field.name: field.type for field in schema}
        counts = Counter[str](schema.names)
        for name in dict.fromkeys([*kinds, *its]):
            if difference := _difference(kinds.get(name), its.get(name), counts[name]):
                unlike.setdefault(name, f"{path} has other columns than {paths[0]}: {name!r} {difference}")
    return pa.schema([field for field in first if field.name not in unlike], first.metadata), unlike


def _difference(kind: Any, other: Any, count: int) -> str:
    """Return how a column differs there; types are None where it is not."""
    if other is None or kind is None:
        return "is missing" if other is None else "is new"
    return f"comes {count} times there" if count > 1 else "" if other == kind else f"is {other} there, and {kind}"


def field_of(table: Any, path: Sequence[str]) -> Any:
    """Return a column of a table, or a field in its structs, as a single array."""
    name, *fields = path
    column = table.column(name)
    if fields:
        column = import_module("pyarrow.compute").struct_field(column, fields)
    chunks = column.chunks if hasattr(column, "chunks") else [column]
    wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(column.type)
    if len(chunks) > 1 and wide is not None:  # as for more than 2 GiB, which those of 32 bits do not hold
        chunks = [chunk.cast(wide) for chunk in chunks]
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks) if chunks else pa.array([], column.type)


def failed(where: str, path: str, error: Exception, column: str = "") -> ReadFailed:
    """Return the error for what Arrow cannot read."""
    return ReadFailed(
        f"{where} cannot be read, or is damaged: {f'column {column!r}: ' * bool(column)}{error}", path
    )
