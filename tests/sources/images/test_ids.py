"""Ids and classes are those of torchvision's ImageFolder; labels come from folders, files, arrays and dicts."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.sources.images.pictures import encoded, jpeg

import penstock
from penstock import ImageSource
from penstock.errors import BadSetting
from penstock.sources.images.labels import Labels, labels_of

IMG_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def image_folder(top: str) -> tuple[list[str], list[tuple[str, int]]]:
    """Classes and samples as torchvision's ``find_classes`` and ``make_dataset(allow_empty=True)`` find them."""
    classes = sorted(entry.name for entry in os.scandir(top) if entry.is_dir())
    samples: list[tuple[str, int]] = []
    for number, name in enumerate(classes):
        for root, _, files in sorted(os.walk(os.path.join(top, name), followlinks=True)):
            samples += (
                (os.path.join(root, file), number)
                for file in sorted(files)
                if file.lower().endswith(IMG_EXTENSIONS)
            )
    return classes, samples


FOLDERS = ["a", "a b", "a-b", "a/x", "a/x y", "a/x/z", "a.b", "B", ".hidden", "b/.deep", "\u00e4", "10", "9"]
ENDS = (".jpg", ".JPG", ".png", ".tif", ".txt", "")


def test_ids_labels_and_classes_are_those_of_image_folder(tmp_path):
    for seed in range(12):
        choose, top = random.Random(seed), tmp_path / str(seed)
        for name in choose.sample(FOLDERS, 8):
            (top / name).mkdir(parents=True, exist_ok=True)
            for i in range(choose.randint(0, 3)):
                (top / name / f"{choose.choice(('', '.', 'Z ', '-'))}{i}{choose.choice(ENDS)}").touch()
        (top / "a").mkdir(parents=True, exist_ok=True)
        (top / "a" / "one.jpg").touch()
        (tmp_path / f"{seed}-others").mkdir()
        (tmp_path / f"{seed}-others" / "linked.jpg").touch()
        (top / "linked").symlink_to(tmp_path / f"{seed}-others")
        classes, samples = image_folder(str(top))
        source = ImageSource(top, size=8, workers=1)
        assert (list(source.classes), list(source.paths)) == (classes, [path for path, _ in samples])
        given = ImageSource(top, size=8, workers=1, labels=[label for _, label in samples])
        assert given._data.beside.tolist() == source._data.beside.tolist() == [of for _, of in samples]


