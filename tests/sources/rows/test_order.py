"""Which rows of tables come when: shuffle windows of row groups, and how well a batch is shuffled."""

from __future__ import annotations

import pickle
import re
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from tests.examples import examples
from tests.sources.tables.files import numbers, written

from penstock import RecordSource
from penstock.contracts import Cursor
from penstock.errors import BadSetting, Untravelled


def ids_of(loader: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in loader]


def blocks_of(source: RecordSource, cycle: int = 0) -> list[list[int]]:
    with closing(source.open(Cursor(cycle, 0))) as blocks:
        return [block.tree["id"].tolist() for block in blocks]


def sorted_by_label(folder: Path, groups: int = 100, rows: int = 600) -> str:
    """Rows of 10 classes, one after the other."""
    ids = np.arange(groups * rows)
    table = pa.table({"id": ids, "label": (ids * 10 // len(ids)).astype(np.int8)})
    return written(folder / "sorted.parquet", table, rows)


def test_all_rows_that_fit_are_shuffled_so_well_that_labels_are_even_in_each_block(tmp_path):
    with closing(RecordSource(sorted_by_label(tmp_path), batch_size=600, seed=1)) as source:
        assert "60,000 rows in 100 row groups of" in source.description
        assert source.description.endswith("all shuffled together")
        found = [np.bincount(batch["label"], minlength=10) for batch in source]
    assert len(found) == 100
    assert sum(chisquare(counts).pvalue > 0.01 for counts in found) >= 96


@pytest.mark.parametrize("batch_size", [20, 100, 1000])
def test_a_block_has_rows_of_as_many_groups_as_the_description_says(tmp_path, batch_size):
    groups, rows = 64, 150
    path = written(tmp_path / "x.parquet", numbers(groups * rows), rows)
    with closing(RecordSource(path, shuffle_bytes=groups * rows * 13 // 8, batch_size=batch_size)) as source:
        match = re.search(r"shuffled (\d+) at a time: a block has rows of ([\d.]+)% of them", source.description)
        assert match is not None
        said = float(match[2]) / 100 * groups
        assert int(match[1]) == len(source._data.order.of(0)[0].groups) == 4
        seen = [len({id // rows for id in block}) for cycle in range(3) for block in blocks_of(source, cycle)]
    assert np.mean(seen) == pytest.approx(said, rel=0.1)


def test_handfuls_are_drawn_afresh_in_each_cycle_and_end_where_blocks_do(tmp_path):
    path = written(tmp_path / "x.parquet", numbers(640), 16)
    with closing(RecordSource(path, shuffle_bytes=2 * 4 * 16 * 13, batch_size=10)) as source:
        shuffle_windows: list[set[frozenset[int]]] = []
        for cycle in range(3):
            starts, at, own = [*source.starts(cycle), 640], 0, list[list[int]]()
            for block in blocks_of(source, cycle):
                if at in starts:
                    own.append([])
                own[-1] += block
                at += len(block)
            assert [len(each) for each in own] == [64] * 10 == np.diff(starts).tolist()
            drawn = [frozenset(id // 16 for id in each) for each in own]
            assert all(len(groups) == 4 for groups in drawn)
            assert all(sorted(each) != each for each in own)
            shuffle_windows.append(set(drawn))
        assert all(len(one & other) <= 2 for one, other in pairwise(shuffle_windows))


@pytest.mark.whole
@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.integers(0, 30), min_size=2, max_size=12).filter(any),
    st.integers(1, 25),
    st.integers(1, 1500),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
)
def test_alone_batches_are_full_and_ranks_share_each_epoch_whatever_the_groups(
    tmp_path_factory, sizes, batch_size, shuffle_bytes, world, drop_last, shuffle
):
    rows = sum(sizes)
    path = written(tmp_path_factory.getbasetemp() / "alone.parquet", numbers(rows), sizes)
    options: dict[str, Any] = {"batch_size": batch_size, "shuffle_bytes": shuffle_bytes, "workers": 1}
    options |= {"drop_last": drop_last, "shuffle": shuffle}
    with closing(RecordSource(path, **options)) as plain:
        orders = [[id for block in blocks_of(plain, cycle) for id in block] for cycle in (0, 1)]
        epochs = [ids_of(plain) for _ in range(2)]
        assert [len(epoch) for epoch in epochs] == [len(plain)] * 2
    for order, epoch in zip(orders, epochs, strict=True):
        assert sorted(order) == list(range(rows))
        assert all(
            len(batch) == batch_size for batch in epoch[: -(rows % batch_size > 0) or None] if not drop_last
        )
        whole = [id for batch in epoch for id in batch]
        assert whole == (order[: len(whole)] if drop_last else order)
        assert not drop_last or len(whole) == rows // batch_size * batch_size
    ranks = [RecordSource(path, shard=(rank, world), **options) for rank in range(world)]
    try:
        for order in orders:
            try:
                parts = [ids_of(rank) for rank in ranks]
            except BadSetting as error:
                assert "cannot be split among" in str(error)  # noqa: PT017
                return
            assert {len(part) for part in parts} == {len(ranks[0])}
            every = [id for step in zip(*parts, strict=True) for batch in step for id in batch]
            assert every == order[: len(every)]
            assert len(every) == (rows // (batch_size * world) * batch_size * world if drop_last else rows)
    finally:
        for rank in ranks:
            rank.close()


def test_without_shuffling_rows_come_in_the_order_of_the_files(tmp_path):
    for i in range(3):
        written(tmp_path / f"{i}.parquet", numbers(50, 50 * i), [20, 30])
    for shuffle_bytes in ("1GiB", 300, 900):
        with closing(RecordSource(tmp_path / "*.parquet", shuffle=False, shuffle_bytes=shuffle_bytes)) as source:
            for _ in range(2):
                assert [id for batch in ids_of(source) for id in batch] == list(range(150))
            assert source.description.endswith("in their order")


@pytest.mark.parametrize("kind", ["memory", "handfuls", "whole rows", "unsorted", "not shuffled"])
def test_files_that_are_sorted_are_warned_of_where_they_cannot_be_shuffled_well(tmp_path, capsys, kind):
    table = pa.table({"id": range(1000), "label": [i // 100 for i in range(1000)]})
    if kind == "unsorted":
        table = table.set_column(1, "label", pa.array([i % 10 for i in range(1000)]))
    path = written(tmp_path / "x.parquet", table, 1000 if kind == "whole rows" else 20)
    options: dict[str, Any] = {} if kind == "memory" else {"shuffle_bytes": 1600}
    RecordSource(path, shuffle=kind != "not shuffled", **options).close()
    error = capsys.readouterr().err
    if kind == "whole rows":
        assert (
            error.count("\n") == 1
            and "row groups of up to 16 KB in memory do not fit half of shuffle_bytes" in error
        )
    elif kind == "handfuls":
        assert re.search(
            r"sorted by 'label', and a batch has rows of [\d.]+% of their 50 row groups only: raise", error
        )
    else:
        assert not error


def test_segments_need_tables_that_fit(tmp_path):
    path = written(tmp_path / "x.parquet", numbers(100))
    with closing(RecordSource(path, segments=3, batch_size=10)) as source:
        assert len(source.segment_starts) == 3
    with pytest.raises(
        BadSetting, match=r"segments=3: tables of .* in memory, more than shuffle_bytes=.*, have none"
    ):
        RecordSource(path, segments=3, shuffle_bytes=500)
    for segments in (0, -2, "x"):
        with pytest.raises(BadSetting, match=r"segments=.*must be a whole number"):
            RecordSource(path, segments=segments)


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_source_travels_until_it_has_read_and_then_says_why_not(tmp_path, ending):
    path = written(tmp_path / f"x.{ending}", numbers(100))
    with closing(RecordSource(path, filter="id < 50", decode=dict, workers=1)) as source:
        pickle.loads(pickle.dumps(source))
    with closing(RecordSource(path, filter="id < 50")) as source:
        with closing(pickle.loads(pickle.dumps(source))) as other:
            assert ids_of(other) == ids_of(source)
        with pytest.raises(Untravelled, match="cannot be pickled: it has files or processes open"):
            pickle.dumps(source)
