"""Tar files of every kind, and images in them."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from contextlib import closing
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from tests.sources.images.pictures import encoded, jpeg, noise

import penstock
from penstock.contracts import Place
from penstock.errors import BadSetting
from penstock.sources.records.files import read
from penstock.sources.records.shards import ShardRecords
from penstock.sources.records.tar import members
from penstock.sources.records.tar_samples import TarSamples

LONG = "/".join(["a-folder-with-a-long-name"] * 9) + "/ünlaut.jpg"


def packed(
    path: Path,
    files: dict[str, bytes],
    tar_format: int = tarfile.PAX_FORMAT,
    links: dict[str, bytes] | None = None,
) -> Path:
    with tarfile.open(path, "w", format=tar_format) as tar:
        for name in {name.partition("/")[0] for name in files if name.startswith("folder/")}:
            folder = tarfile.TarInfo(name)
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
    found = {name: read(Place(str(path), offset, nbytes)) for name, offset, nbytes, _ in members(path)}
    assert found.pop("folder/", b"") == b""
    return found


def joined(path: Path, *parts: dict[str, bytes]) -> Path:
    """Tars that were joined by ``cat``."""
    path.write_bytes(b"".join(packed(path.with_name("part.tar"), part).read_bytes() for part in parts))
    return path


def labels_of(path: Path, *endings: str) -> list[str]:
    return list(ShardRecords(path, endings or (".jpg",)).labels)


def unlabelled(path: Path, match: str, *endings: str) -> None:
    with pytest.raises(BadSetting, match=match):
        labels_of(path, *endings)


FILES = {"a.jpg": b"one", "folder/b.jpg": b"x" * 1000, LONG: b"long", "empty.jpg": b""}


@pytest.mark.parametrize("tar_format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_members_are_those_that_pythons_tarfile_finds(tmp_path, tar_format):
    path = packed(tmp_path / "x.tar", FILES, tar_format)
    assert contents(path) == FILES
    ustar = packed(tmp_path / "ustar.tar", {f"{'d' * 90}/{'f' * 90}.jpg": b"prefix"}, tarfile.USTAR_FORMAT)
    assert contents(ustar) == {f"{'d' * 90}/{'f' * 90}.jpg": b"prefix"}


def test_tars_that_were_joined_are_read_to_the_end(tmp_path):
    assert contents(joined(tmp_path / "x.tar", {"a": b"1"}, {"b": b"22"})) == {"a": b"1", "b": b"22"}


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
    found = {name: (offset, nbytes) for name, offset, nbytes, _ in members(path)}
    assert found["huge.bin"][1] == size
    assert read(Place(str(path), *found["last.jpg"])) == b"data"


def test_what_is_no_whole_tar_is_refused_in_words(tmp_path):
    files = {"folder/a.jpg": b"1" * 600, "b.jpg": b"2" * 600}
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
        with pytest.raises(BadSetting, match=match):
            list(members(bad))
    header = bytearray(tarfile.TarInfo("x").tobuf())
    header[124:136] = b"-0000001000\0"  # a size that leads back to it
    header[148:156] = b"%06o\0 " % (sum(header) - sum(header[148:156]) + 256)
    bad.write_bytes(header + bytes(2048))
    with pytest.raises(BadSetting, match="is damaged: no header lies at byte 0"):
        list(members(bad))
    sparse = tarfile.TarInfo("sparse.jpg")
    sparse.type = b"S"
    bad.write_bytes(sparse.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(BadSetting, match=r"sparse.jpg is stored as a sparse file"):
        list(members(bad))
    with pytest.raises(BadSetting, match="cannot be read: No such file"):
        list(members(tmp_path / "none.tar"))


def shard(path: Path, first: int, count: int = 10, *, labels: bool = True) -> Path:
    files: dict[str, bytes] = {}
    for i in range(first, first + count):
        files[f"{i:04}.jpg"] = jpeg(np.full((20, 30, 3), 5 * i, np.uint8), "444")
        if labels:
            files[f"{i:04}.cls"] = str(i % 3).encode()
        files[f"{i:04}.json"] = b"{}"
    return packed(path, files)


def all_of(source: penstock.ImageSource) -> tuple[np.ndarray, np.ndarray]:
    """The images and labels of an epoch, of a source that is closed then."""
    images, labels = (np.concatenate(leaves) for leaves in zip(*source, strict=True))
    source.close()
    return images, labels


def test_shards_are_images_with_the_labels_beside_them(tmp_path):
    for number in range(3):
        shard(tmp_path / f"train-{number:04}.tar", 10 * number)
    for name in ("train-{0000..0002}.tar", "train-*.tar"):
        source = penstock.ImageSource(tmp_path / name, size=8, batch_size=7, workers=1)
        images, labels = all_of(source)
        levels = np.round(images[:, 0, 0, 0] / 5).astype(int)
        assert sorted(levels.tolist()) == list(range(30))
        assert (labels == levels % 3).all()
        assert "30 members of 3 tar files" in source.description
    own = penstock.ImageSource(tmp_path / "train-0001.tar", size=8, labels=list("ab" * 5), workers=1)
    assert list(own.classes) == ["a", "b"]
    shard(tmp_path / "train-0003.tar", 30, labels=False)
    unlabelled(tmp_path / "train-*.tar", r"train-0003.tar has no .cls beside its images")
    with pytest.raises(BadSetting, match="no such file"):
        ShardRecords(tmp_path / "train-{0000..0009}.tar", (".jpg",))
    with pytest.raises(BadSetting, match=r"no member ends in \.png"):
        ShardRecords(tmp_path / "train-0000.tar", (".png",))


def test_an_empty_shard_among_others_is_read(tmp_path):
    """As it was found: one to which the last process wrote nothing refused all others."""
    shard(tmp_path / "0.tar", 0)
    packed(tmp_path / "1.tar", {})
    shard(tmp_path / "2.tar", 10)
    _, labels = all_of(penstock.ImageSource(tmp_path / "*.tar", size=8, batch_size=7, workers=1))
    assert sorted(labels.tolist()) == sorted(i % 3 for i in range(20))
    samples = TarSamples(tmp_path / "*.tar")
    assert len(samples.names) == 20 and {"jpg", "cls", "json"} < {*samples.fields}
    assert [count for _, count in samples.parts] == [10, 0, 10]
    for kind in (TarSamples, lambda path: ShardRecords(path, (".jpg",))):
        with pytest.raises(BadSetting, match=r"1\.tar: no member lies there"):
            kind(tmp_path / "1.tar")


def test_a_shard_is_walked_through_once_and_again_when_it_was_written_to(tmp_path, monkeypatch):
    path = shard(tmp_path / "x.tar", 0)
    walked: list[Path] = []
    monkeypatch.setattr(
        "penstock.sources.records.tar.members", lambda path: (walked.append(Path(path)), members(path))[1]
    )
    first = ShardRecords(path, (".jpg",))
    again = ShardRecords(path, (".jpg",))
    assert walked == [path]
    assert (again.names, again.labels) == (first.names, first.labels)
    assert again.places(np.arange(10)) == first.places(np.arange(10))
    ShardRecords(path, (".jpg", ".jpeg"))
    shard(path, 5)
    assert ShardRecords(path, (".jpg",)).names[0] == "0005.jpg"
    assert walked == [path] * 3


@pytest.mark.parametrize("tar_format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_hard_link_is_the_file_that_it_links_to_and_a_symbolic_one_is_refused(tmp_path, tar_format):
    path = packed(
        tmp_path / "hard.tar", {LONG: b"data", "b.jpg": b"other"}, tar_format, {"a.jpg": tarfile.LNKTYPE}
    )
    assert contents(path) == {LONG: b"data", "b.jpg": b"other", "a.jpg": b"data"}
    path = packed(tmp_path / "soft.tar", {"b.jpg": b"other"}, tar_format, {"a.jpg": tarfile.SYMTYPE})
    with pytest.raises(BadSetting, match=r"a.jpg is a symbolic link; pack .* with --dereference"):
        ShardRecords(path, (".jpg",))
    assert ShardRecords(path, ("b.jpg",)).names == ["b.jpg"]


def test_tars_stay_where_they_are_when_the_working_directory_changes(tmp_path, monkeypatch):
    """As it was found: another file of that name was read, with the offsets of the first."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        shard(tmp_path / name / "x.tar", 0 if name == "one" else 20)
    monkeypatch.chdir(tmp_path / "one")
    source = penstock.ImageSource("x.tar", size=8, workers=1)
    monkeypatch.chdir(tmp_path / "two")
    images, labels = next(iter(source))
    source.close()
    assert (np.round(images[:, 0, 0, 0] / 5).astype(int) % 3 == labels).all()
    assert images.max() < 60
    assert source.paths[0] == f"{tmp_path}/one/x.tar/0000.jpg"


