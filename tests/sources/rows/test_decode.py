"""Samples one by one: what a user's ``decode`` may return, and what happens if it fails or a sample is bad."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.sources.records.test_shards import packed
from tests.sources.records.writers import write_litdata, write_mds
from tests.sources.rows.decoding import at_13, dies, fails, never, no_dict, not_the_first, other_keys, sized
from tests.sources.tables.files import numbers, written

from penstock import RecordSource
from penstock.contracts import Cursor
from penstock.errors import BadSetting, ReadFailed, SourceError

ROWS = 60


@pytest.fixture
def path(tmp_path: Path) -> str:
    return written(tmp_path / "x.parquet", numbers(ROWS))


def opened(data: Any, **options: Any) -> Any:
    return closing(RecordSource(data, **{"batch_size": 8, "workers": 1, "shuffle": False, **options}))


def batches(data: Any, **options: Any) -> list[Any]:
    with opened(data, **options) as source:
        return list(source)


WRONG = [
    (fails, "decode= raised KeyError: 'thirteen'"),
    (other_keys, "it has id, more, and the first sample id"),
    (no_dict, "it has list, and the first sample id, half, flag"),
    (at_13(np.zeros(3), np.zeros(2)), r"'x' has shape \(3,\), and \(2,\) in the first sample: .* ragged='pad'"),
    (at_13(0.5), "'x' has numbers of float64, and <?[|]?i8 in the first sample|'x' has numbers of float64"),
    (at_13("text"), "'x' has numbers of <U4"),
    (at_13(None), "'x' has numbers of object"),
    (at_13(5, "text"), "'x' is of type int, and in the first sample text"),
    (at_13("text", b"bytes"), "'x' is of type str, and in the first sample bytes"),
    (at_13(300, np.uint8(1)), "'x' has int64 that .*u1, as in the first sample, cannot hold"),
    # As it was found: these were cut to what fits.
    (at_13(2**40, np.int32(1)), "'x' has int64 that <i4, as in the first sample, cannot hold"),
    (at_13(np.datetime64(1, "ns"), np.datetime64(1, "s")), r"'x' has datetime64\[ns\] that <M8\[s\], as"),
]


@pytest.mark.parametrize(("decode", "match"), WRONG)
def test_a_row_that_is_not_like_the_first_one_is_named_or_skipped_and_counted(path, capsys, decode, match):
    with pytest.raises(SourceError, match=rf"row 13 of .*: {match}"):
        batches(path, decode=decode)
    with opened(path, decode=decode, on_bad="skip") as source:
        found = list(source)
        assert source.description.endswith("; 1 bad ones were skipped")
    ids = np.concatenate([batch["id"] for batch in found])
    bad = np.concatenate([batch["bad"] for batch in found])
    assert np.flatnonzero(bad).tolist() == [13]
    assert ids[13] == 0 and ids[~bad].tolist() == [id for id in range(ROWS) if id != 13]
    assert f"row 13 of {path}: " in capsys.readouterr().err


def test_the_traceback_of_what_decode_raised_is_kept(path):
    with pytest.raises(SourceError) as caught:
        batches(path, decode=fails)
    assert 'raise KeyError("thirteen")' in caught.value.traceback_text


def first_fails(row: dict[str, Any]) -> dict[str, Any]:
    raise RuntimeError("never")


@pytest.mark.parametrize(
    ("decode", "match"),
    [
        (first_fails, r"x\.parquet, row group 0, row 0: the first sample cannot be taken: .*RuntimeError: never"),
        (at_13(0, object()), "decode= gave 'x' of type object, which no array of numbers holds"),
        (at_13(0, [[1], [1, 2]]), "decode= gave 'x' of type list"),
        (lambda row: [row], "decode= gave list: a sample is a dict"),
        (lambda row: {}, "decode= gave dict: a sample is a dict"),
    ],
)
def test_what_the_first_row_becomes_is_looked_at_when_the_source_is_made(path, decode, match):
    with pytest.raises(BadSetting, match=match):
        RecordSource(path, decode=decode)


def test_a_first_row_that_is_bad_is_skipped_too(path):
    bad = np.concatenate([batch["bad"] for batch in batches(path, decode=not_the_first, on_bad="skip")])
    assert np.flatnonzero(bad).tolist() == [0]
    with pytest.raises(BadSetting, match=r"none of the first 100 samples can be taken: .*line \d+"):
        RecordSource(path, decode=never, on_bad="skip")


def test_values_that_fit_the_first_rows_type_are_taken(path):
    usual: dict[str, tuple[Any, Any]] = {"float": (0.5, 3), "int": (1, True), "single": (np.float32(1), 0.5)}
    for value, other in usual.values():
        found = np.concatenate([batch["x"] for batch in batches(path, decode=at_13(other, value))])
        assert found[13] == other and found[0] == value and found.dtype == np.asarray(value).dtype


@pytest.mark.parametrize("ragged", ["pad", "pack"])
def test_rows_of_different_length_texts_and_bytes(path, ragged):
    for batch in batches(path, decode=sized, ragged=ragged, on_bad="skip"):
        ids = batch["id"].tolist()
        if ragged == "pad":
            assert batch["list"].shape == (len(ids), max(id % 4 for id in ids))
        else:
            assert [row.tolist() for row in batch["list"]] == [list(range(id % 4)) for id in ids]
        assert batch["text"] == ["ü" * id for id in ids] and batch["raw"] == [b"\0"] * len(ids)
        assert not batch["bad"].any()


def test_a_column_may_be_called_bad_where_none_is_skipped(path):
    found = batches(path, decode=lambda row: {"bad": int(row["id"])})
    assert sorted(value for batch in found for value in batch["bad"].tolist()) == list(range(ROWS))


def test_on_bad_needs_a_decoder_and_its_column_a_free_name(path):
    with pytest.raises(BadSetting, match=r'on_bad="skip": only decode= finds bad rows of tables'):
        RecordSource(path, on_bad="skip")
    with pytest.raises(BadSetting, match="adds a column 'bad', and there is one"):
        RecordSource(path, on_bad="skip", decode=lambda row: {"bad": 1})


@pytest.mark.usefixtures("new_pythons")  # which find the function by the import path alone
def test_workers_that_are_killed_change_no_batch(path):
    options: dict[str, Any] = {"decode": sized, "shuffle": True, "shuffle_bytes": 300, "ragged": "pack"}
    options["workers"] = 2
    with opened(path, **options) as plain, opened(path, **options) as source:
        for cycle in range(4):
            wanted = [block.tree for block in plain.open(Cursor(cycle, 0))]
            found: list[Any] = []
            for number, block in enumerate(source.open(Cursor(cycle, 0))):
                found.append(block.tree)
                if number == 2:
                    os.kill(source._blocks._pool._workers[cycle % 2].pid, signal.SIGKILL)
            assert [batch["text"] for batch in found] == [batch["text"] for batch in wanted]
            assert [batch["id"].tolist() for batch in found] == [batch["id"].tolist() for batch in wanted]


def test_a_row_that_kills_its_workers_is_an_error_that_names_its_block(path):
    with pytest.raises(SourceError, match="3 worker processes died at one block, rows 8 to 15 of cycle 0"):
        batches(path, decode=dies)


def samples(count: int = ROWS) -> list[dict[str, Any]]:
    return [{"id": i, "text": "ü" * i, "row": np.full(3, i, np.float32)} for i in range(count)]


def mds(folder: Path) -> str:
    return (
        f"mds:{write_mds(folder / 'mds', {'id': 'int', 'text': 'str', 'row': 'ndarray:float32:3'}, samples(), 20)}"
    )


def litdata(folder: Path) -> str:
    return (
        f"litdata:{write_litdata(folder / 'litdata', {'id': 'int', 'text': 'str', 'row': 'numpy'}, samples(), 20)}"
    )


@pytest.mark.parametrize("write", [mds, litdata])
def test_fields_of_shards_are_columns_and_may_be_picked_and_renamed(tmp_path, write):
    data = write(tmp_path)
    for batch in batches(data):
        ids = batch["id"].tolist()
        assert batch["text"] == ["ü" * id for id in ids]
        assert batch["row"].tolist() == [[id] * 3 for id in ids] and batch["row"].dtype == np.float32
    assert [*batches(data, columns=["row"])[0]] == ["row"]
    (first, *_) = batches(data, columns={"number": "id"})
    assert [*first] == ["number"] and first["number"].tolist() == list(range(8))
    for columns, match in (
        (["q"], "has no column 'q'; it has"),
        ([], "names no column"),
        ({}, "names no column"),
        ({"m": ["id", "row"]}, "only columns of tables are put together; use decode="),
    ):
        with pytest.raises(BadSetting, match=match):
            RecordSource(data, columns=columns)
    for name in ("fill", "filter"):
        with pytest.raises(BadSetting, match=f"{name}='id < 5': only rows of tables have nulls and are filtered"):
            RecordSource(data, **{name: "id < 5"})


def test_a_damaged_sample_of_a_shard_is_named_or_skipped(tmp_path):
    data = mds(tmp_path)
    shard = tmp_path / "mds/shard.00000.mds"
    content = bytearray(shard.read_bytes())
    at = content.index("ü".encode() * 3)
    content[at] = 255  # no UTF-8
    shard.write_bytes(content)
    with pytest.raises(SourceError, match=r'shard\.00000\.mds, at byte [\d,]+: .*Mend it, or pass on_bad="skip"'):
        batches(data)
    found = batches(data, on_bad="skip")
    bad = np.concatenate([batch["bad"] for batch in found])
    assert bad.sum() == 1
    ids = np.concatenate([batch["id"] for batch in found])[~bad]
    assert len(set(ids.tolist())) == ROWS - 1


def tar(folder: Path) -> str:
    members: dict[str, bytes] = {}
    for i in range(ROWS):
        members |= {
            f"{i:03}.json": f'{{"i": {i}}}'.encode(),
            f"{i:03}.txt": ("ü" * i).encode(),
            f"{i:03}.bin": b"x",
        }
    return str(packed(folder / "x.tar", members))


@pytest.mark.parametrize("write", [mds, litdata, tar])
def test_a_shard_that_is_replaced_or_gone_ends_the_feed(tmp_path, write):
    data = write(tmp_path)
    (shard,) = [path for end in ("*00002.mds", "*-2.bin", "x.tar") for path in tmp_path.rglob(end)]
    columns = ["txt", "bin"] if write is tar else None
    for on_bad in ("fail", "skip"):
        for is_there in (False, True):
            with opened(data, on_bad=on_bad, columns=columns) as source:
                reading = iter(source)
                next(reading)
                content = shard.read_bytes()
                shard.unlink()
                if is_there:
                    shard.write_bytes(content[::-1])
                told = "was written to or" if is_there else "(was written to or|cannot be read)"
                with pytest.raises(ReadFailed, match=f"{shard.name} {told}"):
                    list(reading)
                shard.write_bytes(content)


def test_members_of_a_tar_are_columns_by_their_endings(tmp_path):
    tar(tmp_path)
    found = batches(tmp_path / "x.tar", columns=["txt", "bin"])
    assert [text for batch in found for text in batch["txt"]] == ["ü" * i for i in range(ROWS)]
    assert {data for batch in found for data in batch["bin"]} == {b"x"}
