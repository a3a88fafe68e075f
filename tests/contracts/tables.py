"""The contract of tables: rows in groups, each read whole, by any thread, and never from another file."""

from __future__ import annotations

import pickle
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.contracts import Tables
from penstock.errors import BadSetting, ReadFailed

ROWS = (7, 0, 1, 12)
"""Rows of the groups of each file."""


class TablesContract(ABC):
    """Tests of tables; a subclass named ``Test...`` runs them."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    @abstractmethod
    def open(self, paths: Sequence[str]) -> Tables:
        """Open the tables of some files."""

    @abstractmethod
    def write(self, name: str, table: Any, groups: Sequence[int]) -> str:
        """Write or replace a file of a ``pyarrow.Table``, in groups of so many rows; return its path."""

    def test_its_groups_are_the_rows_of_all_files_in_their_order(self) -> None:
        tables = self._opened(2)
        sizes = [rows for rows in ROWS * 2 if rows]
        assert tables.group_rows.tolist() == sizes
        assert [rows for _, rows in tables.parts] == [sum(ROWS)] * 2
        assert tables.root == str(self.folder) and tables.description
        every = [tables.read(group, ["id"]) for group in range(len(sizes))]
        assert [table.num_rows for table in every] == sizes
        assert [id for table in every for id in table["id"].to_pylist()] == list(range(2 * sum(ROWS)))

    def test_of_columns_and_fields_those_that_are_named_are_read(self) -> None:
        tables = self._opened(1)
        assert tables.schema.names == ["id", "place", "text"]
        assert tables.read(0, ["text", "id"]).select(["id", "text"])[:2].to_pylist() == [
            {"id": 0, "text": "0"},
            {"id": 1, "text": "1"},
        ]
        assert "text" not in tables.read(0, ["id"]).column_names
        assert [row["place"]["x"] for row in tables.read(0, ["place.x"]).to_pylist()] == list(range(0, 14, 2))

    def test_what_it_says_of_groups_is_so(self) -> None:
        tables = self._opened(2)
        groups = range(len(tables.group_rows))
        assert (tables.group_bytes("id") >= 0).all() and len(tables.group_bytes("text")) == len(groups)
        own = [tables.read(group, ["id"])["id"].to_numpy() for group in groups]
        assert tables.ranges("id") in (None, [(ids.min(), ids.max()) for ids in own])
        field: Any = pytest.importorskip("pyarrow.compute").field
        hit = tables.may_hold(field("id") == 8)
        assert len(hit) == len(groups) and all(hit[group] for group in groups if 8 in own[group])
        assert all("1.t" in tables.where(group) for group in groups[len(groups) // 2 :])

    def test_threads_and_other_processes_read_the_same(self) -> None:
        tables = self._opened(2)
        groups = np.arange(len(tables.group_rows)).repeat(20).tolist()
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(partial(tables.read, columns=["id", "text"]), groups))
        other = pickle.loads(pickle.dumps(tables))
        for group, table in zip(groups, found, strict=True):
            assert table.equals(other.read(group, ["id", "text"]))

    @pytest.mark.parametrize("how", ["replaced", "cut", "gone"])
    def test_a_file_that_is_another_one_now_is_not_read(self, how: str) -> None:
        tables = self._opened(2)
        tables.read(0, ["id"])
        path = Path(tables.where(0).rpartition(",")[0])
        match how:
            case "replaced":
                self.write(path.name, self._table(100), ROWS)
            case "cut":
                path.write_bytes(path.read_bytes()[:-9])
            case _:
                path.unlink()
        with pytest.raises(ReadFailed, match=path.name):
            tables.read(0, ["id"])
        assert tables.read(len(tables.group_rows) - 1, ["id"]).num_rows == ROWS[-1]

    def test_columns_that_are_not_alike_are_named_and_other_files_are_refused(self) -> None:
        table = self._table(0)
        one, other = self.write("0.t", table, ROWS), self.write("1.t", table.select(["id", "text"]), ROWS)
        tables = self.open([one, other])
        assert tables.schema.names == ["id", "text"] and [*tables.unlike] == ["place"]
        assert re.search(r"1\.t.* has other columns than .*: 'place' is missing", tables.unlike["place"])
        assert [tables.read(group, ["id", "text"]).num_rows for group in range(6)] == [7, 1, 12] * 2
        with pytest.raises(BadSetting, match="no row lies there"):
            self.open([self.write("2.t", table[:0], [0])])
        with pytest.raises(BadSetting, match="is named twice"):
            self.open([one, one])
        for content in (b"", b"no such file at all", Path(one).read_bytes()[:600]):
            (self.folder / "3.t").write_bytes(content)
            with pytest.raises(BadSetting, match=r"3\.t.*(is no|is damaged|was cut short)"):
                self.open([str(self.folder / "3.t")])

    def _opened(self, files: int) -> Tables:
        return self.open([self.write(f"{i}.t", self._table(i * sum(ROWS)), ROWS) for i in range(files)])

    def _table(self, first: int) -> Any:
        arrow: Any = pytest.importorskip("pyarrow")
        ids = range(first, first + sum(ROWS))
        places = [{"x": 2 * id, "y": id / 2} for id in ids]
        return arrow.table({"id": list(ids), "place": places, "text": [str(id) for id in ids]})