@pytest.mark.parametrize("top", ["./", "photos/", "./photos/", "/", "/photos/"])
def test_the_folder_that_all_lie_in_is_no_class(tmp_path, top):
    files = {f"{top}{'cats' if i % 2 else 'dogs'}/{i}.jpg": jpeg(noise(9, 9, i)) for i in range(4)}
    source = penstock.ImageSource(packed(tmp_path / "x.tar", files), size=8, workers=1)
    assert list(source.classes) == ["cats", "dogs"]
    flat = penstock.ImageSource(packed(tmp_path / "y.tar", {f"{top}{i}.jpg": b"" for i in range(4)}), workers=1)
    assert not flat.classes


def test_a_shard_that_is_named_twice_is_refused(tmp_path):
    path = shard(tmp_path / "x.tar", 0)
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "x.tar").symlink_to(path)
    for again in (path, tmp_path / "*.tar", os.path.relpath(path), tmp_path / "again" / "x.tar"):
        with pytest.raises(BadSetting, match=r"x\.tar is named twice"):
            ShardRecords([path, again], (".jpg",))


def coloured(first: int, count: int = 4) -> dict[str, bytes]:
    """Images 0, 1, ... of which each has its level in its pixels, and that level as its label."""
    files: dict[str, bytes] = {}
    for i in range(count):
        files[f"{i}.jpg"] = jpeg(np.full((9, 9, 3), 20 * (first + i), np.uint8))
        files[f"{i}.cls"] = str(first + i).encode()
    return files


