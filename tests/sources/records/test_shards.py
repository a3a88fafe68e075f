"""Tar files of every kind, and images in them."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from tests.sources.images.pictures import jpeg, noise

import penstock
from penstock.contracts import Place
from penstock.sources.records.read import read
from penstock.sources.records.shards import ShardRecords
from penstock.sources.records.tar import members

LONG = "/".join(["a-folder-with-a-long-name"] * 9) + "/ünlaut.jpg"


def packed(
    path: Path,
    files: dict[str, bytes],
    tar_format: int = tarfile.PAX_FORMAT,
    links: dict[str, bytes] | None = None,
) -> Path:
    with tarfile.open(path, "w", format=tar_format) as tar:
        folder = tarfile.TarInfo("folder/")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        for name, kind in (links or {}).items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = kind, next(iter(files))
            tar.addfile(link)
    return path


def contents(path: Path) -> dict[str, bytes]:
    return {name: read(Place(str(path), offset, nbytes)) for name, offset, nbytes in members(path)}


FILES = {"a.jpg": b"one", "folder/b.jpg": b"x" * 1000, LONG: b"long", "empty.jpg": b""}


@pytest.mark.parametrize("tar_format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_members_are_those_that_pythons_tarfile_finds(tmp_path, tar_format):
    path = packed(tmp_path / "x.tar", FILES, tar_format)
    assert contents(path) == FILES
    ustar = packed(tmp_path / "ustar.tar", {f"{'d' * 90}/{'f' * 90}.jpg": b"prefix"}, tarfile.USTAR_FORMAT)
    assert contents(ustar) == {f"{'d' * 90}/{'f' * 90}.jpg": b"prefix"}


def test_tars_that_were_joined_are_read_to_the_end(tmp_path):
    one, two = packed(tmp_path / "1.tar", {"a": b"1"}), packed(tmp_path / "2.tar", {"b": b"22"})
    joined = tmp_path / "joined.tar"
    joined.write_bytes(one.read_bytes() + two.read_bytes())
    assert contents(joined) == {"a": b"1", "b": b"22"}


@pytest.mark.parametrize("tar_format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_sizes_above_8_gib_are_read(tmp_path, tar_format):
    size = (9 << 30) + 5
    huge, last = tarfile.TarInfo("huge.bin"), tarfile.TarInfo("last.jpg")
    huge.size, last.size = size, 4
    path = tmp_path / "huge.tar"
    with path.open("wb") as file:
        file.write(huge.tobuf(tar_format))
        file.seek(-(-size // 512) * 512, os.SEEK_CUR)  # a hole
        file.write(last.tobuf(tar_format) + b"data".ljust(512, b"\0") + bytes(1024))
    found = {name: (offset, nbytes) for name, offset, nbytes in members(path)}
    assert found["huge.bin"][1] == size
    assert read(Place(str(path), *found["last.jpg"])) == b"data"


def test_what_is_no_whole_tar_is_refused_in_words(tmp_path):
    files = {"a.jpg": b"1" * 600, "b.jpg": b"2" * 600}
    whole = packed(tmp_path / "x.tar", files, links={"link": tarfile.SYMTYPE}).read_bytes()
    ends = whole.index(b"2" * 600) + 600
    bad = tmp_path / "bad.tar"
    for data, match in (
        (whole[: ends - 10], "was cut short: the member at byte"),
        (whole[: -(-ends // 512) * 512], "was cut short: it ends without the two empty blocks"),
        (whole[:700], "no header lies at byte 512"),
        (gzip.compress(whole), r"is compressed \(gzip\)"),
        (b"no tar at all" * 100, "is no tar, or is damaged: no header lies at byte 0"),
        (whole[:512] + b"X" + whole[513:], "is damaged: no header lies at byte 512"),
    ):
        bad.write_bytes(data)
        with pytest.raises(penstock.BadSetting, match=match):
            list(members(bad))
    sparse = tarfile.TarInfo("sparse.jpg")
    sparse.type = b"S"
    bad.write_bytes(sparse.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(penstock.BadSetting, match=r"sparse.jpg is stored as a sparse file"):
        list(members(bad))
    with pytest.raises(penstock.BadSetting, match="cannot be read: No such file"):
        list(members(tmp_path / "none.tar"))


def shard(path: Path, first: int, count: int = 10, *, labels: bool = True) -> Path:
    files: dict[str, bytes] = {}
    for i in range(first, first + count):
        files[f"{i:04}.jpg"] = jpeg(np.full((20, 30, 3), 5 * i, np.uint8), "444")
        if labels:
            files[f"{i:04}.cls"] = str(i % 3).encode()
        files[f"{i:04}.json"] = b"{}"
    return packed(path, files)


def test_shards_are_images_with_the_labels_beside_them(tmp_path):
    for number in range(3):
        shard(tmp_path / f"train-{number:04}.tar", 10 * number)
    for name in ("train-{0000..0002}.tar", "train-*.tar"):
        source = penstock.ImageSource(tmp_path / name, size=8, batch_size=7, workers=1)
        images, labels = (np.concatenate(leaves) for leaves in zip(*source, strict=True))
        source.close()
        levels = np.round(images[:, 0, 0, 0] / 5).astype(int)
        assert sorted(levels.tolist()) == list(range(30))
        assert (labels == levels % 3).all()
        assert "30 members of 3 tar files" in source.description
    own = penstock.ImageSource(tmp_path / "train-0001.tar", size=8, labels=list("ab" * 5), workers=1)
    assert list(own.classes) == ["a", "b"]
    shard(tmp_path / "train-0003.tar", 30, labels=False)
    with pytest.raises(penstock.BadSetting, match=r"train-0003.tar has no .cls beside its images"):
        ShardRecords(tmp_path / "train-*.tar", (".jpg",))
    with pytest.raises(penstock.BadSetting, match="no such tar file"):
        ShardRecords(tmp_path / "train-{0000..0009}.tar", (".jpg",))
    with pytest.raises(penstock.BadSetting, match=r"no member ends in \.png"):
        ShardRecords(tmp_path / "train-0000.tar", (".png",))


def test_a_shard_is_walked_through_once_and_again_when_it_was_written_to(tmp_path, monkeypatch):
    path = shard(tmp_path / "x.tar", 0)
    walked: list[Path] = []
    monkeypatch.setattr(
        "penstock.sources.records.shards.members", lambda path: (walked.append(Path(path)), members(path))[1]
    )
    first = ShardRecords(path, (".jpg",))
    again = ShardRecords(path, (".jpg",))
    assert walked == [path]
    assert (again.names, again.labels) == (first.names, first.labels)
    assert again.places(np.arange(10)) == first.places(np.arange(10))
    ShardRecords(path, (".jpg", ".json"))
    shard(path, 5)
    assert ShardRecords(path, (".jpg",)).names[0] == "0005.jpg"
    assert walked == [path] * 3


def test_a_shard_that_is_replaced_while_it_is_read_ends_the_feed(tmp_path):
    path = shard(tmp_path / "x.tar", 0, 40)
    source = penstock.ImageSource(path, size=8, batch_size=4, workers=1)
    batches = iter(source)
    next(batches)
    other = packed(tmp_path / "other.tar", {f"{i}.jpg": jpeg(noise(9, 9, i)) for i in range(200)})
    other.replace(path)
    with pytest.raises(penstock.ReadFailed, match="was written to or replaced since the feed began"):
        list(batches)
    source.close()


@pytest.mark.parametrize("tar_format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_hard_link_is_the_file_that_it_links_to_and_a_symbolic_one_is_refused(tmp_path, tar_format):
    path = packed(
        tmp_path / "hard.tar", {LONG: b"data", "b.jpg": b"other"}, tar_format, {"a.jpg": tarfile.LNKTYPE}
    )
    assert contents(path) == {LONG: b"data", "b.jpg": b"other", "a.jpg": b"data"}
    path = packed(tmp_path / "soft.tar", {"b.jpg": b"other"}, tar_format, {"a.jpg": tarfile.SYMTYPE})
    with pytest.raises(penstock.BadSetting, match=r"a.jpg is a symbolic link; pack .* with --dereference"):
        ShardRecords(path, (".jpg",))
    assert ShardRecords(path, ("b.jpg",)).names == ["b.jpg"]


@pytest.mark.parametrize("top", ["./", "photos/", "./photos/"])
def test_the_folder_that_all_lie_in_is_no_class(tmp_path, top):
    files = {f"{top}{'cats' if i % 2 else 'dogs'}/{i}.jpg": jpeg(noise(9, 9, i)) for i in range(4)}
    source = penstock.ImageSource(packed(tmp_path / "x.tar", files), size=8, workers=1)
    assert list(source.classes) == ["cats", "dogs"]
    flat = penstock.ImageSource(packed(tmp_path / "y.tar", {f"{top}{i}.jpg": b"" for i in range(4)}), workers=1)
    assert not flat.classes


def test_a_shard_that_is_named_twice_is_refused(tmp_path):
    path = shard(tmp_path / "x.tar", 0)
    for again in (path, tmp_path / "*.tar"):
        with pytest.raises(penstock.BadSetting, match=r"x\.tar is named twice"):
            ShardRecords([path, again], (".jpg",))
