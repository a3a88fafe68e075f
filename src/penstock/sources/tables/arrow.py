"""Arrow IPC files and streams as tables, and folders of them that Hugging Face's ``save_to_disk`` wrote.

Format: Arrow's "Serialization and Interprocess Communication" and ``Message.fbs``; FlatBuffers' "Internals".
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from penstock.contracts import Ids, Place
from penstock.errors import BadSetting, ReadFailed
from penstock.fingerprint.file_versions import FileVersion
from penstock.io.cache.cache import Cache
from penstock.sources.records.files import is_remote, read, read_ahead, version_of
from penstock.sources.records.shard_files import known
from penstock.sources.tables.table_files import TableFiles, failed, opened, pa

_MAGIC, _MAGIC_AT_END = b"ARROW1\0\0", b"ARROW1"
_CONTINUES = b"\xff\xff\xff\xff"
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_HEADER_TYPE, _HEADER, _BODY_BYTES = 1, 2, 3
"""Fields of a ``Message``, by number."""
_ROWS, _NODES = 0, 1
"""Fields of a ``RecordBatch``."""
_DICTIONARIES, _BATCHES = 2, 3
"""Fields of a ``Footer``."""
_HAS_DICTIONARIES = "{} has dictionaries, which lie apart from the rows: write it as Parquet"
_FORMAT = 2


class _Batch(NamedTuple):
    """A record batch: where its message begins, its size with the body, and its rows."""

    offset: int
    nbytes: int
    rows: int


class _ArrowIndex(NamedTuple):
    """What a file holds: its schema, as it is serialized, and its batches."""

    schema: bytes
    batches: list[_Batch]


class ArrowTables(TableFiles):
    """The record batches of Arrow files that have rows, file after file. Attributes are those of ``Tables``."""

    def __init__(self, paths: Sequence[str], cache: Cache | None = None) -> None:
        super().__init__(paths, cache)
        indexes = self._each(_indexed)
        self._groups = [(i, batch) for i, each in enumerate(indexes) for batch in each.batches if batch.rows]
        groups = [(i, batch.rows) for i, batch in self._groups]
        self._schemas = [*map(_schema, paths, indexes)]
        self._hold("record batches", "Arrow files", map(_without_views, self._schemas), groups)

    def group_bytes(self, column: str) -> Ids:
        """All columns have equal parts, as nothing but the batch's size is known."""
        return np.array([batch.nbytes // len(self._schemas[file]) for file, batch in self._groups], np.int64)

    def ranges(self, column: str) -> None:
        """Arrow files have no statistics."""

    def may_hold(self, expression: Any) -> list[bool]:
        return [True] * len(self._groups)

    def read(self, group: int, columns: Sequence[str]) -> Any:
        file, batch = self._groups[group]
        path, name = self._paths[file], ""
        try:
            data = self._fetch(Place(path, batch.offset, batch.nbytes, self._versions[file].etag))
            self._check([file])
            whole = pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(data)), self._schemas[file])
            asked = {part for each in columns for part in accumulate(each.split("."), "{}.{}".format)}
            found = whole.select([each for each in self.schema.names if each in asked])
            for name in found.schema.names:
                found.column(name).validate(full=True)
            name, wanted = "", _without_views(found.schema)
            table = pa.Table.from_batches([found])
            return table if wanted.equals(found.schema) else table.cast(wanted)
        except (pa.ArrowException, OSError) as error:
            raise failed(self.where(group), path, error, name) from None
        except ReadFailed:
            self._check([file])  # which explains it
            raise

    def where(self, group: int) -> str:
        file, batch = self._groups[group]
        return f"{self._paths[file]}, record batch at byte {batch.offset:,}"


def saved_tables(folder: str, cache: Cache | None = None) -> ArrowTables:
    """Return the tables of a folder that ``save_to_disk`` wrote; errors are those of ``saved_files``."""
    return ArrowTables(saved_files(folder), cache)


