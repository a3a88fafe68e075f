"""``RecordSource`` is a source, whatever it reads."""

from __future__ import annotations

import io
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from tests.sources.records.writers import write_litdata, write_mds
from tests.sources.rows.decoding import doubled, worded
from tests.sources.tables.files import numbers, saved, written
from tests.support.contracts import LOADING, only

from penstock import RecordSource, pack
from penstock.sources.tables import packed
from penstock.testing.source import SourceContract

ROWS = 203
UNEQUAL = (1, 40, 3, 17, 0, 30, 25, 9, 38, 2, 11, 20, 7)


class RowsContract(SourceContract):
    """Rows whose other columns follow from their number."""

    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def _data(self, tmp_path: Path) -> None:
        self.data = self.write(tmp_path)

    def write(self, folder: Path) -> str:
        return written(folder / "x.parquet", numbers(ROWS))

    def make(self, seed: int = 0) -> RecordSource:
        return RecordSource(self.data, **{"batch_size": 8, "seed": seed, "workers": 1, **self.options})

    def expected(self) -> Counter[Any]:
        return Counter(range(ROWS))

    def rows_of(self, tree: Any) -> list[Any]:
        ids = np.asarray(tree["id"])
        for name, values in self.values(ids).items():
            assert np.asarray(tree[name]).tolist() == values
        return ids.tolist()

    def values(self, ids: np.ndarray) -> dict[str, list[Any]]:
        return {"half": (ids / 2).tolist(), "flag": (ids % 3 == 0).tolist()}


class TestParquetInMemory(RowsContract):
    options: ClassVar[dict[str, Any]] = {"segments": 3}


class TestParquetInHandfuls(RowsContract):
    options: ClassVar[dict[str, Any]] = {"shuffle_bytes": 1600}

    def write(self, folder: Path) -> str:
        return written(folder / "x.parquet", numbers(ROWS), UNEQUAL)

    def make(self, seed: int = 0) -> RecordSource:
        source = super().make(seed)
        assert len(source.starts(0)) > 3
        return source


@pytest.mark.whole
class TestGroupsLargerThanTheShuffleBuffer(RowsContract):
    options: ClassVar[dict[str, Any]] = {"shuffle_bytes": 100}


@pytest.mark.whole
@only(*LOADING)
class TestArrowFiles(RowsContract):
    def write(self, folder: Path) -> str:
        for i in range(3):
            written(folder / f"{i}.arrow", numbers(ROWS)[i * 70 : (i + 1) * 70], 9, "arrow")
        return str(folder / "*.arrow")


@only(*LOADING)
class TestArrowStreamInHandfuls(RowsContract):
    options: ClassVar[dict[str, Any]] = {"shuffle_bytes": 1600}

    def write(self, folder: Path) -> str:
        return written(folder / "x", numbers(ROWS), UNEQUAL, "stream")


@pytest.mark.whole
@only(*LOADING)
class TestSavedToDisk(RowsContract):
    def write(self, folder: Path) -> str:
        return saved(folder / "hf", [numbers(100), numbers(103, 100)])


