"""Ids, classes and labels of folders are those of torchvision's ImageFolder."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
from tests.sources.images.pictures import encoded, jpeg

import penstock
from penstock import ImageSource

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


NAMES = ["a", "a b", "a-b", "a/x", "a/x y", "a/x/z", "a.b", "B", ".hidden", "b/.deep", "\u00e4", "10", "9"]
ENDS = (".jpg", ".JPG", ".png", ".tif", ".txt", "")


def test_ids_labels_and_classes_are_those_of_image_folder(tmp_path):
    for seed in range(12):
        choose, top = random.Random(seed), tmp_path / str(seed)
        for name in choose.sample(NAMES, 8):
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
        assert given._blocks._labels.tolist() == source._blocks._labels.tolist() == [of for _, of in samples]


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
    assert source._blocks._labels.tolist() == [0, 3]
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
    with penstock.attach("after", 2) as loader, pytest.raises(penstock.BadSetting, match="which file has which"):
        loader.load_state_dict(state)