def saved_files(folder: str) -> list[str]:
    """Return the Arrow files of a folder that ``datasets.Dataset.save_to_disk`` wrote, in their order."""
    path = folder.rstrip("/") if is_remote(folder) else os.path.abspath(os.path.expanduser(folder))
    if names := _json(f"{path}/dataset_dict.json", {}).get("splits"):
        splits = ", ".join(f"hf:{folder}/{name}" for name in names)
        raise BadSetting(f"hf:{folder} holds several data sets: name one of {splits}")
    state = _json(f"{path}/state.json")
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise BadSetting(
            f"hf:{folder} has rows picked by indices: write it again by flatten_indices().save_to_disk()"
        )
    if not (files := [f"{path}/{each['filename']}" for each in state.get("_data_files", ())]):
        raise BadSetting(f"hf:{folder} holds no data: its state.json names no file")
    return files


def _json(path: str, otherwise: Any = None) -> Any:
    """Return what a file says; if it cannot be read, something else, unless that is None."""
    try:
        version = version_of(path)
        return json.loads(read(Place(path, 0, version.nbytes, version.etag)))
    except ReadFailed as error:
        if otherwise is not None:
            return otherwise
        raise BadSetting(
            f"hf:{error}; give the folder that save_to_disk() wrote, or the .arrow files themselves"
        ) from None
    except ValueError as error:
        raise BadSetting(f"{path} is damaged: {error}") from None


def _schema(path: str, index: _ArrowIndex) -> Any:
    try:
        return pa.ipc.read_schema(pa.py_buffer(index.schema))
    except (pa.ArrowException, OSError) as error:
        raise BadSetting(f"{path} is damaged: {error}") from None


def _without_views(schema: Any) -> Any:
    """Return a schema in which texts and bytes, as polars writes them, are of the types that Arrow filters."""

    def plain(field: Any) -> Any:
        if pa.types.is_struct(field.type):
            return field.with_type(pa.struct(map(plain, field.type)))
        kind = wide.get(field.type)
        return field if kind is None else field.with_type(kind).with_nullable(True)

    wide = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    return pa.schema(map(plain, schema), schema.metadata)


def _indexed(path: str, version: FileVersion) -> _ArrowIndex:
    return known(_ArrowIndex, partial(_walked, path, version), version, "arrow", _FORMAT, path)


def _walked(path: str, version: FileVersion) -> _ArrowIndex:
    """Walk through the messages of a file, of which only the headers are read."""
    pread = read_ahead(Place(path, 0, version.nbytes, version.etag))
    begins = pread(min(version.nbytes, len(_MAGIC) + 4), 0)
    if begins[: len(_MAGIC)] == _MAGIC and begins[len(_MAGIC) :] != _CONTINUES:
        return _footed(path, version)
    schema, batches = b"", list[_Batch]()
    for kind, offset, nbytes, body, rows in _messages(path, version.nbytes, pread):
        if kind == _SCHEMA:
            schema = read(Place(path, offset, nbytes, version.etag))
        elif kind == _DICTIONARY:
            raise BadSetting(_HAS_DICTIONARIES.format(path))
        elif kind == _BATCH:
            batches.append(_Batch(offset, nbytes + body, rows))
    if not schema:
        raise BadSetting(f"{path} is no Arrow file: no schema stands at its beginning")
    return _ArrowIndex(schema, batches)