@only(*LOADING)
class TestPacked(RowsContract):
    @pytest.fixture(autouse=True)
    def _small_groups(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(packed, "_GROUP_BYTES", 13 * 17)

    def write(self, folder: Path) -> str:
        ids = np.arange(ROWS)
        pack({"id": ids, "half": (ids / 2).astype(np.float32), "flag": ids % 3 == 0}, folder / "packed")
        return f"packed:{folder / 'packed'}"


@pytest.mark.whole
@only(*LOADING)
class TestPackedInHandfuls(TestPacked):
    options: ClassVar[dict[str, Any]] = {"shuffle_bytes": 1600}


@pytest.mark.whole
@only(*LOADING)
class TestPackedDecoded(TestPacked):
    keeps_workers = True
    options: ClassVar[dict[str, Any]] = {"decode": doubled, "segments": 4}

    def values(self, ids: np.ndarray) -> dict[str, list[Any]]:
        return {"pair": np.stack([ids / 2, ids], 1).tolist()}


class TestParquetInOrder(RowsContract):
    options: ClassVar[dict[str, Any]] = {"shuffle": False, "shuffle_bytes": 1600}

    def rows_of(self, tree: Any) -> list[Any]:
        ids = super().rows_of(tree)
        assert ids == sorted(ids)
        return ids


@pytest.mark.whole
@only(*LOADING)
class TestTexts(RowsContract):
    options: ClassVar[dict[str, Any]] = {"shuffle_bytes": 4000, "ragged": "pack"}

    def write(self, folder: Path) -> str:
        ids = range(ROWS)
        lists = [list(range(id % 5)) for id in ids]
        table = numbers(ROWS).append_column("text", pa.array(map("ü".__mul__, range(ROWS))))
        return written(folder / "x.parquet", table.append_column("list", pa.array(lists)), UNEQUAL)

    def rows_of(self, tree: Any) -> list[Any]:
        ids = super().rows_of({name: leaf for name, leaf in tree.items() if name != "list"})
        assert [row.tolist() for row in tree["list"]] == [list(range(id % 5)) for id in ids]
        return ids

    def values(self, ids: np.ndarray) -> dict[str, list[Any]]:
        return super().values(ids) | {"text": ["ü" * id for id in ids]}


class TestDecoded(RowsContract):
    keeps_workers = True
    options: ClassVar[dict[str, Any]] = {"decode": doubled, "segments": 4, "workers": 2}

    def values(self, ids: np.ndarray) -> dict[str, list[Any]]:
        return {"pair": np.stack([ids / 2, ids], 1).tolist()}


@pytest.mark.whole
@only(*LOADING)
class TestDecodedInHandfuls(TestDecoded):
    options: ClassVar[dict[str, Any]] = {"decode": doubled, "shuffle_bytes": 1600}


@pytest.mark.whole
@only(*LOADING)
class TestDecodedToText(TestDecoded):
    options: ClassVar[dict[str, Any]] = {"decode": worded, "shuffle_bytes": 1600}

    def values(self, ids: np.ndarray) -> dict[str, list[Any]]:
        return {"text": ["ü" * id for id in ids]}


@only(*LOADING, "what_is_wanted", "broken_off")
class TestMds(RowsContract):
    keeps_workers = True
    options: ClassVar[dict[str, Any]] = {"segments": 4}

    def write(self, folder: Path) -> str:
        samples = [{"id": i, "half": np.float32(i / 2), "flag": int(i % 3 == 0)} for i in range(ROWS)]
        return f"mds:{write_mds(folder / 'mds', {'id': 'int', 'half': 'float32', 'flag': 'uint8'}, samples, 50)}"


@pytest.mark.whole
@only(*LOADING)
class TestLitDataWithTexts(RowsContract):
    keeps_workers = True

    def write(self, folder: Path) -> str:
        items = [{"id": i, "half": i / 2, "flag": i % 3 == 0, "text": "ü" * i} for i in range(ROWS)]
        kinds = {"id": "int", "half": "float", "flag": "bool", "text": "str"}
        return f"litdata:{write_litdata(folder / 'litdata', kinds, items, 30)}"

    def values(self, ids: np.ndarray) -> dict[str, list[Any]]:
        return super().values(ids) | {"text": ["ü" * id for id in ids]}


@pytest.mark.whole
@only(*LOADING)
class TestTar(RowsContract):
    keeps_workers = True

    def write(self, folder: Path) -> str:
        with tarfile.open(folder / "x.tar", "w") as tar:
            for i in range(ROWS):
                for end, data in (("id", i), ("txt", "ü" * i)):
                    content = str(data).encode()
                    member = tarfile.TarInfo(f"{i:04}.{end}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
        return str(folder / "x.tar")

    def rows_of(self, tree: Any) -> list[Any]:
        ids = [int(id) for id in tree["id"]]
        assert tree["txt"] == ["ü" * id for id in ids]
        return ids