@pytest.mark.parametrize("count", [1, 4])
def test_keys_that_come_again_in_tars_that_were_joined_keep_their_own_labels(tmp_path, count):
    path = joined(tmp_path / "x.tar", coloured(0, count), coloured(count, count))
    source = penstock.ImageSource(path, size=8, workers=1)
    images, labels = all_of(source)
    assert sorted(labels.tolist()) == list(range(2 * count))
    assert np.round(images[:, 0, 0, 0] / 20).astype(int).tolist() == labels.tolist()
    assert list(source.paths) == [f"{path}/{i}.jpg" for i in [*range(count)] * 2]


def test_labels_may_lie_apart_from_their_images_in_one_tar(tmp_path):
    files = coloured(0)
    apart = dict(sorted(files.items(), key=lambda item: item[0].rpartition(".")[::-1]))
    assert labels_of(packed(tmp_path / "x.tar", apart)) == ["0", "1", "2", "3"]
    assert labels_of(joined(tmp_path / "twice.tar", apart, coloured(4))) == [*"01234567"]
    halves = [{name: of for name, of in files.items() if name.endswith(end)} for end in (".jpg", ".cls")]
    unlabelled(joined(tmp_path / "halves.tar", *halves), r"4 images have no .cls beside them, such as 0.jpg: pass")


