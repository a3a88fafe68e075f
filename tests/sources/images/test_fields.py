"""Images that are a field of samples in shards, or of tables' rows: as from a folder, whatever holds for those."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.object_store import put
from tests.sources.images.levels import OfGreyImages, grey_images
from tests.sources.images.pictures import blocks, equal, jpeg, noise
from tests.sources.records.test_shards import packed
from tests.sources.records.writers import write_litdata, write_mds
from tests.sources.tables.files import written
from tests.support.contracts import LOADING, only

import penstock
from penstock import Cache, ImageSource
from penstock.errors import BadSetting, SourceError
from penstock.sources.formats import named_source

COUNT = 23
IMAGES = [jpeg(noise(30 + i, 40, i)) for i in range(COUNT)]
KINDS = ("mds", "mds-zstd", "litdata", "litdata-zstd", "tar")
TABLES = ("parquet", "arrow")


def shards(folder: Path, kind: str, images: list[bytes] = IMAGES) -> tuple[str, dict[str, Any]]:
    """Write images in a format; give what ImageSource takes for them."""
    kind, _, compression = kind.partition("-")
    samples = [{"photo": image, "class": i % 5, "text": "x" * i} for i, image in enumerate(images)]
    if kind == "tar":
        folder.mkdir()
        for first in (0, 10):
            some = range(first, len(images) if first else 10)
            members = [({f"{i:03}.cls": str(i % 5).encode(), f"{i:03}.jpg": images[i]}) for i in some]
            packed(folder / f"{first}.tar", {name: data for each in members for name, data in each.items()})
        return f"{folder}/*.tar", {"image": "jpg", "label": "cls"}
    if kind in TABLES:
        folder.mkdir()
        return written(folder / f"x.{kind}", pa.Table.from_pylist(samples), 3), {"label": "class"}
    if kind == "mds":
        columns = {"photo": "jpeg", "class": "int", "text": "str"}
        write_mds(folder, columns, samples, each=10, compression=compression or None)
    else:
        leaves = {"photo": "jpeg", "class": "int", "text": "str"}
        write_litdata(folder, leaves, samples, each=10, compression=compression or None)
    return f"{kind}:{folder}", {"label": "class"}


def made(images: Any, **options: Any) -> ImageSource:
    return ImageSource(images, **{"size": 16, "batch_size": 5, "workers": 1, **options})


@pytest.fixture
def expected(tmp_path: Path, make: Callable[..., ImageSource]) -> list[Any]:
    """What a folder of the images gives."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for i, image in enumerate(IMAGES):
        (folder / f"{i:03}.jpg").write_bytes(image)
    return blocks(make(folder, labels=[i % 5 for i in range(COUNT)]))


@pytest.mark.parametrize("kind", [*KINDS, *TABLES])
def test_images_and_labels_are_those_of_a_folder_and_may_be_left_out_or_ones_own(tmp_path, kind, expected, make):
    named, options = shards(tmp_path / "shards", kind)
    source = make(named, **options)
    assert equal(blocks(source), expected)
    assert len(source.paths) == len({*source.paths}) == COUNT
    assert list(source.classes) == []
    assert f"{COUNT} {'rows' if kind in TABLES else 'samples'}" in source.description
    assert source.order == make(named, **options).order
    options.pop("label")
    (plain,) = make(named, batch_size=COUNT, **options)
    assert len(plain) == COUNT
    ((_, labels),) = make(named, batch_size=COUNT, labels=["ab"[i % 2] for i in range(COUNT)], **options)
    assert sorted(labels.tolist()) == [0] * 12 + [1] * 11


@pytest.mark.parametrize("kind", ["litdata-zstd", "tar"])
def test_a_cache_keeps_the_bytes_of_samples(tmp_path, kind, expected, make):
    named, options = shards(tmp_path / "shards", kind)
    first = make(named, **options)
    places = first._data.records.places(np.arange(COUNT))
    for path in {place.path for place in places}:
        os.utime(path, (1e9, 1e9))
    time.sleep(0.15)  # files that were written just now are not kept
    for hits in (0, COUNT):
        source = make(named, cache=Cache(tmp_path / "cache", "10MB"), **options)
        assert equal(blocks(source), expected)
        assert source.cached.hits == hits
        source.close()
    with pytest.raises(BadSetting, match='Pass keep="bytes"'):
        made(named, cache=Cache(tmp_path / "cache", "10MB", keep="pixels"), **options)


@pytest.mark.parametrize("kind", ["mds", "litdata", "tar"])
def test_a_bad_image_or_sample_is_named_or_skipped_without_its_label(tmp_path, kind, make):
    images = [*IMAGES[:5], b"\xff\xd8 is no image", *IMAGES[6:]]
    named, options = shards(tmp_path / "shards", kind, images)
    with pytest.raises(SourceError, match=r"at byte .* cannot be decoded"):
        blocks(make(named, **options))
    source = make(named, on_bad="skip", shuffle=False, **options)
    labels = np.concatenate([labels for _, labels in blocks(source)])
    assert labels.tolist() == [-100 if i == 5 else i % 5 for i in range(COUNT)]
    if kind == "mds":
        path = tmp_path / "shards" / "shard.00002.mds"
        data = bytearray(path.read_bytes())
        data[source._data.records.places(np.array([21]))[0].offset] ^= 1  # the size of its first column
        path.write_bytes(data)
        labels = np.concatenate(
            [labels for _, labels in blocks(make(named, on_bad="skip", shuffle=False, **options))]
        )
        assert labels.tolist() == [-100 if i in (5, 21) else i % 5 for i in range(COUNT)]


