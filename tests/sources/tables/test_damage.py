"""Files that are replaced, cut or damaged, that are not there, or that are something else: one clear error."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.sources.tables.files import KINDS, numbers, saved, written

from penstock import RecordSource
from penstock.errors import BadSetting, PackageMissing, PenstockError, ReadFailed

ROWS = 400


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def path(kind: str, tmp_path: Path) -> Path:
    return Path(written(tmp_path / f"x.{kind}", texts(ROWS), 40, kind))


def texts(rows: int) -> pa.Table:
    table = numbers(rows).append_column("text", pa.array([f"{i} ü" for i in range(rows)]))
    return table.append_column("list", pa.array([[i] * (i % 3) for i in range(rows)]))


def opened(path: Path | str, **options: Any) -> Any:
    return closing(RecordSource(path, **{"batch_size": 8, "shuffle_bytes": 4000, "ragged": "pack", **options}))


def replace(path: Path) -> None:
    other = path.with_suffix(".other")
    other.write_bytes(path.read_bytes())
    os.replace(other, path)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)


@pytest.mark.parametrize("change", [replace, cut, flip, Path.unlink])
def test_a_file_that_changes_amid_reading_ends_it_with_a_word_and_mixes_nothing(path, change):
    with opened(path) as source:
        batches: Iterator[Any] = iter(source)
        seen = [next(batches)["id"].tolist()]
        change(path)
        with pytest.raises(
            ReadFailed, match=rf"{path.name} (was written to or replaced|cannot be read: No such file)"
        ):
            seen += [batch["id"].tolist() for batch in batches]
        ids = [id for batch in seen for id in batch]
        assert len(ids) == len(set(ids)) < ROWS
        with pytest.raises(ReadFailed):
            next(iter(source))


@pytest.mark.parametrize("change", [replace, cut, flip, Path.unlink])
def test_a_file_that_changes_once_all_rows_are_in_memory_changes_nothing(path, change):
    with opened(path, shuffle_bytes="1MiB") as source:
        before = [id for batch in source for id in batch["id"].tolist()]
        change(path)
        after = [id for batch in source for id in batch["id"].tolist()]
        assert before != after and sorted(before) == sorted(after) == list(range(ROWS))


def test_a_file_that_is_cut_anywhere_is_refused_or_has_all_of_its_rows(path):
    whole = path.read_bytes()
    chance = random.Random(0)
    for at in sorted(
        {*range(24), *(chance.randrange(len(whole)) for _ in range(150)), *range(len(whole) - 24, len(whole))}
    ):
        path.write_bytes(whole[:at])
        try:
            with opened(path) as source:
                rows = source.samples
        except BadSetting as error:
            assert path.name in str(error)  # noqa: PT017
        else:  # an end mark, or a footer behind it, is all that is missing
            assert rows == ROWS and at > len(whole) // 2


def test_a_stream_that_ends_amid_a_message_is_refused(tmp_path):
    path = Path(written(tmp_path / "x", numbers(100), 10, "stream"))
    for cut_off in (9, 30, 200, 500):
        path.write_bytes(path.read_bytes()[:-cut_off])
        with pytest.raises(
            BadSetting, match=r"x.arrow was cut short: the message at byte [\d,]+ goes on behind its end"
        ):
            RecordSource(path)


def head(whole: bytes, message: int) -> int:
    return int.from_bytes(whole[message + 4 : message + 8], "little")


@pytest.mark.parametrize("kind", ["arrow", "stream"], indirect=True)
def test_a_flipped_bit_in_a_batch_s_row_count_is_refused_at_once(path):
    whole = path.read_bytes()
    with opened(path) as source:
        groups = source._data.opened.reading.tables._groups
    for batch in (groups[1][1], groups[-1][1]):
        rows = whole.index((40).to_bytes(8, "little"), batch.offset + 8)  # the count, before that of each column
        for bit in range(64):
            data = bytearray(whole)
            data[rows + bit // 8] ^= 1 << bit % 8
            path.write_bytes(data)
            with pytest.raises(
                BadSetting, match=rf"{path.name} is damaged: the message at byte {batch.offset:,} "
            ):
                opened(path)


@pytest.mark.whole
@pytest.mark.parametrize("flips", [150, pytest.param(5000, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])])
def test_bytes_that_are_flipped_end_in_an_error_of_ours_and_never_lose_a_row(path, kind, flips):
    """Values may differ where the format has no checksums; a damaged footer may abort in Arrow."""
    whole = path.read_bytes()
    places = list(range(4, len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")))
    if kind != "parquet":
        with opened(path) as source:
            groups = source._data.opened.reading.tables._groups
        places = [
            at for _, (start, size, _) in groups for at in range(start + 8 + head(whole, start), start + size)
        ]
    chance = random.Random(flips)
    for _ in range(flips):
        data = bytearray(whole)
        for _ in range(chance.choice([1, 1, 20])):
            data[chance.choice(places)] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        try:
            with opened(path) as source:
                rows = [
                    len(batch["id"]) == len(batch["text"]) == len(batch["list"]) and len(batch["id"])
                    for batch in source
                ]
                assert sum(rows) == source.samples
        except PenstockError as error:
            assert path.name in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    "how",
    [
        {"compression": "none", "use_dictionary": False},
        {"compression": "snappy", "data_page_size": 100},
        {"compression": "zstd", "data_page_version": "2.0"},
    ],
)
def test_pages_that_were_written_with_checksums_are_compared_with_them(tmp_path, how):
    path = Path(written(tmp_path / "x.parquet", texts(ROWS), 40, write_page_checksum=True, **how))
    whole, right = path.read_bytes(), rows_of(path)
    chance, named = random.Random(0), 0
    for _ in range(20):
        data = bytearray(whole)
        data[chance.randrange(4, len(whole) - 8 - int.from_bytes(whole[-8:-4], "little"))] ^= (
            1 << chance.randrange(8)
        )
        path.write_bytes(data)
        try:
            assert rows_of(path) == right  # what pages do not need, such as statistics in their headers
        except PenstockError as error:
            named += "x.parquet, row group" in str(error)
    assert named > 15


def test_rows_that_a_filter_reads_are_compared_with_checksums_too(tmp_path):
    table = pa.table({"id": np.arange(100), "x": np.arange(100) * 7})
    how = {"write_page_checksum": True, "use_dictionary": False, "compression": "none"}
    path = Path(written(tmp_path / "x.parquet", table, 100, **how))
    stored = (50 * 7).to_bytes(8, "little")
    assert path.read_bytes().count(stored) == 1
    path.write_bytes(path.read_bytes().replace(stored, (51 * 7).to_bytes(8, "little")))
    with pytest.raises(ReadFailed, match=r"row group 0 cannot be read, or is damaged: column 'x': .*CRC checksum"):
        opened(path, filter="x == 357")


def rows_of(path: Path) -> list[str]:
    with opened(path, shuffle=False) as source:
        return [str({name: list(values) for name, values in batch.items()}) for batch in source]


def footers_with(path: Path, some: str, others: str) -> Iterator[None]:
    """Have the file with other bytes in its footer, at each place where some stand."""
    whole = path.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    for found in re.finditer(re.escape(bytes.fromhex(some)), whole[footer:]):
        at, after = footer + found.start(), footer + found.end()
        path.write_bytes(whole[:at] + bytes.fromhex(others) + whole[after:])
        yield


def test_a_footer_whose_row_groups_have_fewer_rows_than_the_file_is_refused(tmp_path):
    path = Path(written(tmp_path / "x.parquet", texts(ROWS), 40))
    refused = 0
    for _ in footers_with(path, some="16 50", others="16 40"):  # 40 and 32, stored twice as large
        try:
            with opened(path) as source:
                assert sum(len(batch["id"]) for batch in source) == ROWS
        except PenstockError as error:
            refused += "its footer says 400 rows in all, and 392 in its row groups" in str(error)
    assert refused == ROWS // 40


def test_a_footer_that_says_another_type_of_a_column_chunk_does_not_end_the_process(tmp_path):
    path = Path(written(tmp_path / "x.parquet", texts(ROWS), 40))
    chunks = 0
    for _ in footers_with(path, some="15 0c 19", others="15 04 19"):  # of bytes, and of int64
        chunks += 1
        with opened(path) as source:
            assert source._data.opened.reading.tables.ranges("text") is None
    assert chunks == ROWS // 40


def test_a_footer_that_says_other_rows_than_there_are_is_an_error(tmp_path):
    path = Path(written(tmp_path / "x.parquet", numbers(40), 10))
    with opened(path) as source:
        tables = source._data.opened.reading.tables
        tables._groups[1] = tables._groups[1]._replace(rows=11)
        with pytest.raises(ReadFailed, match=r"x.parquet, row group 1 has 10 rows, and its footer says 11"):
            list(source)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ("none/*.parquet", r"none/\*\.parquet: there is no such file"),
        ("x-{0..3}.parquet", r"x-2\.parquet: there is no such file"),
        ("x-*", "or several files of one format"),
        (["x-0.parquet", "x.arrow"], "or several files of one format"),
        ([], "or several files of one format"),
        ("", "or several files of one format"),
        (["x-0.parquet", "x-*.parquet"], r"x-0\.parquet is named twice"),
        ("text.parquet", r"text\.parquet is no Parquet file, or is damaged"),
        ("text.arrow", r"text\.arrow is no Arrow file"),
        ("empty.parquet", r"empty\.parquet is no Parquet file"),
        ("empty.arrow", r"empty\.arrow is no Arrow file"),
        (["x-0.parquet", "other.parquet"], r"other\.parquet has other columns than .*: 'half' is missing"),
        (["x-0.parquet", "kinds.parquet"], r"kinds\.parquet has other .*: 'half' is double there, and float"),
        (["x-0.parquet", "more.parquet"], r"more\.parquet has other .*: 'z' is new"),
        ("none.parquet", r"none\.parquet: no row lies there"),
        ("hf:.", r"state\.json cannot be read: No such file or directory; give the folder that save_to_disk"),
        ("packed:.", r"no packed data set in .*: it has no penstock\.json"),
        ("packed:", "folder='': give the path of a folder"),
        ("hf:several", r"several holds several data sets: name one of hf:.*several/test, hf:.*several/train"),
        ("hf:picked", r"picked has rows picked by indices: write it again by flatten_indices\(\)\.save_to_disk"),
        ("hf:bare", r"bare holds no data: its state\.json names no file"),
        ("hf:spoilt", r"state\.json is damaged"),
        ("hf:lost", r"data-00000-of-00001\.arrow cannot be read: No such file"),
    ],
)  # fmt: skip
def test_data_that_are_not_there_or_something_else_are_refused_by_name(tmp_path, monkeypatch, data, match):
    monkeypatch.chdir(tmp_path)
    table = numbers(20)
    for name, its in (
        ("x-0.parquet", table),
        ("x-1.parquet", table),
        ("x.arrow", table),
        ("none.parquet", table[:0]),
        ("other.parquet", table.drop_columns(["half"])),
        ("kinds.parquet", table.set_column(1, "half", pa.array(np.arange(20.0)))),
        ("more.parquet", table.append_column("z", table["id"])),
    ):
        written(tmp_path / name, its)
    for ending in ("parquet", "arrow"):
        (tmp_path / f"text.{ending}").write_text("no table " * 100)
        (tmp_path / f"empty.{ending}").touch()
    for name in ("several", "bare", "spoilt", "picked"):
        (tmp_path / name).mkdir()
    (tmp_path / "several/dataset_dict.json").write_text('{"splits": ["test", "train"]}')
    (tmp_path / "bare/state.json").write_text("{}")
    (tmp_path / "spoilt/state.json").write_text("{")
    (tmp_path / "picked/state.json").write_text('{"_indices_data_files": [{"filename": "i.arrow"}]}')
    saved(tmp_path / "lost", [table])
    (tmp_path / "lost/data-00000-of-00001.arrow").unlink()
    with pytest.raises((BadSetting, ReadFailed), match=match):
        RecordSource(data)


@pytest.mark.parametrize("kind", KINDS)
def test_files_may_differ_in_metadata_in_the_order_of_columns_and_in_those_that_nobody_reads(tmp_path, kind):
    table, more = numbers(10), numbers(10, 10)
    never = pa.schema([field.with_nullable(False) for field in table.schema])
    files = [
        written(tmp_path / f"0.{kind}", table.append_column("note", pa.array(["n"] * 10)), 4, kind),
        written(tmp_path / f"1.{kind}", more.cast(never).replace_schema_metadata({"pandas": "{}"}), 4, kind),
        written(tmp_path / f"2.{kind}", numbers(10, 20).select(["half", "id", "flag"]), 4, kind),
        written(tmp_path / f"3.{kind}", numbers(10, 30).append_column("note", pa.array(range(10))), 4, kind),
    ]
    rows, names = sorted(zip(*numbers(40).to_pydict().values(), strict=True)), ["id", "half", "flag"]
    with opened(files, columns=names) as source:
        assert (
            sorted(row for batch in source for row in zip(*(batch[n].tolist() for n in names), strict=True))
            == rows
        )
    with opened(files, columns=["half"], filter="id >= 15") as source:
        assert sorted(half for batch in source for half in batch["half"].tolist()) == [
            i / 2 for i in range(15, 40)
        ]
    for asked in ({}, {"columns": ["note", "id"]}, {"columns": ["id"], "filter": "note == 'n'"}):
        with pytest.raises(BadSetting, match=r"1\.\w+ has other columns than .*: 'note' is missing"):
            RecordSource(files, **asked)


@pytest.mark.parametrize("kind", KINDS)
def test_two_columns_of_one_name_are_refused_where_they_are_read(tmp_path, kind):
    twice = pa.Table.from_arrays([pa.array(range(9))] * 4, ["id", "b", "b", "c.b"])
    path = written(tmp_path / f"x.{kind}", twice, 4, kind)
    for condition in (None, "id >= 0"):
        with opened(path, columns=["id", "c.b"], filter=condition) as source:
            assert sorted(id for batch in source for id in batch["id"].tolist()) == [*range(9)]
    for asked in ({}, {"columns": ["id", "b"]}):
        with pytest.raises(BadSetting, match=r"has 2 columns named 'b': give them other names, or leave them out"):
            RecordSource(path, **asked)
    once = pa.Table.from_arrays([pa.array(range(9, 18))] * 3, ["id", "b", "c.b"])
    other = written(tmp_path / f"y.{kind}", once, 4, kind)
    with opened([other, path], columns=["id"]) as source:
        assert sorted(id for batch in source for id in batch["id"].tolist()) == sorted([*range(9), *range(9, 18)])
    with pytest.raises(BadSetting, match=r"x\.\w+ has other columns than .*y.*: 'b' comes 2 times there"):
        RecordSource([other, path], columns=["b"])


def test_nulls_in_a_column_that_may_have_none_are_the_usual_error_and_views_are_texts_anywhere(tmp_path):
    views = pa.array(["a", "ü" * 20, "c"]).cast(pa.string_view())
    place = pa.StructArray.from_arrays([views, pa.array([1, 2, 3])], ["name", "x"])
    table = pa.table({"id": [1, 2, 3], "text": views, "place": place})
    path = written(tmp_path / "x.arrow", table, 2)
    with opened(path, shuffle=False, filter="place.name != 'a'") as source:
        (batch,) = source
    assert list(batch["place.name"]) == list(batch["text"]) == ["ü" * 20, "c"] and batch["id"].tolist() == [2, 3]
    never = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    batch = pa.RecordBatch.from_arrays([pa.array([1, None])], schema=never)
    with pa.OSFile(str(tmp_path / "y.arrow"), "wb") as file, pa.ipc.new_file(file, never) as writer:
        writer.write_batch(batch)
    with opened(tmp_path / "y.arrow") as source, pytest.raises(PenstockError, match="column 'id' has 1 nulls"):
        list(source)


def test_a_file_as_polars_writes_it_has_its_schema_at_its_end_alone(tmp_path):
    path = Path(written(tmp_path / "x.arrow", texts(ROWS), 40, options=pa.ipc.IpcWriteOptions(compression="zstd")))
    right, data = rows_of(path), bytearray(path.read_bytes())
    data[8:12] = (4).to_bytes(4, "little")  # where its first message began
    path.write_bytes(data)
    assert rows_of(path) == right and len(right) > 3
    for damaged in (data[:-3], data[:-20], data[:40] + data[48:], data[:-300] + bytes(290) + data[-10:]):
        path.write_bytes(damaged)
        with pytest.raises(
            BadSetting, match=r"x.arrow is no Arrow file, or is damaged: no message begins at byte 8"
        ):
            RecordSource(path)


@pytest.mark.parametrize(
    ("folders", "named"),
    [
        (["label=cat", "label=dog"], "label"),
        (["split=train/day=2020-01-01"], "day, split"),
        (["id=1/label=cat", "id=2/label=dog"], "label"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_only_folders_hold_is_not_left_out_unasked(tmp_path, kind, folders, named):
    for i, folder in enumerate(folders):
        (tmp_path / folder).mkdir(parents=True)
        path = written(tmp_path / folder / f"k=v.{kind}", numbers(10, 10 * i), 10, kind)
    found = f"{tmp_path}/**/*{Path(path).suffix}"
    with pytest.raises(
        BadSetting, match=rf"{folders[0]}.*: folders \(NAME=VALUE\) hold {named}, which is not read"
    ):
        RecordSource(found)
    with opened(found, columns=["id"]) as source:
        assert sorted(id for batch in source for id in batch["id"]) == [*range(10 * len(folders))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("named", ["exp/lr=0.1,seed=3/x.*", "exp/lr=0.1,seed=3/../lr=0.1,seed=3/x.*", "x.*"])
def test_folders_that_are_named_themselves_are_no_columns(tmp_path, monkeypatch, kind, named):
    folder = tmp_path / "exp" / "lr=0.1,seed=3"
    folder.mkdir(parents=True)
    written(folder / f"x.{kind}", numbers(10), 10, kind)
    monkeypatch.chdir(folder if named == "x.*" else tmp_path)
    suffix = next(folder.iterdir()).suffix
    for given in (named.replace(".*", suffix), [Path(named.replace("x.*", f"*{suffix}"))]):
        with opened(given) as source:
            assert source.samples == 10
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadSetting, match=r"folders \(NAME=VALUE\) hold lr, which is not read"):
        RecordSource(f"exp/*/x{suffix}")


def test_without_pyarrow_the_command_that_installs_it_is_named(path, monkeypatch):
    monkeypatch.setattr("penstock.basics.packages.find_spec", lambda _: None)
    for data in (str(path), f"hf:{path.parent}"):
        with pytest.raises(
            PackageMissing, match=r'RecordSource of tables needs pyarrow: pip install "penstock\[columns\]"'
        ):
            RecordSource(data)
