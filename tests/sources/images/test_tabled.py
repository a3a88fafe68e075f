"""Images that are a column of tables: as from a folder, and given up shuffle window by shuffle window."""

from __future__ import annotations

import gc
import json
import os
import pickle
import random
import signal
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.object_store import put
from tests.sources.images.levels import OfGreyImages, grey_images
from tests.sources.images.pictures import blocks, equal, jpeg, noise
from tests.sources.tables.files import written
from tests.support.contracts import LOADING, only

from penstock import Cache, ImageSource
from penstock.contracts import Cursor
from penstock.errors import BadSetting, SourceError
from penstock.sources.workers.pool import WorkerPool

pytestmark = pytest.mark.whole

COUNT = 23
IMAGES = [jpeg(noise(30 + i, 40, i)) for i in range(COUNT)]
FEW = 2 * sum(map(len, IMAGES)) // 4
"""Memory for several shuffle windows of row groups in a cycle."""


def table(folder: Path, images: list[Any] = IMAGES, labels: Any = None) -> str:
    """Write images and their labels in groups of three rows."""
    labels = [i % 5 for i in range(len(images))] if labels is None else labels
    columns = {"photo": pa.array(images, pa.binary()), "class": labels, "text": ["x"] * len(images)}
    return written(folder / "x.parquet", pa.table(columns), 3)


def made(images: Any, **options: Any) -> ImageSource:
    return ImageSource(images, **{"size": 16, "batch_size": 5, "workers": 2, "label": "class", **options})


def test_handfuls_of_a_cycle_hold_each_image_once_also_after_passes_that_were_left(tmp_path, make):
    named = table(tmp_path)
    source, other = make(named, shuffle_bytes=FEW), make(named, shuffle_bytes=FEW)
    assert "at a time" in source.description and source.paths[22] == f"{named}, row 22"
    for cycle in range(3):
        blocks(source, cycle, 2)
        found = blocks(source, cycle)
        assert sorted(label for _, labels in found for label in labels.tolist()) == sorted(
            i % 5 for i in range(COUNT)
        )
        assert equal(found, blocks(other, cycle))
    source.close()
    assert equal(blocks(source), blocks(other))


def test_memory_of_images_is_given_back_handful_by_handful_and_at_the_end(tmp_path, make):
    source = make(table(tmp_path), shuffle_bytes=FEW)
    for cycle in range(4):
        blocks(source, cycle)
    tabled: Any = source._data
    pages = sum(len(piece) for _, piece in tabled._memory._pieces.values())
    assert len(tabled._held) <= 2 and pages == os.fstat(tabled._memory.fd).st_blocks * 512
    source.close()
    assert not tabled._held and not tabled._memory._pieces


def test_memory_of_images_is_given_back_with_a_source_that_nobody_closed(tmp_path, make):
    gc.disable()
    try:
        source = ImageSource(table(tmp_path), size=16, batch_size=5, workers=1, label="class")
        blocks(source, 0, 1)
        memory: Any = source._data
        forgotten = weakref.ref(memory.loader)
        threads = [each for each in threading.enumerate() if each.name.startswith("penstock-tables")]
        del source, memory
        assert forgotten() is None
        for thread in threads:
            thread.join()
    finally:
        gc.enable()


def test_labels_of_thousands_of_classes_do_not_travel_to_workers(tmp_path, make, monkeypatch):
    sizes, submit = list[int](), WorkerPool.submit

    def measured(pool: Any, number: int, task: Any) -> None:
        sizes.append(len(pickle.dumps(task)))
        submit(pool, number, task)

    monkeypatch.setattr(WorkerPool, "submit", measured)
    labels = np.eye(COUNT, 20_000, dtype=np.uint8)
    found = blocks(make(table(tmp_path), label=None, labels=labels, shuffle=False))
    np.testing.assert_array_equal(np.concatenate([own for _, own in found]), labels)
    assert max(sizes) < 32_000  # a worker gets the next task while it is at work on one


