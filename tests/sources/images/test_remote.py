"""Images and shards in an object store."""

from __future__ import annotations

import os
import shutil
import tarfile
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.io.failing_proxy import failing_proxy
from tests.io.faulty_store import faulty_store
from tests.object_store import put, set_environment
from tests.sources.images.pictures import blocks, equal, jpeg, noise, textures

from penstock import Cache, ImageSource
from penstock.contracts import Cursor
from penstock.errors import BadSetting, ReadFailed, SourceError
from penstock.sources.records.files import stores

pytestmark = pytest.mark.whole

SIZE = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("images")
    textures(path, 24)
    return path


@pytest.fixture(scope="module")
def bucket(s3: str, folder: Path) -> str:
    """A prefix with the folder's images, and others beside it."""
    shutil.copy(next(folder.rglob("*.jpg")), folder / "class-0" / ".hidden.jpg")
    for path in folder.rglob("*.jpg"):
        put(f"train/{path.relative_to(folder)}", path.read_bytes())
    put("train/notes.txt", b"no image")
    put("train/empty/notes.txt", b"no image")
    (folder / "empty").mkdir()
    put("training/0.jpg", b"of another data set")
    for shard in range(3):
        put(f"shards/{shard:04}.tar", tar_of(sorted(folder.rglob("[!.]*.jpg"))[shard::3], folder))
    return "s3://bucket"


def tar_of(paths: list[Path], folder: Path) -> bytes:
    from io import BytesIO

    content = BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for path in paths:
            tar.add(path, path.name)
            label = tarfile.TarInfo(path.with_suffix(".cls").name)
            label.size = 1
            tar.addfile(label, BytesIO(path.parent.name[-1].encode()))
    return content.getvalue()


def made(images: Any, **options: Any) -> ImageSource:
    return ImageSource(images, **{"size": SIZE, "batch_size": 5, "workers": 2, **options})


def batches(source: ImageSource, cycle: int = 0) -> list[Any]:
    with closing(source):
        return blocks(source, cycle)


def test_a_bucket_gives_what_the_folder_gives(bucket, folder):
    remote, local = made(f"{bucket}/train"), made(folder)
    assert equal(batches(remote), batches(local))
    assert "25 objects of s3://bucket/train" in remote.description
    assert remote.classes == local.classes == ["class-0", "class-1", "class-2", "empty"]
    assert [path.removeprefix("s3://bucket/train") for path in remote.paths] == [
        path.removeprefix(str(folder)) for path in local.paths
    ]


def test_shards_in_a_bucket_give_what_local_ones_give(bucket, folder, tmp_path):
    for shard in range(3):
        paths = sorted(folder.rglob("[!.]*.jpg"))[shard::3]
        (tmp_path / f"{shard:04}.tar").write_bytes(tar_of(paths, folder))
    local = batches(made(tmp_path / "*.tar"))
    for pattern in (f"{bucket}/shards/*.tar", f"{bucket}/shards/{{0000..0002}}.tar"):
        assert equal(batches(made(pattern)), local)


@pytest.mark.parametrize("kind", ["bytes", "pixels"])
def test_the_network_is_crossed_once(bucket, tmp_path, kind, monkeypatch):
    images = [f"{bucket}/shards/{shard:04}.tar" for shard in range(3)]
    source = made(images, cache=Cache(tmp_path, "50MB", keep=kind))
    wanted = [[block.tree[0].copy() for block in source.open(Cursor(cycle, 0))] for cycle in (0, 1)]
    assert (source.cached.disk, source.cached.missed) == (24, 24)
    source.close()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # workers that start now reach nothing
    again = [block.tree[0].copy() for block in source.open(Cursor(1, 0))]
    assert all(np.array_equal(one, other) for one, other in zip(again, wanted[1], strict=True))
    source.close()


def test_an_object_that_was_replaced_is_an_error(bucket):
    for i in range(4):
        put(f"changing/{i}.jpg", jpeg(noise(30, 30, i)))
    source = made(f"{bucket}/changing")
    put("changing/2.jpg", jpeg(noise(30, 30, 9)))
    with pytest.raises(SourceError, match=r"changing/2.jpg cannot be read: .*replaced since it was"):
        batches(source)
    source.close()


def test_a_missing_object_may_be_skipped_and_a_store_that_is_gone_may_not(bucket, monkeypatch):
    import obstore
    from obstore.store import S3Store

    for i in range(4):
        put(f"fading/{i}.jpg", jpeg(noise(30, 30, i)))
    source = made(f"{bucket}/fading", on_bad="skip")
    obstore.delete(S3Store("bucket", client_options={"allow_http": True}), "fading/1.jpg")
    (block,) = source.open(Cursor(0, 0))
    assert (block.tree == 0).all((1, 2, 3)).sum() == 1
    source.close()
    with faulty_store() as store:
        set_environment(monkeypatch, store.url)
        with pytest.raises(SourceError, match="cannot be read"):
            batches(source)
    source.close()


def test_what_is_not_there_is_an_error_in_words(bucket):
    with pytest.raises(BadSetting, match=r"s3://bucket/nothing: no objects below it end in .*\.jpeg"):
        made(f"{bucket}/nothing")
    with pytest.raises(BadSetting, match="there is no such object"):
        made(f"{bucket}/nothing/*.tar")
    with pytest.raises(ReadFailed, match=r"s3://bucket/nothing\.tar cannot be read"):
        made(f"{bucket}/nothing.tar")
    with pytest.raises(BadSetting, match="give s3://bucket/prefix"):
        made("https://example.org/images")


@pytest.mark.whole
@pytest.mark.parametrize(("how", "for_s"), [("busy", 1.0), ("gone", 3.0), ("busy", 8.0)])
def test_a_store_that_fails_for_a_while_ends_no_epoch(bucket, how, for_s, monkeypatch):
    """The remote how-to promises retries for 90 seconds."""
    wanted = batches(made(f"{bucket}/train"))
    with failing_proxy(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        set_environment(monkeypatch, proxy.url)
        source = made(f"{bucket}/train", workers=1, batch_size=5)
        opened = source.open(Cursor(0, 0))
        found = [[part.copy() for part in next(opened).tree]]
        before = proxy.asked
        failing = threading.Thread(target=proxy.fail, args=(how, for_s))
        failing.start()
        found += [[part.copy() for part in block.tree] for block in opened]
        found += batches(source, 1)
        failing.join()
        assert proxy.asked > before
    assert equal(found[: len(wanted)], wanted)
    assert len(found) == 2 * len(wanted)


@pytest.mark.whole
@pytest.mark.parametrize(("how", "for_s"), [("busy", 1.0), ("gone", 3.0)])
def test_a_source_is_made_while_its_store_fails_for_a_moment(bucket, how, for_s, monkeypatch):
    with failing_proxy(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        set_environment(monkeypatch, proxy.url)
        for images in (f"{bucket}/train", f"{bucket}/shards/*.tar"):
            stores.cache_clear()
            failing = threading.Thread(target=proxy.fail, args=(how, for_s))
            failing.start()
            assert made(images).samples in (24, 25)
            failing.join()
    stores.cache_clear()