def _footed(path: str, version: FileVersion) -> _ArrowIndex:
    """Return what the end of a file says of it: polars puts no message of the schema at its beginning."""
    end, batches = version.nbytes - len(_MAGIC_AT_END), list[_Batch]()
    damaged = BadSetting(f"{path} is no Arrow file, or is damaged: no message begins at byte {len(_MAGIC)}")
    try:
        nbytes, magic = struct.unpack("<i6s", read(Place(path, end - 4, 4 + len(_MAGIC_AT_END), version.etag)))
        if magic != _MAGIC_AT_END or not 0 < nbytes < end:
            raise damaged
        footer = read(Place(path, end - 4 - nbytes, nbytes, version.etag))
        if [*_blocks(footer, _DICTIONARIES)]:
            raise BadSetting(_HAS_DICTIONARIES.format(path))
        for offset, header, body in _blocks(footer, _BATCHES):
            if min(offset, header, body) < 0 or offset + header + body > end:
                raise damaged
            kind, its_body, rows = _read(read(Place(path, offset + 8, header - 8, version.etag)))
            if (kind, its_body) != (_BATCH, body):
                raise damaged
            batches.append(_Batch(offset, header + body, rows))
        schema = pa.ipc.open_file(opened(path, version, read)).schema.serialize().to_pybytes()
    except (pa.ArrowException, OSError, struct.error, IndexError, ReadFailed):
        raise damaged from None
    return _ArrowIndex(schema, batches)


def _blocks(footer: bytes, field: int) -> Iterator[tuple[int, int, int]]:
    """Yield offset, header with its prefix, and body of each message that a footer names, in bytes."""
    if at := _field(footer, _unpack(footer, 0, "<I"), field):
        at += _unpack(footer, at, "<I")
        for number in range(_unpack(footer, at, "<I")):
            yield struct.unpack_from("<qi4xq", footer, at + 4 + 24 * number)


def _messages(path: str, end: int, pread: Callable[[int, int], bytes]) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield kind, offset, bytes without and of the body, and the rows of each message."""
    is_file = pread(min(end, len(_MAGIC)), 0) == _MAGIC  # not a stream, which may end with any message
    at = len(_MAGIC) if is_file else 0
    while at + 8 <= end:
        marker, nbytes = struct.unpack("<4sI", pread(8, at))
        if marker != _CONTINUES:
            raise BadSetting(f"{path} is no Arrow file, or is damaged: no message begins at byte {at:,}")
        if not nbytes:
            return
        if at + 8 + nbytes > end:
            break
        try:
            kind, body, rows = _read(pread(nbytes, at + 8))
        except (struct.error, IndexError):
            raise BadSetting(f"{path} is damaged: the message at byte {at:,} makes no sense") from None
        if body < 0 or at + 8 + nbytes + body > end:
            break
        yield kind, at, 8 + nbytes, body, rows
        at += 8 + nbytes + body
    if at < end or is_file:
        raise BadSetting(f"{path} was cut short: the message at byte {at:,} goes on behind its end at {end:,}")


def _read(message: bytes) -> tuple[int, int, int]:
    """Return a message's kind, the size of its body, and of a batch its rows, which its first column has too."""
    root, rows = _unpack(message, 0, "<I"), 0
    kind = _number(message, root, _HEADER_TYPE, "<B")
    if kind == _BATCH:
        at = _field(message, root, _HEADER)
        batch = at + _unpack(message, at, "<I")
        rows, at = _number(message, batch, _ROWS, "<q"), _field(message, batch, _NODES)
        nodes = at + _unpack(message, at, "<I") if at else 0
        if rows < 0 or (nodes and _unpack(message, nodes, "<I") and _unpack(message, nodes + 4, "<q") != rows):
            raise IndexError
    return kind, _number(message, root, _BODY_BYTES, "<q"), rows


def _field(data: bytes, table: int, number: int) -> int:
    """Return where a field of a table lies; 0 if it is not there."""
    fields = table - _unpack(data, table, "<i")
    if 4 + 2 * number >= _unpack(data, fields, "<H"):
        return 0
    offset = _unpack(data, fields + 4 + 2 * number, "<H")
    return table + offset if offset else 0


def _number(data: bytes, table: int, number: int, kind: str) -> int:
    at = _field(data, table, number)
    return _unpack(data, at, kind) if at else 0


def _unpack(data: bytes, at: int, kind: str) -> int:
    if at < 0:
        raise IndexError
    return struct.unpack_from(kind, data, at)[0]