def test_a_fork_reads_by_itself_and_closes_what_it_has(tmp_path, make):
    source = make(table(tmp_path), shuffle_bytes=FEW)
    expected = blocks(source, 1)
    blocks(source, 0, 1)
    if not (pid := os.fork()):
        right = False
        try:
            assert equal(blocks(source, 1), expected)
            source.close()
            right = True
        finally:
            os._exit(0 if right else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert equal(blocks(source, 1), expected)


def test_workers_that_are_killed_change_no_pixel_and_no_label(tmp_path, make):
    source = make(table(tmp_path), shuffle_bytes=FEW)
    expected, found = blocks(source), []
    for block in source.open(Cursor(0, 0)):
        found.append([part.copy() for part in block.tree])
        if len(found) == 2:
            os.kill(random.Random(0).choice(source._blocks._pool._workers).pid, signal.SIGKILL)
    assert equal(found, expected)


def test_a_bad_image_is_named_or_skipped_without_its_label(tmp_path, capsys, make):
    named = table(tmp_path, [*IMAGES[:5], b"\xff\xd8 is no image", *IMAGES[6:]])
    with pytest.raises(SourceError, match=f"row 5 of {named} cannot be decoded"):
        blocks(make(named))
    source = make(named, on_bad="skip", shuffle=False, shuffle_bytes=FEW)
    assert [label for _, labels in blocks(source) for label in labels.tolist()] == [
        -100 if i == 5 else i % 5 for i in range(COUNT)
    ]
    assert f"row 5 of {named} is skipped" in capsys.readouterr().err


def test_a_label_that_int64_does_not_hold_is_an_error_and_none_is_null(tmp_path, make):
    labels = np.arange(COUNT, dtype=np.uint64)
    labels[7] += 2**63
    named = table(tmp_path, labels=labels)
    with pytest.raises(SourceError, match=f"row 7 of {named}: int64 does not hold its label"):
        blocks(make(named))
    labels = [*range(4), None, *range(5, COUNT)]
    named = table(tmp_path, labels=labels)
    with pytest.raises(
        SourceError, match=r"'class' has 1 nulls, the first in row 1: write them without .*, or pass labels= with"
    ):
        blocks(make(named))
    labels[4] = -100
    source = make(named, label=None, labels=labels, shuffle=False)
    assert [label for _, labels in blocks(source) for label in labels.tolist()] == labels


def test_pixels_of_tables_are_not_kept_and_that_is_said(s3, tmp_path, make):
    url = put("tabled/x.parquet", Path(table(tmp_path)).read_bytes())
    with pytest.raises(BadSetting, match='keep="pixels": tables are kept as they are; leave keep out'):
        make(url, cache=Cache(tmp_path / "cache", "10MB", keep="pixels"))
    assert equal(blocks(make(url, cache=Cache(tmp_path / "cache", "10MB"))), blocks(make(table(tmp_path))))


def test_hugging_faces_images_and_names_of_classes_are_known(tmp_path, make):
    features = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    images = [{"bytes": image, "path": None} for image in IMAGES]
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    data = pa.table({"image": pa.array(images, kind), "label": [i % 2 for i in range(COUNT)]})
    data = data.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    source = make(written(tmp_path / "x.parquet", data), label="label", image="image", shuffle=False)
    assert list(source.classes) == ["cat", "dog"]
    assert [label for _, labels in blocks(source) for label in labels.tolist()] == [i % 2 for i in range(COUNT)]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"image": "text"}, "image='text' holds no bytes: pass image=, one of photo"),
        (
            {"label": "text"},
            r"no whole numbers, but text: .*labels= with .* such as table\['text'\]\.to_pylist\(\)",
        ),
        ({"label": "none"}, "has no column 'none'; it has photo, class, text"),
        ({"labels": [0] * COUNT}, "label='class' and labels= are both given"),
    ],
)
def test_columns_that_are_not_there_or_of_another_type_are_refused(tmp_path, options, match, make):
    with pytest.raises(BadSetting, match=match):
        make(table(tmp_path), **options)


class OfTables(OfGreyImages):
    """The contract of sources."""

    count = COUNT
    more: dict[str, Any] = {}  # noqa: RUF012

    @pytest.fixture(autouse=True)
    def _table(self, tmp_path: Path) -> None:
        images = grey_images(COUNT)
        self.named = table(tmp_path, images)
        self.few = sum(map(len, images))

    def make(self, seed: int = 0) -> ImageSource:
        return made(self.named, batch_size=4, seed=seed, **self.more)


@only(*LOADING, "what_is_wanted")
class TestTablesThatFit(OfTables):
    more = {"segments": 3}  # noqa: RUF012


@only(*LOADING, "what_is_wanted", "broken_off", "joints", "opened_before")
class TestHandfuls(OfTables):
    def make(self, seed: int = 0) -> ImageSource:
        return made(self.named, batch_size=4, seed=seed, shuffle_bytes=self.few)


def test_a_null_in_place_of_an_image_is_a_bad_image(tmp_path, capsys, make):
    source = make(table(tmp_path, [*IMAGES[:5], None, *IMAGES[6:]]), on_bad="skip", shuffle=False)
    assert [label for _, labels in blocks(source) for label in labels.tolist()][4:7] == [4, -100, 1]
    assert "there are no bytes, as where tables hold a null or a path alone" in capsys.readouterr().err