@pytest.mark.parametrize("between", [{}, {"1.jpg": b"", "1.cls": b"5"}])
def test_no_image_gets_the_label_of_another_whose_key_is_equal(tmp_path, between):
    """As it was found: an image of one of several joined tars got the label of another's."""
    tars = ({"0.cls": b"1"}, {"0.jpg": b"", "0.cls": b"2"}, {"0.jpg": b""}, {"0.png": b"", "0.cls": b"3"})
    of_one = {1: ["2"], 3: ["3"]}  # those that have both
    for order in (order for count in (2, 3, 4) for order in permutations(range(4), count)):
        parts = [tars[i] | between for i in order]
        cat, at_once = joined(tmp_path / "cat.tar", *parts), tmp_path / "tar-A.tar"
        own = [label for i in order for label in (*of_one.get(i, ()), *(["5"] if between else ()))]
        if 2 in order:
            unlabelled(cat, "1 images have no .cls beside them, such as 0.jpg", ".jpg", ".png")
        else:
            assert labels_of(cat, ".jpg", ".png") == own
        with tarfile.open(at_once, "w") as tar:
            for name, data in (item for part in parts for item in part.items()):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        if between or sorted(order) != [0, 2]:  # these two are one sample
            unlabelled(at_once, r"comes twice\)|a sample has several images, 0\.\w+ and 0\.", ".jpg", ".png")


def test_images_whose_names_have_dots_have_the_labels_of_their_names(tmp_path):
    """As it was found: all that has one key, the part before the first dot, got the first label."""
    files = {f"img.v1.{i}.{end}": str(i).encode() for i in range(3) for end in ("jpg", "cls")}
    apart = dict(sorted(files.items(), key=lambda item: item[0].rpartition(".")[::-1]))
    for each in (files, apart):
        assert labels_of(packed(tmp_path / "x.tar", each)) == ["0", "1", "2"]
    del files["img.v1.1.cls"]
    unlabelled(packed(tmp_path / "x.tar", files), r"1 images have no .cls beside them, such as img.v1.1.jpg")
    odd = {"0.jpg": b"", "0.fine.cls": b"1", "0.coarse.cls": b"2"}
    unlabelled(packed(tmp_path / "x.tar", odd), r"1 images have no .cls beside them, such as 0.jpg")


@pytest.mark.parametrize(
    ("endings", "named"),
    [
        (["jpg", "seg.png", "cls"], "1.jpg and 1.seg.png"),
        (["left.jpg", "right.jpg", "cls"], "1.left.jpg and 1.right.jpg"),
        (["0.jpg", "1.jpg", "2.jpg", "3.jpg", "cls"], "1.0.jpg and 1.1.jpg and 1.2.jpg"),
        (["jpg", "png", "cls", "json"], "1.jpg and 1.png"),
        (["jpg", "mask.png"], "1.jpg and 1.mask.png"),
        (["jpg", "mask1.png"], "1.jpg and 1.mask1.png"),
        (["jpg", "mask1.png", "mask2.png"], "1.jpg and 1.mask1.png and 1.mask2.png"),
        (["jpg", "x2.jpg"], "1.jpg and 1.x2.jpg"),
        (["rgb.png", "depth.png", "json"], "1.rgb.png and 1.depth.png"),
    ],
)
def test_several_images_a_sample_are_refused_by_their_names_unless_one_is_picked(tmp_path, endings, named):
    """As it was found: masks beside images were trained on, with the images' labels."""
    level = {ending: 40 + 9 * i for i, ending in enumerate(endings)}
    data = {ending: encoded(np.full((9, 9, 3), at, np.uint8), ".png") for ending, at in level.items()}
    data |= {ending: of for ending, of in (("cls", b"3"), ("json", b"{}")) if ending in endings}
    for folder in ("", "cats/"):
        path = packed(tmp_path / "x.tar", {f"{folder}{i}.{end}": of for i in (1, 2) for end, of in data.items()})
        named = named.replace("1.", f"{folder}1.", 1).replace("and 1.", f"and {folder}1.")
        with pytest.raises(BadSetting, match=rf"x\.tar: a sample has several images, {named}: pass image="):
            penstock.ImageSource(path, workers=1, labels=[0, 1] if not folder else None)
    label = "cls" if "cls" in endings else None
    with closing(penstock.ImageSource(path, size=8, image=endings[1], label=label, workers=1)) as source:
        (batch,) = source
    images = batch[0] if label else batch
    assert len(images) == 2 and (images == level[endings[1]]).all()


