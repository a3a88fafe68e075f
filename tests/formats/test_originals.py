"""What the originals write is read equal, value by value; and they read what the tests' own writers write."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.formats.conftest import Original
from tests.sources.images.pictures import jpeg, noise
from tests.sources.records.test_field_records import LITDATA as SOME_LITDATA
from tests.sources.records.test_field_records import MDS as SOME_MDS
from tests.sources.records.test_field_records import litdata_item as some_litdata
from tests.sources.records.test_field_records import mds_sample as some_mds
from tests.sources.records.writers import DTYPES, write_litdata, write_mds

import penstock
from penstock.contracts import FieldRecords
from penstock.errors import BadSetting
from penstock.sources.records.files import read
from penstock.sources.records.litdata import LitDataRecords
from penstock.sources.records.mds import MdsRecords

MDS = {**{dtype: dtype for dtype in DTYPES}, **SOME_MDS, "photo": "jpeg", "pixels": "pil"}
LITDATA = {**SOME_LITDATA, "photo": "jpeg"}


def mds_sample(i: int) -> dict[str, Any]:
    numbers = {dtype: np.dtype(dtype).type(i) for dtype in DTYPES}
    return {**numbers, **some_mds(i), "photo": jpeg(noise(16, 9, i)), "pixels": noise(3, 4, i)}


def litdata_item(i: int) -> dict[str, Any]:
    return {**some_litdata(i), "photo": jpeg(noise(16, 9, i))}


def all_of(records: FieldRecords) -> list[dict[str, Any]]:
    return [records.parse(read(place)) for place in records.places(np.arange(len(records.names)))]


def assert_same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert {*mine} == {*other}
        for name, value in mine.items():
            if name == "photo" and not isinstance(other[name], bytes):  # decoded
                np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(value))), other[name])
            elif isinstance(value, np.ndarray):
                assert value.dtype == other[name].dtype and value.shape == other[name].shape
                np.testing.assert_array_equal(value, other[name])
            else:
                assert value == other[name] and isinstance(value, str) == isinstance(other[name], str)


@pytest.mark.parametrize("options", [[], ["compression=zstd:3"], ["compression=gz"], ["compression=br:2"]])
def test_what_mosaicml_streaming_writes_is_read_equal(mds: Original, options: list[str]) -> None:
    folder = mds.write(MDS, [mds_sample(i) for i in range(20)], *options)
    records = MdsRecords(folder)
    assert len(records.parts) > 3
    ours = all_of(records)
    assert_same(ours, mds.read(folder))
    for packed in folder.glob("*.mds.*"):  # it has unpacked them beside
        packed.unlink()
    assert_same(all_of(MdsRecords(folder)), ours)


@pytest.mark.parametrize("level", ["", "chunk"])
def test_what_litdata_writes_is_read_equal(litdata: Original, level: str) -> None:
    options = ["compression=zstd", f"compression_level={level}"] if level else []
    folder = litdata.write(LITDATA, [litdata_item(i) for i in range(20)], *options)
    records = LitDataRecords(folder)
    assert len(records.parts) == 5
    ours = all_of(records)
    assert_same(ours, litdata.read(folder))
    assert_same(all_of(LitDataRecords(folder)), ours)  # which it has unpacked in place


def test_mosaicml_streaming_reads_what_our_writer_writes_which_are_the_same_bytes(mds: Original) -> None:
    kinds = {name: kind for name, kind in MDS.items() if kind != "pil"}
    samples = [{name: mds_sample(i)[name] for name in kinds} for i in range(6)]
    ours = write_mds(mds.folder / "ours", kinds, samples, each=6)
    assert_same(all_of(MdsRecords(ours)), mds.read(ours))
    theirs = mds.write(kinds, samples, f"size_limit={1 << 26}")
    assert (theirs / "shard.00000.mds").read_bytes() == (ours / "shard.00000.mds").read_bytes()
    assert json.loads((theirs / "index.json").read_text()) == json.loads((ours / "index.json").read_text())


def test_litdata_reads_what_our_writer_writes_which_are_the_same_bytes(litdata: Original) -> None:
    items = [litdata_item(i) for i in range(6)]
    ours = write_litdata(litdata.folder / "ours", LITDATA, items)
    assert_same(all_of(LitDataRecords(ours)), litdata.read(ours))
    theirs = litdata.write(LITDATA, items)
    for name in ("chunk-0-0.bin", "chunk-0-1.bin"):
        assert (theirs / name).read_bytes() == (ours / name).read_bytes()


@pytest.mark.parametrize("level", ["batch", "sample"])
def test_chunks_whose_items_litdata_compresses_are_refused_by_name(litdata: Original, level: str) -> None:
    folder = litdata.write(LITDATA, [litdata_item(0)], "compression=zstd", f"compression_level={level}")
    with pytest.raises(BadSetting, match=f"is compressed by {level}, which is not read: .*chunk"):
        LitDataRecords(folder)


def test_rows_that_litdata_keeps_in_arrows_format_are_refused_by_name(litdata: Original) -> None:
    folder = litdata.write({"text": "str", "number": "int"}, [{"text": "x", "number": i} for i in range(5)])
    with pytest.raises(BadSetting, match="Arrow"):
        LitDataRecords(folder)


def test_images_of_both_are_fed(mds: Original, litdata: Original) -> None:
    for prefix, original, sample in (("mds", mds, mds_sample), ("litdata", litdata, litdata_item)):
        kinds = {"photo": "jpeg", "number": "int"}
        samples = [{name: sample(i)[name] for name in kinds} for i in range(10)]
        folder = original.write(kinds, samples)
        source = penstock.ImageSource(f"{prefix}:{folder}", label="number", size=8, batch_size=4, workers=1)
        assert sorted(label for _, labels in source for label in labels.tolist()) == list(range(-9, 1))
        source.close()
        folder.rename(folder.with_name(prefix))
