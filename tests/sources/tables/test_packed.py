"""Packed data sets as tables: the values that were packed, by the names of their leaves."""

from __future__ import annotations

import pickle
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock import Cache, PackedSource, RecordSource, pack
from penstock.contracts import Cursor
from penstock.errors import BadSetting, PackDamaged
from penstock.sources.formats import named_source
from penstock.sources.tables import packed
from penstock.sources.tables.packed import PackedTables

ROWS = 50


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_GROUP_BYTES", 600)


def data(rows: int = ROWS) -> dict[str, Any]:
    ids = np.arange(rows)
    return {
        "id": ids,
        "image": ids[:, None, None].astype(np.uint8) + np.arange(6, dtype=np.uint8).reshape(2, 3),
        "half": (ids / 2).astype(np.float16),
        "flag": ids % 3 == 0,
        "far": ids.astype(">i4"),
        "day": ids.astype("M8[D]"),
        "raw": np.array([b"a\0%d" % id for id in ids], "S5"),
        "text": np.array([f"ü{id}" for id in ids]),
        "box": {"x": ids.astype(np.float32) / 3, "y": [ids % 7, np.stack([ids, -ids], 1)]},
    }


def packed_at(folder: Path, tree: Any) -> str:
    pack(tree, folder)
    return f"packed:{folder}"


def batch_of(named: str, **options: Any) -> dict[str, Any]:
    with closing(RecordSource(named, batch_size=ROWS, workers=2, **{"shuffle": False, **options})) as source:
        (batch,) = source
    return batch


def test_leaves_are_columns_with_the_values_that_were_packed(tmp_path):
    batch, whole = batch_of(packed_at(tmp_path / "x", data())), data()
    box = whole.pop("box")
    whole |= {"box.x": box["x"], "box.y.0": box["y"][0], "box.y.1": box["y"][1], "far": whole["far"].astype("i4")}
    assert [*batch] == [*whole]
    for name, expected in whole.items():
        if expected.dtype.kind in "SU":
            assert batch[name] == expected.tolist()
        else:
            np.testing.assert_array_equal(batch[name], expected, strict=True)


def test_columns_filters_and_functions_are_those_of_other_tables(tmp_path):
    named = packed_at(tmp_path / "x", data())
    batch = batch_of(named, columns={"n": "id", "both": ["id", "box.y.0"]}, filter="id >= 10 and flag")
    assert batch["n"].tolist() == [*range(12, ROWS, 3)]
    assert batch["both"].tolist() == [[id, id % 7] for id in range(12, ROWS, 3)]
    assert [*batch_of(named, columns="image")] == ["image"]
    with pytest.raises(
        BadSetting, match=r"x has no column 'y'; it has id, image, .*, box\.x, box\.y\.0, box\.y\.1"
    ):
        RecordSource(named, columns=["y"])
    with pytest.raises(BadSetting, match="packed rows are here: leave it out"):
        RecordSource(named, cache=Cache(tmp_path / "cache", "1MB"))
    feed = named_source(f"records:{named}")
    assert feed is not None and feed.open(segments=None, seed=0, columns="id").samples == ROWS


def test_tuples_and_single_arrays_are_called_by_number_and_tensors_are_arrays(tmp_path):
    pair = packed_at(tmp_path / "pair", (torch.arange(ROWS).reshape(-1, 1) / 4, np.arange(ROWS)))
    batch = batch_of(pair, columns={"x": "0", "label": "1"})
    np.testing.assert_array_equal(batch["x"], np.arange(ROWS, dtype=np.float32).reshape(-1, 1) / 4, strict=True)
    assert batch["label"].tolist() == [*range(ROWS)]
    assert batch_of(packed_at(tmp_path / "one", np.arange(ROWS)))["0"].tolist() == [*range(ROWS)]


@pytest.mark.parametrize(
    ("tree", "match"),
    [
        ({"a": np.zeros(9, np.complex64)}, "'a' is of <c8 and shape .*read this by PackedSource"),
        ({"a": torch.zeros(9, dtype=torch.bfloat16)}, "'a' is of bfloat16 .*read this by PackedSource"),
        ({"a": np.zeros((9, 0, 2))}, r"'a' is of <f8 and shape \(0, 2\), which tables do not have"),
        ({"a": np.zeros(9, "M8[h]")}, "'a' is of"),
        ({"a.b": np.zeros(9), "a": {"b": np.ones(9)}}, "has 2 columns named 'a.b'"),
    ],
)
def test_what_tables_do_not_have_is_refused_by_name(tmp_path, tree, match):
    with pytest.raises(BadSetting, match=match):
        RecordSource(packed_at(tmp_path / "x", tree))


def test_a_damaged_row_and_a_file_that_is_replaced_end_the_feed(tmp_path):
    named = packed_at(tmp_path / "x", data())
    tables = PackedTables(str(tmp_path / "x"))
    again = pickle.loads(pickle.dumps(tables))
    assert len(tables.group_rows) > 3 and tables.group_rows.sum() == ROWS
    for group in range(len(tables.group_rows)):
        assert again.read(group, ["id", "text"]).equals(tables.read(group, ["text", "id"]).select(["id", "text"]))
    path = tmp_path / "x" / "0-id.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.with_name("other").write_bytes(content)
    path.with_name("other").replace(path)
    with pytest.raises(PackDamaged, match=r"0-id\.npy was replaced while it was being read"):
        tables.read(0, ["text"])
    assert [*batch_of(named, columns="text")] == ["text"]
    with pytest.raises(PackDamaged, match=rf"row {ROWS - 1} of .*0-id\.npy .* is damaged"):
        batch_of(named)


def test_an_epoch_has_the_rows_that_packed_source_gives(tmp_path):
    named = packed_at(tmp_path / "x", {"id": np.arange(ROWS)})
    options: dict[str, Any] = {"batch_size": 8, "seed": 3}
    with closing(RecordSource(named, **options)) as source:
        found = [batch["id"].tolist() for _ in range(2) for batch in source]
    packed_source = PackedSource(tmp_path / "x", **options)
    assert sorted(id for batch in found[:7] for id in batch) == [*range(ROWS)]
    assert found == [
        ids.tolist() for cycle in range(2) for _, ids in packed_source._order.blocks(Cursor(cycle, 0))
    ]
