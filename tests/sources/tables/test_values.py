"""Values of all types that Arrow has, from Parquet and Arrow files, are those that were written, row by row."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.sources.tables.files import KINDS, written

from penstock import RecordSource
from penstock.errors import BadSetting, SourceError
from penstock.sources.tables.table_files import field_of

UNITS = ("s", "ms", "us", "ns")
NUMBERS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.date32(), pa.date64()),
    *(pa.timestamp(unit, zone) for unit in UNITS for zone in (None, "Europe/Berlin")),
    *(pa.duration(unit) for unit in UNITS),
]
TEXTS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]
_folders = itertools.count()


class Sevens(pa.ExtensionType):
    """A type of somebody's own."""

    def __init__(self) -> None:
        super().__init__(pa.int32(), "tests.sevens")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: bytes) -> Sevens:
        return cls()


def numpy_type(kind: Any) -> np.dtype[Any]:
    if pa.types.is_date(kind):
        return np.dtype("M8[D]" if pa.types.is_date32(kind) else "M8[ms]")
    if pa.types.is_temporal(kind):
        return np.dtype(f"{'m' if pa.types.is_duration(kind) else 'M'}8[{kind.unit}]")
    return np.dtype(kind.to_pandas_dtype())


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Python's values of a type, or integers of a time's."""
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_floating(kind):
        return st.floats(width=kind.bit_width, allow_nan=False)
    if pa.types.is_integer(kind):
        info = np.iinfo(kind.to_pandas_dtype())
        return st.integers(int(info.min), int(info.max))
    if pa.types.is_date64(kind):
        return st.integers(-(10**4), 10**4).map((86_400_000).__mul__)
    if pa.types.is_date32(kind):
        return st.integers(-(10**4), 10**4)
    if pa.types.is_temporal(kind):
        return st.integers(-(10**9), 10**9)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return st.text(max_size=9)
    if pa.types.is_fixed_size_binary(kind):
        return st.binary(min_size=kind.byte_width, max_size=kind.byte_width)
    if pa.types.is_fixed_size_list(kind):
        return st.lists(values(kind.value_type), min_size=kind.list_size, max_size=kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return st.lists(values(kind.value_type), max_size=4)
    return st.binary(max_size=9)


def fixed(inner: Any) -> Any:
    return st.tuples(inner, st.integers(1, 3)).map(lambda drawn: pa.list_(*drawn))


def lists(inner: Any) -> Any:
    return st.one_of(inner.map(pa.list_), inner.map(pa.large_list))


numbers = st.sampled_from(NUMBERS)
items = st.one_of(numbers, fixed(numbers))
kinds = st.one_of(
    items, fixed(fixed(numbers)), lists(items), st.sampled_from(TEXTS), st.integers(1, 5).map(pa.binary)
)


def arrow(kind: Any, rows: list[Any], chunks: list[int]) -> Any:
    """A chunked array, each chunk of which is a slice of a longer one."""
    parts: list[Any] = []
    edges = sorted({0, len(rows), *(at for at in chunks if at < len(rows))})
    for start, stop in itertools.pairwise(edges):
        parts.append(pa.array([*rows[:1], *rows[start:stop], *rows[:1]], kind)[1 : 1 + stop - start])
    return pa.chunked_array(parts, kind)


def expected(kind: Any, row: Any) -> Any:
    if isinstance(row, (str, bytes)):
        return np.frombuffer(row, np.uint8) if pa.types.is_fixed_size_binary(kind) else row
    shape: tuple[int, ...] = ()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        shape, kind = (len(row),), kind.value_type
    while pa.types.is_fixed_size_list(kind):
        shape, kind = (*shape, kind.list_size), kind.value_type
    return np.array(row, numpy_type(kind)).reshape(shape)


def rows_of(path: str, **options: Any) -> dict[int, dict[str, Any]]:
    """The rows of a file by their ids."""
    found: dict[int, dict[str, Any]] = {}
    options = {"batch_size": 3, "workers": 2, "shuffle_bytes": 300, "ragged": "pack", **options}
    with closing(RecordSource(path, **options)) as source:
        for batch in source:
            names = [*batch]
            for row in zip(*batch.values(), strict=True):
                named = dict(zip(names, row, strict=True))
                assert named["id"] not in found
                found[int(named["id"])] = named
        assert {*found} == {*range(source.samples)}
    return found


def assert_equal(found: Any, wanted: Any) -> None:
    if isinstance(wanted, (str, bytes)):
        assert found == wanted and type(found) is type(wanted)
    else:
        assert found.dtype.kind == wanted.dtype.kind and found.shape == wanted.shape
        assert found.dtype == wanted.dtype or wanted.dtype.kind in "mM"  # Parquet has no seconds, and no date64
        assert (found == wanted).all()


@pytest.mark.whole
@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_a_value_of_any_type_is_read_as_it_was_written(tmp_path_factory, data):
    chosen = data.draw(st.lists(kinds, min_size=1, max_size=3), "types")
    rows = data.draw(st.integers(1, 12), "rows")
    groups = data.draw(st.lists(st.integers(0, 5), max_size=4).map(lambda sizes: [*sizes, rows]), "groups")
    chunks = data.draw(st.lists(st.integers(0, 12), max_size=3), "chunks")
    written_rows = [data.draw(st.lists(values(kind), min_size=rows, max_size=rows)) for kind in chosen]
    nested = data.draw(st.booleans(), "in a struct")
    columns = {f"c{i}": arrow(*each, chunks) for i, each in enumerate(zip(chosen, written_rows, strict=True))}
    if nested:
        struct = pa.StructArray.from_arrays([each.combine_chunks() for each in columns.values()], [*columns])
        columns = {"s": struct}
    table = pa.table({"id": list(range(rows)), **columns})
    path = tmp_path_factory.getbasetemp() / f"values-{next(_folders)}"
    for kind in KINDS:
        found = rows_of(written(path.with_suffix(f".{kind}"), table, groups, kind))
        for (i, kind_of), row in itertools.product(enumerate(chosen), range(rows)):
            assert_equal(found[row][f"s.c{i}" if nested else f"c{i}"], expected(kind_of, written_rows[i][row]))


@pytest.mark.parametrize("kind", KINDS)
def test_lists_that_are_equally_long_are_arrays_and_others_are_padded_packed_or_refused(tmp_path, kind):
    even = pa.table(
        {"id": [0, 1, 2, 3], "x": [[1, 2], [3, 4], [5, 6], [7, 8]], "e": pa.array([[]] * 4, pa.list_(pa.int8()))}
    )
    path = (
        written(tmp_path / "even", even, 2, kind)
        if kind == "stream"
        else written(tmp_path / f"even.{kind}", even, 2)
    )
    found = rows_of(path, ragged="refuse")
    assert {id: row["x"].tolist() for id, row in found.items()} == {i: [2 * i + 1, 2 * i + 2] for i in range(4)}
    assert found[0]["e"].shape == (0,)
    odd = pa.table({"id": [0, 1, 2, 3], "x": pa.array([[1, 2], [3, 4], [5, 6], [7]])})
    path = written(tmp_path / "odd.parquet", odd, 2)
    with pytest.raises(Exception, match=r"row group 1: column 'x' has 1 numbers in row 1, and 2 in the first row"):
        rows_of(path, ragged="refuse")
    with closing(RecordSource(path, ragged="pad", shuffle=False)) as source:
        (batch,) = source
    assert batch["x"].tolist() == [[1, 2], [3, 4], [5, 6], [7, 0]]


def test_dictionaries_and_extension_types_are_what_they_stand_for(tmp_path):
    columns = {
        "text": pa.array(["b", "a", "b", "c"]).dictionary_encode(),
        "number": pa.array([7, 5, 7, 5]).dictionary_encode(),
        "own": pa.ExtensionArray.from_storage(Sevens(), pa.array([7, 14, 21, 28], pa.int32())),
        "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(24.0).reshape(4, 6)),
        "uuid": pa.array([bytes([i]) * 16 for i in range(4)], pa.uuid()),
    }
    table = pa.table({"id": range(4), **columns})
    found = rows_of(written(tmp_path / "x.parquet", table, 3))
    assert [found[i]["text"] for i in range(4)] == ["b", "a", "b", "c"]
    assert [found[i]["number"] for i in range(4)] == [7, 5, 7, 5]
    for kind in KINDS:
        plain = written(tmp_path / f"plain.{kind}", table.drop_columns(["text", "number"]), 3, kind)
        found = rows_of(plain)
        assert [found[i]["own"] for i in range(4)] == [7, 14, 21, 28]
        assert found[3]["tensor"].tolist() == [18, 19, 20, 21, 22, 23]
        assert found[2]["uuid"].tolist() == [2] * 16
    path = written(tmp_path / "x.arrow", table)
    with pytest.raises(BadSetting, match=r"x.arrow has dictionaries, which lie apart .*: write it as Parquet"):
        RecordSource(path)


@pytest.mark.parametrize(
    ("value", "kind", "match"),
    [
        (
            decimal.Decimal("1.50"),
            pa.decimal128(5, 2),
            r"decimal128\(5, 2\).*cast it to float64 where it is written",
        ),
        ([("a", 1)], pa.map_(pa.string(), pa.int32()), "map<string, int32"),
        (["a"], pa.list_(pa.string()), "list<.*string>.*join the texts of each row to one"),
        ([[1]], pa.list_(pa.list_(pa.int8())), "list<.*list<.*int8>>"),
        ([decimal.Decimal(1)], pa.list_(pa.decimal128(5)), "decimal128.*cast it to float64"),
        (None, pa.null(), "null"),
        (dt.time(1), pa.time32("ms"), r"time32\[ms\]"),
    ],
)
@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_what_no_array_holds_is_refused_by_name_and_may_be_left_out(tmp_path, value, kind, match, ending):
    path = written(tmp_path / f"x.{ending}", pa.table({"id": [0], "odd": pa.array([value], kind)}))
    with pytest.raises(BadSetting, match=f"column 'odd' is of type .*{match}.*leave it out with columns="):
        RecordSource(path)
    assert rows_of(path, columns=["id"]) == {0: {"id": 0}}


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_names_with_dots_are_found_and_two_of_one_name_are_refused(tmp_path, ending):
    """As it was found: of a column and a struct's field of one name one was read, and a name brought others."""
    table = pa.table({"id": [0], "x": [1], "x.y": [{"z": 2, "v.w": 3}]})
    path = written(tmp_path / f"x.{ending}", table)
    assert rows_of(path)[0] == {"id": 0, "x": 1, "x.y.z": 2, "x.y.v.w": 3}
    assert rows_of(path, columns=["x", "id"])[0] == {"x": 1, "id": 0}
    assert rows_of(path, columns=["x.y", "id"])[0] == {"x.y.z": 2, "x.y.v.w": 3, "id": 0}
    assert rows_of(path, columns={"own": "x.y.v.w", "id": "id"})[0] == {"own": 3, "id": 0}
    for table in (
        pa.table({"x.y": [1], "x": [{"y": 2}]}),
        pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["x.y", "x.y"]),
    ):
        with pytest.raises(BadSetting, match=r"has 2 columns named 'x.y'"):
            RecordSource(written(tmp_path / f"twice.{ending}", table))