def test_each_image_comes_with_the_label_and_the_id_of_its_file(tmp_path):
    for i, name in enumerate(("a/1.jpg", "a b/0.jpg", "a/x/2.jpg", ".c/.3.jpg")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(jpeg(np.full((20, 20, 3), 40 * i, np.uint8)))
    source = ImageSource(tmp_path, size=8, batch_size=3, workers=1)
    levels = {str(tmp_path / ".c/.3.jpg"): 3, f"{tmp_path}/a/1.jpg": 0, f"{tmp_path}/a/x/2.jpg": 2}
    for block in source.open(penstock.contracts.Cursor(0, 0)):
        for id, image, label in zip(block.ids, *block.tree, strict=True):
            path = source.paths[id]
            assert round(image.mean() / 40) == levels.get(path, 1)
            assert source.classes[label] == Path(path).relative_to(tmp_path).parts[0]
    source.close()


def test_a_class_without_an_image_that_can_be_read_keeps_its_number_and_is_named(tmp_path, capfd):
    for name in ("cats/1.jpg", "empty/", "films/1.gif", "owls/1.jpg"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.mkdir() if name.endswith("/") else path.touch()
    source = ImageSource(tmp_path, size=8, workers=1)
    assert list(source.classes) == ["cats", "empty", "films", "owls"]
    assert source._data.beside.tolist() == [0, 3]
    assert "2 class folders have no image that can be read, such as empty: they still" in capfd.readouterr().err


@pytest.mark.parametrize("end", IMG_EXTENSIONS)
def test_images_of_all_of_torchvisions_endings_are_read(tmp_path, end):
    pixels = np.random.default_rng(0).integers(0, 256, (12, 12, 3), np.uint8)
    grey = np.repeat(pixels[..., :1], 3, -1)
    (tmp_path / f"1{end}").write_bytes(encoded(grey[..., :1] if end == ".pgm" else grey, end))
    source = ImageSource(tmp_path, size=12, augment="center", scale=(1, 1), workers=1)
    assert source.samples == 1
    assert [len(images) for images in source] == [1]
    source.close()


def test_suffixes_may_be_one_and_in_large_letters(tmp_path):
    for name in ("1.RAW", "2.jpg", "war"):
        (tmp_path / name).touch()
    source = ImageSource(tmp_path, size=8, workers=1, suffixes=".RAW", decode=len)
    assert list(source.paths) == [str(tmp_path / "1.RAW")]


def test_a_state_of_other_files_is_refused(tmp_path, serve):
    """Ids move when files come and go."""
    folder = tmp_path / "images"
    for name in ("a/1.jpg", "a/2.jpg", "b/3.jpg", "b/4.jpg"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(jpeg(np.zeros((9, 9, 3), np.uint8)))
    serve(ImageSource(folder, size=8, batch_size=2, workers=1), name="before")
    with penstock.attach("before", 2) as loader:
        next(iter(loader))
        state = loader.state_dict()
    (folder / "a/1.jpg").rename(folder / "b/5.jpg")
    serve(ImageSource(folder, size=8, batch_size=2, workers=1), name="after")
    with (
        penstock.attach("after", 2) as loader,
        pytest.raises(BadSetting, match="which file has which"),
    ):
        loader.load_state_dict(state)


def records(names: Sequence[str], classes: Sequence[str] = ()) -> Any:
    return SimpleNamespace(names=names, classes=classes, labels=(), root="/images")


def folder_labels(names: Sequence[str], classes: Sequence[str]) -> Labels | None:
    return labels_of(records(names, classes), None)


def given_labels(names: Sequence[str], given: Any) -> Labels:
    found = labels_of(records(names), given)
    assert found is not None
    return found


def test_labels_are_folders_numbers_names_or_several(tmp_path):
    names = ["a/x/1.jpg", "b/2.jpg", "a/3.jpg"]
    found = folder_labels(names, [])
    assert found is not None
    assert (found.values.tolist(), list(found.classes)) == ([0, 1, 0], ["a", "b"])
    years = folder_labels(["2024/1.jpg", "7/2.jpg"], [])
    assert years is not None
    assert (years.values.tolist(), list(years.classes)) == ([0, 1], ["2024", "7"])
    unknown = given_labels(names, [3, -100, 10])
    assert unknown.values.tolist() == [3, -100, 10]
    matrix = given_labels(names, np.array([[0, 1], [1, 1], [0, 0]]))
    assert matrix.values.tolist() == [[0, 1], [1, 1], [0, 0]]
    assert folder_labels(["1.jpg", "2.jpg"], ["notes"]) is None
    numbers = given_labels(names, dict(zip(names, [7, "2", np.int64(0)], strict=True)))
    assert numbers.values.tolist() == [7, 2, 0]
    (tmp_path / "labels.csv").write_text('a/x/1.jpg,cat,dog\nb/2.jpg,\n"a/3.jpg",dog\nelse.jpg,cow\n')
    several = given_labels(names, tmp_path / "labels.csv")
    assert several.values.tolist() == [[1, 1], [0, 0], [0, 1]]
    assert several.values.dtype == np.uint8
    (tmp_path / "labels.txt").write_text("a/x/1.jpg 3\nb/2.jpg 1\na/3.jpg 0\n")
    assert given_labels(names, tmp_path / "labels.txt").values.tolist() == [3, 1, 0]
    for given, match in (
        (tmp_path / "none.txt", "cannot be read"),
        ({"a/x/1.jpg": 1}, "none for 2 of 3 images, such as b/2.jpg"),
        ([0.5, 1, 2], r"labels=, row 0 \(a/x/1.jpg\): the label 0.5 is neither"),
        ([1, 2], "2 labels for 3 images"),
        ({1, 2, 3}, "a set has no order"),
        (3, "give a file, a dict, or a label for each image"),
        (np.zeros((2, 2)), "a row of 0 and 1 for each of 3 images"),
    ):
        with pytest.raises(BadSetting, match=match):
            given_labels(names, given)
    with pytest.raises(BadSetting, match=r"2 images lie in class folders, and 1 in none, such as 3.jpg"):
        folder_labels(["a/1.jpg", "b/2.jpg", "3.jpg"], [])


NAMES = ["a/1.jpg", "b/2.jpg", "c/3.jpg", "d/4.jpg"]


@pytest.mark.parametrize(
    "given",
    [
        ["10", "2 ", "10", "0"],
        ["10.0", "2.0", "10.0", "0."],
        ["1e1", "2.000000000000000000e+00", "+1.0E1", ".0"],  # the second as numpy.savetxt writes it
        [10.0, 2, 10, "0"],
        np.array([10.0, 2.0, 10.0, 0.0]),
        dict(zip(NAMES, (10, " 2", "+10", 0.0), strict=True)),
        [np.float32(10), np.int8(2), np.array(10), [0]],
    ],
)
def test_whole_numbers_stay_as_they_are_however_they_are_written(given):
    found = given_labels(NAMES, given)
    assert found.values.tolist() == [10, 2, 10, 0]
    assert list(found.classes) == list(map(str, range(11)))


@pytest.mark.parametrize("values", [[3, 2, 1, 0], [[1, 1], [0, 1], [1, 0], [0, 0]]])
def test_a_table_whose_index_are_paths_is_read_by_its_index(values):
    """As it was found: a Series of pandas' was taken in its own order."""
    table = SimpleNamespace(
        index=NAMES[::-1], values=np.array(values), tolist=lambda: values, ndim=np.ndim(values)
    )
    assert given_labels(NAMES, table).values.tolist() == values[::-1]
    table.index = range(4)
    if table.ndim == 1:
        assert given_labels(NAMES, table).values.tolist() == values


@pytest.mark.parametrize("end", ["", " ", ".0", "."])
def test_a_file_of_labels_means_the_same_with_other_ends_of_lines(tmp_path, end):
    path = tmp_path / "labels.csv"
    path.write_text("\ufeffpath,label\n" + "".join(f"{name},{i + 7}{end}\n\n" for i, name in enumerate(NAMES)))
    assert given_labels(NAMES, path).values.tolist() == [7, 8, 9, 10]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ([1, 2, None, 3], r"labels=, row 2 \(c/3.jpg\): the label None is neither"),
        ([1, 2, float("nan"), 3], r"row 2 \(c/3.jpg\): the label nan is neither"),
        (np.array([1, 2, None, 3], object), "row 2 .*None"),
        (["1", "2", "n/a", "3"], r"row 2 .*: the label 'n/a', where 3 of 4 are numbers"),
        (["cat", "dog", "3", "cow"], r"row 2 .*: the label 3, where 1 of 4 are numbers"),
        (["cat", "dog", " ", "cow"], r"row 2 .*: the label ' ' is neither"),
        ([1, 2, 2**63, 3], f"row 2 .*: the label {2**63} is neither a whole number that int64 holds"),
        ([1, 2, str(10**40), 3], "row 2 .*is neither a whole number that int64 holds"),
        (["1e400", "2", "0", "3"], "row 0 .*'1e400' is neither a whole number that int64 holds"),
        ([1, 2, b"3", 3], "row 2 .*the label b'3' is neither"),
        ([[0, 0, 1], [1, 0, 0], [1, 0], [0, 1, 0]], r"row 0 .*labels \[0, 0, 1\] are a row of 0 and 1, .* 2 to 3"),
        (
            [[0, 1], [1, 0], [1], [0, 1]],
            r"row 1 .*labels \[1, 0\] are a row of 0 and 1, and other rows have 1 to 2",
        ),
        ([[1], [2], [], [3]], "row 2 .*: no label stands there, and others have one"),
        (dict(zip(NAMES, (1, 2, None, 3), strict=True)), r"labels=, c/3.jpg: the label None"),
    ],
)
def test_what_is_no_label_is_refused_by_its_row(given, match):
    with pytest.raises(BadSetting, match=match):
        given_labels(NAMES, given)


def test_what_is_no_label_in_a_file_is_refused_by_file_and_line(tmp_path):
    path = tmp_path / "labels.csv"
    for text, match in (("a/1.jpg,1\n\nb/2.jpg,x\n", "the label 'x'"), ("a/1.jpg,1\n\nb/2.jpg,\n", "no label")):
        path.write_text(text + "c/3.jpg,2\nd/4.jpg,0\n")
        with pytest.raises(BadSetting, match=f"labels={path}, line 3: {match}"):
            given_labels(NAMES, path)
    path.write_text("".join(f"{name},{i},{1 - i}\n" for name, i in zip(NAMES, (0, 1, 0, 1), strict=True)) + ",,\n")
    assert given_labels(NAMES, path).values.tolist() == [[0, 1], [1, 0], [0, 1], [1, 0]]
    path.write_text(path.read_text().replace("c/3.jpg,0,1", "c/3.jpg,,1"))
    with pytest.raises(BadSetting, match=rf"labels={path}, line 2: the labels \[1, 0\] are a row of 0 and 1"):
        given_labels(NAMES, path)
    path.write_text(f"a/1.jpg,{'x' * 200_000}\n")
    with pytest.raises(BadSetting, match=f"labels={path}: it cannot be read: field larger"):
        given_labels(NAMES, path)


@pytest.mark.parametrize("odd", ["0.5", "-.5", "15e-1", "0  # ok", "1#", "1.0 # as before"])
@pytest.mark.parametrize("others", ["0", "cat", "0.5", "1  # ok"])
def test_what_looks_like_a_number_and_is_no_whole_one_is_no_name(tmp_path, odd, others):
    """As it was found: where all labels were such, they were numbered as names."""
    path = tmp_path / "labels.csv"
    path.write_text("".join(f"{name},{each}\n" for name, each in zip(NAMES, [odd] + [others] * 3, strict=True)))
    told = re.escape(f"labels={path}, line 1: the label {odd!r} is neither")
    with pytest.raises(BadSetting, match=told):
        given_labels(NAMES, path)
    assert given_labels(NAMES, ["20-29", "007 bond", "no. 4#x", "v1.5 # x"]).values.tolist() == [1, 0, 2, 3]


def test_spaces_before_a_comma_are_no_part_of_a_path(tmp_path):
    """As it was found: the lines were taken for ones with spaces between, and their labels for ',1', ',10', ..."""
    path = tmp_path / "labels.csv"
    path.write_text("".join(f"{name} , {i + 9} \n" for i, name in enumerate(NAMES)))
    assert given_labels(NAMES, path).values.tolist() == [9, 10, 11, 12]


@pytest.mark.parametrize("rows", [[[0, 1], [1, 0], [0, 1], [0, 0]], [[0, 0, 1], [1, 0, 0], [0, 1, 0], [1, 1, 0]]])
def test_rows_of_0_and_1_are_rows_of_0_and_1_in_a_list_and_in_a_file_too(rows, tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("".join(f"{name} {' '.join(map(str, row))}\n" for name, row in zip(NAMES, rows, strict=True)))
    for given in (rows, np.array(rows), [np.array(row) for row in rows], path):
        found = given_labels(NAMES, given)
        assert found.values.tolist() == rows
        assert list(found.classes) == list(map(str, range(len(rows[0]))))
