"""What pandas, polars and Hugging Face's datasets write is read equal, value by value."""

from __future__ import annotations

import io
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.formats.conftest import Original
from tests.sources.images.pictures import jpeg, noise

import penstock
from penstock.errors import BadSetting, SourceError

NUMBERS = [*(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float32", "float64", "bool"]
PANDAS = {
    **{kind: kind for kind in NUMBERS},
    "key": "int64",
    "text": "str",
    "city": "category",
    "when": "datetime64[ns]",
    "zoned": "datetime64[us, Europe/Berlin]",
    "took": "timedelta64[s]",
    "raw": "object",
    "list": "object",
    "whole": "Int64",
    "small": "UInt8",
    "half": "Float32",
    "flag": "boolean",
    "maybe": "string",
    "gap": "float64",
}
FILLS = {"whole": -1, "small": 255, "half": 0.25, "flag": True, "maybe": "none", "gap": np.nan}
DATASETS = {
    **{kind: kind for kind in NUMBERS},
    "text": "string",
    "raw": "binary",
    "when": "timestamp[us]",
    "day": "date32",
    "photo": "image",
    "fruit": "fruit",
    "pair": "pair",
    "items": "items",
    "grid": "grid",
}


def numbers(i: int) -> dict[str, Any]:
    wide = {kind: np.iinfo(kind).max - i for kind in NUMBERS if "int" in kind}
    return {**wide, "float32": i / 4, "float64": i / 3, "bool": i % 3 == 0}


def frame_row(i: int) -> dict[str, Any]:
    when = np.datetime64("2024-03-31T00:30", "ns") + i * 1_000_000_007
    row = {"key": i * i, "text": "wörter " * i, "city": ["Ulm", "Gera", "Köln"][i % 3], "when": when}
    row |= {"zoned": str(when.astype("M8[us]")), "took": np.timedelta64(i * i, "s"), "raw": bytes(range(i))}
    row |= {
        "list": np.arange(i, dtype=np.int16),
        "whole": 2**53 + i,
        "small": i,
        "half": i / 2,
        "flag": i % 2 == 0,
    }
    row |= {"maybe": f"ü{i}", "gap": i / 7}
    return numbers(i) | {name: None if name in FILLS and i % 4 == 1 else value for name, value in row.items()}


def data_row(i: int) -> dict[str, Any]:
    when = np.datetime64("2024-02-28T23:59", "us") + i * 1_000_003
    return {
        **numbers(i),
        "uint64": 2**63 - 1 - i,  # datasets takes no larger ones
        "text": "wörter " * i,
        "raw": bytes(range(i)),
        "when": when.item(),
        "day": when.astype("M8[D]").item(),
        "photo": {"bytes": jpeg(noise(16, 9, i)), "path": f"{i}.jpg"},
        "fruit": ["apple", "fig", "pear"][i % 3],
        "pair": [i / 2, i],
        "items": [*range(i % 5)],
        "grid": [[i, 1, 2], [3, 4, -i]],
    }


def rows_of(data: str, **options: Any) -> list[dict[str, Any]]:
    with closing(penstock.RecordSource(data, ragged="pack", shuffle=False, batch_size=8, **options)) as source:
        return [
            dict(zip(batch, row, strict=True)) for batch in source for row in zip(*batch.values(), strict=True)
        ]


def is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and np.isnan(value))


def assert_same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    assert len(ours) == len(theirs) == 20
    for mine, other in zip(ours, theirs, strict=True):
        assert {*mine} == {*other}
        for name, value in mine.items():
            if isinstance(value, (str, bytes)):
                assert value == other[name]
            else:
                np.testing.assert_array_equal(value, other[name], err_msg=name)
            if name in NUMBERS:
                assert value.dtype == name


@pytest.mark.parametrize("index", [[], ["index=key"]])
def test_what_pandas_writes_is_read_equal(tables: Original, index: list[str]) -> None:
    folder = tables.write(PANDAS, [frame_row(i) for i in range(20)], "library=pandas", *index)
    theirs = tables.read(folder)
    assert sum(is_missing(row[name]) for row in theirs for name in FILLS) == 5 * len(FILLS)
    filled = [
        {name: FILLS[name] if name in FILLS and is_missing(value) else value for name, value in row.items()}
        for row in theirs
    ]
    ours = rows_of(f"{folder}/*.parquet", fill=FILLS)
    assert_same(ours, filled)
    assert [row["key"] for row in ours] == [i * i for i in range(20)]
    with pytest.raises(SourceError, match="column 'whole' has 2 nulls, the first in row 1: pass fill="):
        rows_of(f"{folder}/*.parquet", columns=["whole"])


def test_what_datasets_writes_is_read_equal(tables: Original) -> None:
    folder = tables.write(DATASETS, [data_row(i) for i in range(20)], "library=datasets")
    theirs = tables.read(folder)
    with pytest.raises(BadSetting, match="column 'grid' is of type list<item: list<item: int16>>, which no"):
        rows_of(f"hf:{folder}")
    ours = rows_of(f"hf:{folder}", columns=[name for name in DATASETS if name != "grid"])
    for i, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        assert mine.pop("photo.path") == f"{i}.jpg" and other.pop("grid") == [[i, 1, 2], [3, 4, -i]]
        photo = Image.open(io.BytesIO(mine.pop("photo.bytes")))
        np.testing.assert_array_equal(np.asarray(photo), other.pop("photo"))
    assert_same(ours, theirs)


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
def test_what_polars_writes_is_read_equal(tables: Original, compression: str) -> None:
    kinds = {**{kind: kind.title().replace("Uint", "UInt").replace("Bool", "Boolean") for kind in NUMBERS}}
    kinds |= {"text": "String", "raw": "Binary", "day": "Date"}
    rows = [{name: data_row(i)[name] for name in kinds} | {"uint64": 2**64 - 1 - i} for i in range(20)]
    folder = tables.write(kinds, rows, "library=polars", f"compression={compression}")
    ours = rows_of(f"{folder}/rows.arrow")
    assert [row["uint64"] for row in ours] == [2**64 - 1 - i for i in range(20)]
    assert_same(ours, tables.read(folder))
    assert [row["text"] for row in rows_of(f"{folder}/rows.arrow", filter="text == 'wörter wörter '")] == [
        "wörter wörter "
    ]


def test_images_that_datasets_writes_are_fed_with_their_classes(tables: Original) -> None:
    folder = tables.write(DATASETS, [data_row(i) for i in range(20)], "library=datasets")
    source = penstock.ImageSource(
        f"hf:{folder}", image="photo", label="fruit", size=8, batch_size=4, workers=1, shuffle=False
    )
    with closing(source):
        assert source.classes == ["apple", "fig", "pear"]
        assert [label for _, labels in source for label in labels.tolist()] == [i % 3 for i in range(20)]