def test_several_columns_become_one_array_where_a_type_holds_them(tmp_path):
    big = 2**63 - 1
    table = pa.table(
        {
            "id": [0, 1],
            "a": pa.array([big, 1]),
            "b": pa.array([3, 4], pa.int8()),
            "u": pa.array([5, 6], pa.uint64()),
            "f": [0.5, 1.5],
            "when": pa.array([1, 2], pa.timestamp("s")),
            "text": ["", ""],
        }
    )
    path = written(tmp_path / "x.parquet", table)
    found = rows_of(path, columns={"id": "id", "whole": ["a", "b"], "one": ["u"], "mixed": ["b", "f"]})
    assert found[0]["whole"].tolist() == [big, 3] and found[0]["whole"].dtype == np.int64
    assert found[0]["one"].tolist() == [5] and found[1]["mixed"].tolist() == [4, 1.5]
    for columns in (["a", "u"], ["a", "when"]):  # whole numbers never become floats unasked
        with pytest.raises(BadSetting, match=r"columns\['m'\]: no type of numbers holds those of a \(int64\)"):
            RecordSource(path, columns={"m": columns})
    assert found[0]["mixed"].dtype == np.float64
    with pytest.raises(SourceError, match=rf"column 'a' has {big}, which float64, the type of columns\['m'\]"):
        rows_of(path, columns={"m": ["a", "f"]})
    with closing(RecordSource(path, columns={"m": ["a", "f"]}, filter="a == 1")) as source:
        assert [batch["m"].tolist() for batch in source] == [[[1, 1.5]]]
    with pytest.raises(BadSetting, match=r"only columns of one number a row become one array, not .*text"):
        RecordSource(path, columns={"m": ["a", "text"]})
    for nothing in ([], {}):
        with pytest.raises(BadSetting, match="names no column; it has id, a, b"):
            RecordSource(path, columns=nothing)
    with pytest.raises(BadSetting, match="has no column 'c'; it has id, a, b"):
        RecordSource(path, columns=["c"])