@pytest.mark.parametrize("times", [1, 2])
def test_several_images_a_sample_are_refused_where_they_lie_apart_or_come_again(tmp_path, times):
    """As it was found: masks behind all images of a tar were trained on."""
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as tar:
        for name in ["0.jpg", "1.jpg", "0.mask.png", "1.mask.png"] * times:
            tar.addfile(tarfile.TarInfo(name))
    with pytest.raises(BadSetting, match=r"several images, 0\.jpg and 0\.mask\.png: pass image="):
        ShardRecords(path, (".jpg", ".png"))


@pytest.mark.parametrize(
    "names",
    [
        ["cat.0.jpg", "cat.1.jpg", "dog.0.jpg", "dog.1.jpg"],
        ["a.one.jpg", "a.two.jpg", "b.three.jpg", "b.four.jpg"],
        [f"{i}.{side}.{end}" for i in range(2) for side in ("left", "right") for end in ("jpg", "cls")],
    ],
)
def test_images_with_dots_in_their_names_are_no_parts_of_one_sample(tmp_path, names):
    images = [name for name in names if name.endswith("jpg")]
    assert ShardRecords(packed(tmp_path / "x.tar", dict.fromkeys(names, b"7")), (".jpg",)).names == images


def test_labels_that_are_given_need_none_beside_the_images(tmp_path):
    """As it was found: the error said to pass them, and came again where they were."""
    some = packed(tmp_path / "x.tar", {"0.jpg": b"", "0.cls": b"1", "1.jpg": b""})
    bare = packed(tmp_path / "y.tar", {"2.jpg": b""})
    for shards, match in (
        (some, r"x.tar: 1 images .* 1.jpg"),
        ([shard(tmp_path / "z.tar", 3), bare], "y.tar has no"),
    ):
        with pytest.raises(BadSetting, match=f"{match}.*pass labels="):
            penstock.ImageSource(shards, workers=1)
        count = len(ShardRecords(shards, (".jpg",)).names)
        assert len(penstock.ImageSource(shards, workers=1, labels=[*range(count)]).classes) == count


def test_a_state_of_tars_in_another_order_is_refused(tmp_path):
    """As it was found: their members may have the same names."""
    one, two = (packed(tmp_path / name, {"0.jpg": b"", "1.jpg": b""}) for name in ("1.tar", "2.tar"))
    source, other = (penstock.ImageSource(tars, workers=1) for tars in ([one, two], [two, one]))
    assert source.order != other.order
    assert source.order == penstock.ImageSource([one, two], workers=1).order


def test_of_several_labels_beside_an_image_the_one_called_cls_is_taken(tmp_path):
    for names in (("0.coarse.cls", "0.cls"), ("0.cls", "0.coarse.cls")):
        files = {"0.jpg": b""} | {name: name.encode() for name in names}
        assert labels_of(packed(tmp_path / f"{names[0]}.tar", files)) == ["0.cls"]


def test_an_odd_label_in_a_tar_is_named(tmp_path):
    path = packed(tmp_path / "x.tar", coloured(0) | {"2.cls": b"two"})
    with pytest.raises(BadSetting, match=r"the .cls of 2.jpg: the label 'two', where 3 of 4"):
        penstock.ImageSource(path, workers=1)


def test_a_class_folder_in_a_tar_keeps_its_number_without_an_image(tmp_path):
    image = jpeg(noise(9, 9))
    files = {"set/cats/1.jpg": image, "set/films/1.gif": b"", "set/owls/1.jpg": image}
    source = penstock.ImageSource(packed(tmp_path / "x.tar", files), workers=1)
    assert list(source.classes) == ["cats", "films", "owls"]
    assert source._data.beside.tolist() == [0, 2]


@pytest.mark.parametrize(
    "records", [b"no header at all", b"12", b"99 path=a\n", b"0 path=a\n", b"13 size=-512\n", b"-1 a=b\n"]
)
def test_extended_headers_that_make_no_sense_are_refused_in_words(tmp_path, records):
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, len(records)
    path = tmp_path / "x.tar"
    file = tarfile.TarInfo("a.jpg").tobuf()
    path.write_bytes(header.tobuf() + records.ljust(512, b"\0") + file + bytes(1024))
    with pytest.raises(BadSetting, match="is damaged: "):
        list(members(path))
