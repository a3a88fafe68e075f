"""Shuffle windows that are given up: their threads end before the next is read, and hold no memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from tests.sources.tables.files import numbers, written

from penstock.sources.tables.columns import columns_of
from penstock.sources.tables.loading import GroupLoader, TableLeaf, TableReading
from penstock.sources.tables.parquet import ParquetTables
from penstock.sources.tables.shuffle_windows import ShuffleWindow

ONE, OTHER, LAST = (ShuffleWindow(10 * group, 10, (group,)) for group in range(3))


class SlowTables(ParquetTables):
    """Tables whose first group takes long to read; they note what was begun and what was done."""

    def __init__(self, path: str) -> None:
        super().__init__([path])
        self.begun, self.seen = Event(), list[str]()

    def read(self, group: int, columns: Sequence[str]) -> Any:
        self.seen.append(f"{group} begun")
        self.begun.set()
        time.sleep(0.0 if group else 0.3)
        table = super().read(group, columns)
        self.seen.append(f"{group} done")
        return table


@pytest.fixture
def tables(tmp_path: Path) -> SlowTables:
    return SlowTables(written(tmp_path / "x.parquet", numbers(30), 10))


@pytest.fixture
def loader(tables: SlowTables) -> GroupLoader:
    outputs = [TableLeaf.of("id", columns_of(tables.schema, ["id"], tables.root))]
    return GroupLoader(TableReading(tables, outputs, {}), np.arange(3), tables.group_rows, threads=3)


def test_the_next_handful_is_begun_when_the_threads_of_one_that_was_given_up_have_ended(tables, loader):
    with closing(loader):
        loader.begin(ONE)
        tables.begun.wait()
        rows = loader.enter(OTHER, LAST)
        assert tables.seen[:4] == ["0 begun", "0 done", "1 begun", "1 done"]
        ids = np.empty(80, np.uint8)
        rows.pick(np.arange(10), ids, [0])
        assert ids.view(np.int64).tolist() == [*range(10, 20)]


def test_when_a_loader_is_closed_nothing_reads_any_more(tables, loader):
    loader.begin(ONE)
    tables.begun.wait()
    loader.close()
    assert tables.seen == ["0 begun", "0 done"]
