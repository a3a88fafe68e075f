"""Files of tables: opened where they lie, their schemas compared, and a part of one as a file that Arrow reads."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any

from penstock.contracts import Place
from penstock.errors import BadSetting, ReadFailed
from penstock.fingerprint.files import FileVersion
from penstock.sources.records.files import is_remote, read

pa: Any = import_module("pyarrow")


class RemoteFile(io.RawIOBase):
    """An object of a store as a file; what is asked for is fetched by Penstock's reader.

    Args:
        url: The object.
        version: Its version; another one is not read.
    """

    def __init__(self, url: str, version: FileVersion) -> None:
        self._whole = Place(url, 0, version.nbytes, version.etag)
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
        data = read(self._whole._replace(offset=self._at, nbytes=left if nbytes < 0 else min(nbytes, left)))
        self._at += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()


def opened(path: str, version: FileVersion) -> Any:
    """Return what Arrow opens: a path, or a file of an object store."""
    return pa.PythonFile(RemoteFile(path, version), "r") if is_remote(path) else path


def opened_for_datasets(path: str, version: FileVersion) -> tuple[Any, Any]:
    """Return what ``pyarrow.dataset`` opens, and its file system, if it is one."""
    files: Any = import_module("pyarrow.fs")
    return opened(path, version), None if is_remote(path) else files.LocalFileSystem()


def same_schema(paths: Sequence[str], schemas: Iterable[Any]) -> Any:
    """Return the schema that all files have.

    Raises:
        BadSetting: one has another.
    """
    every = iter(schemas)
    first = next(every)
    for path, schema in zip(paths[1:], every, strict=True):
        if not schema.equals(first):
            raise BadSetting(f"{path} has other columns than {paths[0]}: {_difference(first, schema)}")
    return first


def _difference(one: Any, other: Any) -> str:
    here = {field.name: str(field.type) for field in other}
    for field in one:
        if field.name not in here:
            return f"{field.name!r} is missing"
        if here[field.name] != str(field.type):
            return f"{field.name!r} is {here[field.name]} there, and {field.type}"
    more = [name for name in here if name not in one.names]
    return f"{more[0]!r} is new" if more else "their order, or whether they may have nulls"


def fields_of(table: Any, paths: Iterable[Sequence[str]]) -> Iterator[Any]:
    """Yield columns of a table, or fields in their structs, as single arrays."""
    compute: Any = import_module("pyarrow.compute")
    for name, *fields in paths:
        column = table.column(name)
        if fields:
            column = compute.struct_field(column, fields)
        chunks = column.chunks if hasattr(column, "chunks") else [column]
        yield chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks) if chunks else pa.array([], column.type)


def failed(where: str, path: str, error: Exception) -> ReadFailed:
    """Return the error for what Arrow cannot read."""
    return ReadFailed(f"{where} cannot be read, or is damaged: {error}", path)
