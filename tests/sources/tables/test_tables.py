"""Parquet and Arrow files as tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.tables import TablesContract
from tests.sources.tables.files import KINDS, written

from penstock.contracts import Tables
from penstock.sources.tables.arrow import ArrowTables
from penstock.sources.tables.parquet import ParquetTables


class TestFiles(TablesContract):
    @pytest.fixture(autouse=True, params=KINDS)
    def _kind(self, request: pytest.FixtureRequest) -> None:
        self.kind = request.param

    def open(self, paths: Sequence[str]) -> Tables:
        return (ParquetTables if self.kind == "parquet" else ArrowTables)(paths)

    def write(self, name: str, table: Any, groups: Sequence[int]) -> str:
        path = Path(written(self.folder / name, table, groups, self.kind))
        return str(path.rename(self.folder / name))
