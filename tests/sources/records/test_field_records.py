"""The contract of records with fields, kept by each format, and by each compression of it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.sources.records.test_shards import packed
from tests.sources.records.writers import write_litdata, write_mds

from penstock.contracts import FieldRecords
from penstock.sources.formats import field_records_of
from penstock.testing.records import FieldRecordsContract

MDS = {
    "number": "int",
    "small": "uint8",
    "real": "float32",
    "text": "str",
    "raw": "bytes",
    "tree": "json",
    "any": "ndarray",
    "row": "ndarray:float32",
    "table": "ndarray:int16:2,3",
    "long": "str_int",
    "half": "str_float",
    "exact": "str_decimal",
}
LITDATA = {
    "number": "int",
    "real": "float",
    "flag": "bool",
    "text": "str",
    "raw": "bytes",
    "row": "no_header_numpy:9",
    "table": "numpy",
    "steps": "no_header_tensor:18",
    "grid": "tensor",
}
COUNT = 11


def mds_sample(i: int) -> dict[str, Any]:
    return {
        "any": np.arange(2 * (300 + i), dtype=np.int16).reshape(2, -1),
        "exact": f"{i}.50",
        "half": i / 3,
        "long": 10 ** (3 * i),
        "number": np.int64(-i),
        "raw": bytes(range(i)),
        "real": np.float32(i / 3),
        "row": np.arange(2 + 2 * i, dtype=np.float32).reshape(2, -1),
        "small": np.uint8(i),
        "table": i * np.arange(6, dtype=np.int16).reshape(2, 3),
        "text": "ö" * i,
        "tree": {"a": [i, None]},
    }


def litdata_item(i: int) -> dict[str, Any]:
    return {
        "number": np.int64(-i),
        "real": np.float64(i / 3),
        "flag": np.bool_(i % 2),
        "text": "ö" * i,
        "raw": bytes(range(i)),
        "row": np.arange(i, dtype=np.float32),
        "table": np.arange(2 * i, dtype=np.int16).reshape(i, 2),
        "steps": np.arange(i),
        "grid": np.arange(2 * i, dtype=np.float32).reshape(2, i),
    }


class TestFolders(FieldRecordsContract):
    @pytest.fixture(autouse=True, params=["mds", "mds zstd", "litdata", "litdata zstd"])
    def _format(self, request: pytest.FixtureRequest) -> None:
        self.format, _, compression = request.param.partition(" ")
        self.compression = compression or None

    def samples(self) -> list[dict[str, Any]]:
        return [(mds_sample if self.format == "mds" else litdata_item)(i) for i in range(COUNT)]

    def make(self) -> FieldRecords:
        folder = self.folder / "data"
        if not folder.exists():
            write, kinds = (write_mds, MDS) if self.format == "mds" else (write_litdata, LITDATA)
            write(folder, kinds, self.samples(), compression=self.compression)
        records = field_records_of(f"{self.format}:{folder}")
        assert records is not None
        return records

    def file_of(self, records: FieldRecords, record: int) -> Path:
        return self.folder / "data" / str(Path(records.names[record]).parent)


class TestSamplesOfTars(FieldRecordsContract):
    def samples(self) -> list[dict[str, Any]]:
        return [
            {
                "__key__": f"folder/{i:03}",
                "bin": bytes(range(i)),
                "cls": np.int64(i),
                "json": {"a": [i]},
                "npy": np.full((i, 2), i, np.float32),
                "seg.png": bytes(600 + i),
                "txt": "ö" * i,
            }
            for i in range(COUNT)
        ]

    def make(self) -> FieldRecords:
        if not (self.folder / "0.tar").exists():
            for number, some in enumerate((self.samples()[:6], self.samples()[6:])):
                members = {name: data for sample in some for name, data in members_of(sample).items()}
                packed(self.folder / f"{number}.tar", {"folder/README": b"no sample", **members})
        records = field_records_of(str(self.folder / "{0..1}.tar"))
        assert records is not None
        return records


def members_of(sample: dict[str, Any]) -> dict[str, bytes]:
    key, array = sample["__key__"], io.BytesIO()
    np.save(array, np.asfortranarray(sample["npy"]))
    return {
        f"{key}.bin": sample["bin"],
        f"{key}.cls": b"%d\n" % sample["cls"],
        f"{key}.json": json.dumps(sample["json"]).encode(),
        f"{key}.NPY": array.getvalue(),
        f"{key}.seg.png": sample["seg.png"],
        f"{key}.txt": sample["txt"].encode(),
    }