@pytest.mark.whole
def test_shards_in_a_bucket_give_what_local_ones_give(s3, tmp_path, expected, make):
    for kind in ("mds-zstd", "litdata"):  # of tars: test_remote
        _, options = shards(tmp_path / kind, kind)
        for path in (tmp_path / kind).iterdir():
            put(f"{kind}/{path.name}", path.read_bytes())
        remote = f"{kind.partition('-')[0]}:s3://bucket/{kind}"
        assert equal(blocks(make(remote, **options)), expected), kind
    with pytest.raises(BadSetting, match="no folder of MDS shards"):
        made("mds:s3://bucket/nowhere")


@only(*LOADING, "what_is_wanted")
class TestShards(OfGreyImages):
    """The contract of sources, a part of each block for those who select included."""

    count = COUNT

    @pytest.fixture(autouse=True, params=["mds", pytest.param("tar", marks=pytest.mark.whole)])
    def _shards(self, tmp_path: Path, request: pytest.FixtureRequest) -> None:
        self.named, self.options = shards(tmp_path / "shards", request.param, grey_images(COUNT))

    def make(self, seed: int = 0) -> ImageSource:
        return made(self.named, batch_size=4, segments=3, seed=seed, **self.options)


def test_a_trainer_that_selects_has_the_labels_of_its_images(tmp_path):
    named, options = shards(tmp_path / "shards", "mds-zstd")

    def make() -> ImageSource:
        return made(named, shuffle=False, **options)

    with penstock.share(make, "part", 4, select=[3, 7, 8, 21], linger=0.1) as loader:
        for _ in range(2):
            labels = [label for _, labels in loader for label in labels.tolist()]
            assert sorted(labels) == [1, 2, 3, 3]


def test_fields_that_are_not_there_or_of_another_type_are_refused_in_words(tmp_path):
    named, _ = shards(tmp_path / "shards", "mds")
    for options, match in (
        ({"image": "x"}, r"image='x' holds no images: pass image=, one of class \(int64\), photo \(jpeg\), text"),
        ({"image": "text"}, "image='text' holds no images"),
        ({"label": "text"}, "label='text' holds no whole numbers: pass .* or labels= with"),
        ({"label": "x"}, "label='x' holds no whole numbers"),
        ({"label": "class", "labels": [0] * COUNT}, "both given"),
    ):
        with pytest.raises(BadSetting, match=match):
            made(named, **options)
    both = [{"a": IMAGES[0], "b": IMAGES[1]}]
    write_mds(tmp_path / "two", {"a": "jpeg", "b": "png"}, both)
    write_mds(tmp_path / "none", {"a": "bytes", "b": "bytes"}, both)
    with pytest.raises(BadSetting, match="2 fields hold images: pass image="):
        made(f"mds:{tmp_path / 'two'}")
    with pytest.raises(BadSetting, match="0 fields hold images: pass image="):
        made(f"mds:{tmp_path / 'none'}")
    source = made(f"mds:{tmp_path / 'none'}", image="b")
    assert len(blocks(source)) == 1
    source.close()
    with pytest.raises(BadSetting, match="give mds:FOLDER, litdata:FOLDER, or tar files"):
        made(tmp_path, image="jpg")


def test_a_label_that_int64_does_not_hold_is_a_bad_sample(tmp_path, make):
    folder = write_mds(tmp_path / "x", {"a": "jpeg", "n": "str_int"}, [{"a": IMAGES[0], "n": 2**63}])
    with pytest.raises(SourceError, match="int64 does not hold the label 9223372036854775808"):
        blocks(make(f"mds:{folder}", label="n"))


@pytest.mark.parametrize("kind", ["mds", "litdata", "tar"])
def test_only_the_fields_of_the_image_and_the_label_are_read(tmp_path, kind, expected, make):
    if kind == "tar":
        members = [
            {f"{i:03}.cls": str(i % 5).encode(), f"{i:03}.jpg": image, f"{i:03}.json": b"no JSON"}
            for i, image in enumerate(IMAGES)
        ]
        packed(tmp_path / "x.tar", {name: data for each in members for name, data in each.items()})
        named, options = str(tmp_path / "x.tar"), {"image": "jpg", "label": "cls"}
    else:
        samples = [{"photo": image, "class": i % 5, "text": "x" * i} for i, image in enumerate(IMAGES)]
        columns = {"photo": "jpeg", "class": "int", "text": "str"}
        folder = (write_mds if kind == "mds" else write_litdata)(tmp_path / "shards", columns, samples, each=10)
        index = (folder / "index.json").read_text()
        (folder / "index.json").write_text(index.replace('"str"', '"pkl"' if kind == "mds" else '"pickle"'))
        named, options = f"{kind}:{folder}", {"label": "class"}
    assert equal(blocks(make(named, **options)), expected)
    without = blocks(make(named, **options | {"label": None}))
    assert equal([[np.stack(images)] for images in without], [[images] for images, _ in expected])
    if kind != "tar":
        with pytest.raises(BadSetting, match=r"image='text' holds no images: .*text .*not read"):
            make(named, image="text")


def test_penstock_feed_takes_them(tmp_path):
    named, options = shards(tmp_path / "shards", "mds")
    feed = named_source(f"images:{named}")
    assert feed is not None
    source = feed.open(segments=None, seed=0, size=16, workers=1, **options)
    assert sum(len(labels) for _, labels in source) == COUNT
    source.close()