def test_times_become_one_array_only_with_their_kind_and_in_a_unit_that_holds_them(tmp_path):
    table = pa.table(
        {
            "day": pa.array([dt.date(2020, 1, 1), dt.date(3000, 1, 1)]),
            "when": pa.array([1, 2], pa.timestamp("ns")),
            "long": pa.array([1, 2], pa.duration("s")),
            "wait": pa.array([3, 2**60], pa.duration("s")),
            "fine": pa.array([5, 6], pa.duration("ms")),
            "n": [7, 8],
            "ok": [True, False],
        }
    )
    path = written(tmp_path / "x.parquet", table)
    for columns in (["when", "long"], ["long", "day"], ["n", "long"], ["fine", "ok"]):
        with pytest.raises(
            BadSetting, match=rf"columns\['m'\]: no type of numbers holds those of {columns[0]} \("
        ):
            RecordSource(path, columns={"m": columns})
    with closing(RecordSource(path, columns={"m": ["long", "fine"]}, shuffle=False)) as source:
        (batch,) = source
    assert batch["m"].dtype == "m8[ms]" and batch["m"].astype(int).tolist() == [[1000, 5], [2000, 6]]
    for columns, match in (
        (
            ["day", "when"],
            r"column 'day' has 3000-01-01, which datetime64\[ns\], the type of columns\['m'\], does not",
        ),
        (["fine", "wait"], rf"column 'wait' has {2**60} seconds, which timedelta64\[ms\]"),
    ):
        with pytest.raises(SourceError, match=match):
            rows_of(path, columns={"m": columns})


