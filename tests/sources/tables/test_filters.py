"""Which rows a condition leaves: those that pyarrow's own expressions leave, group by group."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.sources.tables.files import written

from penstock import RecordSource
from penstock.errors import BadSetting
from penstock.sources.tables.opening import condition_of

IDS = range(60)
TABLE = pa.table(
    {
        "id": IDS,
        "x": [None if i % 7 == 0 else i % 10 for i in IDS],
        "real": [float("nan") if i == 3 else i / 2 for i in IDS],
        "split": [("train", "extra", None)[i % 3] for i in IDS],
        "place": [{"row": i // 10, "name": str(i % 4)} for i in IDS],
        "flag": [i % 2 == 0 for i in IDS],
    }
)
CONDITIONS = [
    ("id < 25", pc.field("id") < 25),
    ("3 < id <= 40", (pc.field("id") > 3) & (pc.field("id") <= 40)),
    ("x == 4 or not flag", (pc.field("x") == 4) | ~pc.field("flag")),
    ("split in ['train', 'other']", pc.field("split").isin(["train", "other"])),
    ("split == 'extra' and real >= 3.5", (pc.field("split") == "extra") & (pc.field("real") >= 3.5)),
    ("place.row != 2", pc.field("place", "row") != 2),
    ("x == None", pc.field("x").is_null()),
    ("None != x", ~pc.field("x").is_null()),
    ("id not in (1, 2, 3)", ~pc.field("id").isin([1, 2, 3])),
    ("2 * id + 1 - x < 30", pc.field("id") * 2 + 1 - pc.field("x") < 30),
    ("x / 2 == 1", pc.field("x") == 2),  # as it was found: 3 / 2 was 1, too
]


def ids_of(path: str, condition: Any, **options: Any) -> list[int]:
    with closing(RecordSource(path, columns=["id"], filter=condition, shuffle=False, **options)) as source:
        found = [id for batch in source for id in batch["id"].tolist()]
        assert source.samples == len(found)
    return found


@pytest.fixture(scope="module", params=["parquet", "arrow"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(tmp_path_factory.mktemp("filters") / f"x.{request.param}", TABLE, [10, 1, 20, 0, 29])


@pytest.mark.parametrize(("text", "expression"), CONDITIONS)
def test_rows_are_those_that_pyarrow_leaves(path, text, expression):
    wanted = ds.dataset(pa.table(TABLE)).to_table(filter=expression)["id"].to_pylist()
    assert wanted
    for condition in (text, expression):
        assert ids_of(path, condition) == wanted
        assert sorted(ids_of(path, condition, shuffle_bytes=200)) == wanted


@settings(max_examples=examples(20), deadline=None)
@given(st.data())
def test_conditions_joined_at_will_leave_what_pyarrow_leaves(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "joined.parquet"
    if not path.exists():
        written(path, TABLE, [10, 1, 20, 0, 29])
    drawn = data.draw(st.lists(st.sampled_from(CONDITIONS), min_size=2, max_size=4))
    (text, expression), *others = drawn
    for other, its in others:
        joint = data.draw(st.sampled_from(["and", "or"]))
        text = f"({text}) {joint} not ({other})"
        expression = expression & ~its if joint == "and" else expression | ~its
    wanted = ds.dataset(TABLE).to_table(filter=expression)["id"].to_pylist()
    if wanted:
        assert ids_of(str(path), text) == wanted
    else:
        with pytest.raises(BadSetting, match="leaves none of 60 rows"):
            ids_of(str(path), text)


@pytest.mark.parametrize(
    ("condition", "match"),
    [
        ("id <", "invalid syntax.* Write columns, numbers"),
        ("", "invalid syntax"),
        ("q < 5", "there is no column 'q'; there are "),
        ("place.q < 5", r"No match for FieldRef.Nested"),
        ("id > 100", "leaves none of 60 rows"),
        ("split < 5", "string and uint8 are not compared or computed"),
        ("id < 'a'", "int64 and string are not compared or computed"),
        ("id", "must evaluate to bool"),
        ("5", "names no column"),
        (5, "names no column"),
        ("-id < 3", "bad operand type for unary -"),
        ("None == None", "has no meaning"),
        ("abs(id) < 3", r"abs\(id\) has no meaning here"),
        ("__import__('os').system('true')", "has no meaning here"),
        ("id // 2 == 1", "id // 2 has no meaning here"),
        ("id in 5", "Write columns"),
        ("split in 'train'", "In has no meaning here"),
        ("id < 99999999999999999999", "too large.*Write columns"),
        (pc.field("q") < 5, "there is no column 'q'; there are "),
    ],
)
def test_a_condition_that_makes_no_sense_is_refused(path, condition, match):
    with pytest.raises(BadSetting, match=rf"(?s)filter=.*{match}"):
        RecordSource(path, filter=condition)


def test_rows_of_large_groups_stay_in_their_order(tmp_path):
    """Arrow filters in several threads of its own."""
    x = np.random.default_rng(0).integers(0, 10, 300_000)
    path = written(tmp_path / "x.parquet", pa.table({"id": np.arange(len(x)), "x": x}), 150_000)
    wanted = np.flatnonzero(x < 5).tolist()
    for _ in range(5):
        assert ids_of(path, "x < 5", batch_size=10_000) == wanted


def test_groups_that_statistics_exclude_are_not_read(tmp_path, monkeypatch):
    from penstock.sources.tables.parquet import ParquetTables

    path = written(tmp_path / "x.parquet", TABLE, 10)
    groups: set[int] = set()
    read = ParquetTables.read
    monkeypatch.setattr(
        ParquetTables, "read", lambda self, group, columns: (groups.add(group), read(self, group, columns))[1]
    )
    assert ids_of(path, "12 <= id < 25") == list(range(12, 25))
    assert groups == {1, 2}


def test_another_condition_is_another_order(path):
    names = set[str]()
    for condition in (None, "id < 30", "id >= 30", "flag", "not flag"):
        with closing(RecordSource(path, columns=["id"], filter=condition)) as source:
            names.add(source.order)
    assert len(names) == 5


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_filters_of_large_and_of_half_numbers_are_right_or_one_sentence(tmp_path, ending, rows):
    """As it was found: uint64 beyond 2^63 was out of any range, and float16 had no kernel."""
    table = pa.table(
        {
            "id": [1, 2, 3],
            "u": pa.array([1, 2**63 + 5, 2**64 - 1], pa.uint64()),
            "h": pa.array(np.array([0.5, 1.5, -2.5], np.float16)),
            "i8": pa.array([-1, 2, 3], pa.int8()),
            "place": [{"h": np.float16(i)} for i in range(3)],
            "text": ["a", "b", "c"],
        }
    )
    path = written(tmp_path / f"x.{ending}", table, rows)
    for text, right in (
        ("u > 1", [2, 3]),
        ("u >= 9223372036854775813", [2, 3]),
        ("9223372036854775814 <= u <= 18446744073709551615 or u == 1", [1, 3]),
        ("u == 18446744073709551615", [3]),
        ("u != 1 and u < 18446744073709551615", [2]),
        ("u in [1, 18446744073709551615]", [1, 3]),
        ("u not in [1, 2]", [2, 3]),
        ("h > 1", [2]),
        ("h < 0 or h == 0.5", [1, 3]),
        ("h in [1.5, -2.5]", [2, 3]),
        ("place.h >= 1", [2, 3]),
        ("id == 2.5 or id > 2.5", [3]),
        ("i8 < 300 and i8 != 2", [1, 3]),
        ("u in [1, 2]", [1]),
        ("i8 in [2, 300]", [2]),
        ("i8 in [-1, 3]", [1, 3]),
        ("0 <= i8", [2, 3]),
        ("i8 - 5 < -2", [1, 2]),
    ):
        assert ids_of(path, text) == right, text
    for text, match in (
        ("u > -1", "not in range"),
        ("id < 18446744073709551616", "too large"),
        ("text == 2", r"string and uint8 are not compared or computed \(texts stand in quotes"),
        ("h == 'x'", "float and string are not compared"),
    ):
        with pytest.raises(BadSetting, match=match) as raised:
            ids_of(path, text)
        assert text in str(raised.value) and "kernel" not in str(raised.value)


TURNED = ["not (x > 700)", "x != 3", "not (x < 300 or i == 1)", "x < 300", "i < 20 and x >= 0"]


@pytest.mark.parametrize("text", TURNED)
def test_rows_of_nan_are_kept_or_left_out_however_the_file_is_cut(tmp_path, text):
    x = np.sort(np.random.default_rng(0).uniform(0, 1000, 600))
    x[::5] = np.nan
    table = pa.table({"x": x, "i": range(600)})
    for rows in (600, 50):
        with closing(RecordSource(written(tmp_path / f"{rows}.parquet", table, rows), filter=text)) as source:
            assert source.samples == table.filter(condition_of(text)).num_rows
