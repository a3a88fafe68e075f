"""Nulls are refused where they lie, or filled as asked; they never become 0 or floats in silence."""

from __future__ import annotations

import datetime as dt
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.sources.tables.files import written

from penstock import RecordSource
from penstock.errors import BadSetting, SourceError

PAIRED = pa.binary(2)
PAIR = pa.list_(pa.int16(), 2)
STRUCT = pa.struct({"a": pa.int32(), "b": pa.struct({"c": pa.string()})})
COLUMNS: dict[str, tuple[Any, Any, Any]] = {
    "int": (pa.array([0, 1, None, 3]), -1, [0, 1, -1, 3]),
    "half": (pa.array([0, 1, None, 3], pa.float16()), 0.5, [0, 1, 0.5, 3]),
    "flag": (pa.array([True, True, None, False]), False, [True, True, False, False]),
    "text": (pa.array(["a", "", None, "d"]), "?", ["a", "", "?", "d"]),
    "bytes": (pa.array([b"a", b"", None, b"d"], pa.large_binary()), b"?", [b"a", b"", b"?", b"d"]),
    "hash": (pa.array([b"ab", b"c-", None, b"gh"], PAIRED), b"--", [[*x] for x in (b"ab", b"c-", b"--", b"gh")]),
    "when": (pa.array([0, 1, None, 3], pa.timestamp("us")), dt.datetime(1970, 1, 1, 0, 0, 1), [0, 1, 10**6, 3]),
    "day": (pa.array([0, 1, None, 3], pa.date32()), dt.date(1970, 1, 3), [0, 1, 2, 3]),
    "pair": (pa.array([[0, 1], [2, 3], [4, None], [6, 7]], PAIR), 9, [[0, 1], [2, 3], [4, 9], [6, 7]]),
    "list": (pa.array([[], [1, 2], [None, 3], [4]]), 9, [[0, 0], [1, 2], [9, 3], [4, 0]]),
    "struct.a": (pa.array([{"a": 0}, {"a": 1}, None, {"a": 3}], STRUCT), -1, [0, 1, -1, 3]),
    "struct.b.c": (
        pa.array([{"b": {"c": "a"}}, {"b": {"c": ""}}, {"b": None}, {"b": {"c": "d"}}], STRUCT),
        "?",
        ["a", "", "?", "d"],
    ),
}  # fmt: skip


def batch_of(path: str, **options: Any) -> Any:
    with closing(RecordSource(path, shuffle=False, ragged="pad", **options)) as source:
        (batch,) = source
    return batch


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
@pytest.mark.parametrize("name", COLUMNS)
def test_a_null_is_refused_where_it_lies_and_filled_as_asked(tmp_path, name, ending):
    column, fill, wanted = COLUMNS[name]
    table = pa.table({name.partition(".")[0]: column, "id": [0, 1, 2, 3]})
    table = pa.concat_tables([table.slice(0, 1), table.slice(1), table.slice(3)])
    path = written(tmp_path / f"x.{ending}", table, [1, 4])
    group = "row group 1" if ending == "parquet" else r"record batch at byte [\d,]+"
    with pytest.raises(
        SourceError, match=rf"x\.{ending}, {group}: column '{name}' has 1 nulls, the first in row 1: "
    ):
        batch_of(path, columns=[name])
    for given in (fill, {name: fill}):
        batch = batch_of(path, columns=[name, "id"], fill=given)
        found = batch[name]
        if isinstance(found, np.ndarray):
            found = found.astype(np.int64).tolist() if found.dtype.kind == "M" else found.tolist()
        assert found == [*wanted, wanted[-1]]
    if name == "int":
        assert batch[name].dtype == np.int64


def test_a_filter_leaves_nulls_out_and_the_rest_is_as_it_was(tmp_path):
    table = pa.table({"id": range(6), "x": [1, None, 3, None, None, 6]})
    path = written(tmp_path / "x.parquet", table, 3)
    batch = batch_of(path, filter="x != None")
    assert batch["x"].tolist() == [1, 3, 6] and batch["id"].tolist() == [0, 2, 5]
    with pytest.raises(
        SourceError, match=r"row group 1, rows that the filter leaves: .* 1 nulls, the first in row 0"
    ):
        batch_of(path, filter="id in [0, 4]")


@pytest.mark.parametrize("kind", [pa.list_(pa.int8()), pa.list_(pa.int8(), 2), pa.list_(pa.list_(pa.int8(), 1))])
def test_a_null_in_place_of_a_list_cannot_be_filled_and_says_what_helps(tmp_path, kind):
    row = (
        [[1], [2]] if pa.types.is_list(kind.value_type) or pa.types.is_fixed_size_list(kind.value_type) else [1, 2]
    )
    table = pa.table({"id": range(3), "x": pa.array([row, None, row], kind)})
    path = written(tmp_path / "x.parquet", table)
    match = (
        r"row group 0: column 'x' has 1 nulls in place of lists, .* first in row 1: .* with filter=\"x != None\""
    )
    with pytest.raises(SourceError, match=match):
        batch_of(path, fill=0)
    batch = batch_of(path, filter="x != None")
    assert batch["x"].tolist() == [row, row] and batch["id"].tolist() == [0, 2]


@pytest.mark.parametrize(
    ("column", "fill"),
    [
        (pa.array([1, None]), 0.5),  # as it was found: it became 0
        (pa.array([1, None]), float("nan")),
        (pa.array([1, None]), float("inf")),
        (pa.array([1, None]), "1"),
        (pa.array([1, None], pa.uint8()), -1),
        (pa.array([1, None], pa.int8()), 128),
        (pa.array([1, None], pa.timestamp("s")), "today"),
        (pa.array(["a", None]), 5),
        (pa.array([b"ab", None], pa.binary(2)), b"a"),
        (pa.array([True, None]), "no"),
    ],
)
def test_a_fill_that_a_column_cannot_hold_is_refused(tmp_path, column, fill):
    path = written(tmp_path / "x.parquet", pa.table({"x": column}))
    with pytest.raises(BadSetting, match=r"fill=.* does not fit column 'x' of type"):
        batch_of(path, fill=fill)


def test_a_fill_of_a_column_that_is_not_read_is_refused(tmp_path):
    path = written(tmp_path / "x.parquet", pa.table({"x": [1, None], "y": [1, 2]}))
    with pytest.raises(BadSetting, match=r"fill= names 'x', which is not read; columns are y"):
        RecordSource(path, columns=["y"], fill={"x": 0})