@pytest.mark.parametrize(
    ("moment", "kind"),
    [
        (dt.datetime(1000, 1, 1), pa.timestamp("us")),
        (dt.datetime(9999, 12, 31), pa.timestamp("s")),
        (dt.datetime(2262, 4, 12), pa.timestamp("ms")),
        (300_000 * 365 * 86_400, pa.timestamp("s")),
    ],
)
def test_moments_of_int96_that_nanoseconds_do_not_hold_are_refused_by_their_column(tmp_path, moment, kind):
    kept = dt.datetime(1700, 1, 1, 2, 3, 4)
    table = pa.table(
        {
            "id": [0, 1, 2],
            "good": pa.array([kept, None, kept], kind),
            "t": pa.array([kept, moment, None], kind),
            "list": pa.array([[kept], [kept, moment], []], pa.list_(kind)),
            "in": pa.array(
                [{"t": kept, "n": 1}, {"t": moment, "n": 2}, None], pa.struct([("t", kind), ("n", "i4")])
            ),
        }
    )
    path = written(tmp_path / "x.parquet", table, use_deprecated_int96_timestamps=True)
    for columns in (["t"], ["list"], ["in.t"], ["id", "in"]):
        name = columns[-1].removesuffix(".t")
        with pytest.raises(
            SourceError, match=rf"row group 0: a moment of '{name}' lies before 1677 or after 2262"
        ):
            rows_of(path, columns=columns, fill={name: kept} if name == "t" else None)
    with pytest.raises(SourceError, match="a moment of 't' lies before 1677"):
        rows_of(path, columns=["id"], filter="t == None")
    found = rows_of(path, columns=["id", "good", "in.n"], shuffle=False, fill={"good": kept, "in.n": 0})
    assert [(row["good"], row["in.n"]) for row in found.values()] == [(np.datetime64(kept), n) for n in (1, 2, 0)]


def test_files_are_joined_in_the_order_of_their_names(tmp_path: Path):
    for i in (1, 0, 2):
        written(tmp_path / f"{i}.parquet", pa.table({"id": [2 * i, 2 * i + 1]}))
    with closing(RecordSource(tmp_path / "*.parquet", shuffle=False)) as source:
        ids = [id for batch in source for id in batch["id"].tolist()]
    assert ids == list(range(6))


def test_texts_and_bytes_in_several_pieces_are_joined_as_if_they_were_larger_than_2_gib():
    table = pa.table(
        {"text": pa.chunked_array([["a", None], ["ü"]]), "bytes": pa.chunked_array([[b"1"], [b"", b"3"]])}
    )
    text, data = field_of(table, ["text"]), field_of(table, ["bytes"])
    assert (text.type, data.type) == (pa.large_string(), pa.large_binary())
    assert text.to_pylist() == ["a", None, "ü"] and data.to_pylist() == [b"1", b"", b"3"]
