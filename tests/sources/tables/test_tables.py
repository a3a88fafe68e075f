"""Parquet and Arrow files as tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.contracts.tables import TablesContract
from tests.sources.tables.files import written

from penstock.contracts import Tables
from penstock.sources.tables.arrow import ArrowTables
from penstock.sources.tables.parquet import ParquetTables


class TestParquet(TablesContract):
    def open(self, paths: Sequence[str]) -> Tables:
        return ParquetTables(paths)

    def write(self, name: str, table: Any, groups: Sequence[int]) -> str:
        return written(self.folder / name, table, groups, "parquet")


class TestArrowFile(TablesContract):
    def open(self, paths: Sequence[str]) -> Tables:
        return ArrowTables(paths)

    def write(self, name: str, table: Any, groups: Sequence[int]) -> str:
        return written(self.folder / name, table, groups, "arrow")


class TestArrowStream(TestArrowFile):
    def write(self, name: str, table: Any, groups: Sequence[int]) -> str:
        path = Path(written(self.folder / name, table, groups, "stream"))
        return str(path.rename(self.folder / name))
