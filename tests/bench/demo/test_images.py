"""The demo's images: its own set, and how folders are read."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from penstock.bench.demo_images import CLASSES, Crops, cached_images, find_images, make_images
from penstock.errors import BadSetting

pytestmark = pytest.mark.whole


def fingerprint(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*.jpg"))
    }


def small_set(root: Path, seed: int = 0) -> Path:
    make_images(root, images=20, side_px=(70, 90), seed=seed)
    return root


def test_the_same_seed_makes_the_same_images(tmp_path):
    seeds = {"a": 1, "b": 1, "c": 2}
    first, second, other = (fingerprint(small_set(tmp_path / name, seed=seeds[name])) for name in seeds)
    assert first == second
    assert len(first) == 20
    assert first.keys() == other.keys()
    assert not set(first.values()) & set(other.values())


def test_the_set_lies_in_the_cache_directory_and_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    root = small_set(tmp_path / "penstock" / "demo-images")
    before = fingerprint(root)
    assert cached_images() == root
    assert fingerprint(root) == before
    assert os.listdir(root.parent) == [root.name]


def test_an_interrupted_making_leaves_nothing(tmp_path):
    def interrupt(done: int, of: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_images(tmp_path / "set", images=20, side_px=(70, 90), on_made=interrupt)
    assert not list(tmp_path.iterdir())


def test_what_a_killed_maker_left_is_removed(tmp_path):
    (tmp_path / ".set" / "train").mkdir(parents=True)
    small_set(tmp_path / "set")
    assert os.listdir(tmp_path) == ["set"]


def test_the_first_of_two_makers_wins(tmp_path):
    small_set(tmp_path / "set", seed=1)
    before = fingerprint(tmp_path / "set")
    small_set(tmp_path / "set", seed=2)
    assert fingerprint(tmp_path / "set") == before
    assert os.listdir(tmp_path) == ["set"]


@pytest.mark.parametrize("parts", [("",), ("train", "test")])
def test_class_folders_give_the_labels_and_of_train_and_test_train_alone_is_used(tmp_path, parts):
    root = tmp_path / "set"
    for part in parts:
        small_set(root / part)
    folder = find_images(root, None)
    assert (folder.name, len(folder.train), folder.classes) == ("set", 20, len(CLASSES))
    for path, label in folder.train:
        assert Path(path).parent == root / parts[0] / sorted(CLASSES)[label]


def test_jpegs_without_class_folders_get_labels_that_mean_nothing(tmp_path):
    for number, path in enumerate(sorted(small_set(tmp_path / "set").rglob("*.jpg"))):
        path.rename(tmp_path / f"{number}.JPEG")
    folder = find_images(tmp_path, None)
    assert len(folder.train) == 20
    assert all(label < folder.classes for _, label in folder.train)
    assert "no class folders" in folder.note


def test_classes_are_those_of_image_folder(tmp_path):
    """As it was found: one without a JPEG was left out, and moved the numbers of those behind it."""
    (small_set(tmp_path / "set") / "a-class-without-jpegs").mkdir()
    folder = find_images(tmp_path / "set", None)
    assert folder.classes == len(CLASSES) + 1
    numbers = {Path(path).parent.name: label for path, label in folder.train}
    assert numbers == {name: 1 + i for i, name in enumerate(sorted(CLASSES))}


def test_the_number_of_images_can_be_limited(tmp_path):
    root = small_set(tmp_path / "set")
    folder = find_images(root, 7)
    assert len(folder.train) == 7
    assert folder.train == find_images(root, 7).train
    assert "7 of 20" in folder.note


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere", "there is no such folder"),
        ("empty", "no files in it, or in folders below, end in"),
        ("image.jpg", "this is a file"),
        ("broken", r"broken\.jpg cannot be decoded"),
    ],
)
def test_what_cannot_be_trained_on_is_an_error(tmp_path, name, says):
    for folder in ("empty", "broken"):
        (tmp_path / folder).mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("no picture")
    for file in ("image.jpg", "broken/broken.jpg"):
        (tmp_path / file).write_bytes(b"no JPEG at all")
    with pytest.raises(BadSetting, match=says):
        find_images(tmp_path / name, None)


def test_crops_have_the_models_shape(tmp_path):
    folder = find_images(small_set(tmp_path / "set"), None)
    pixels, label = Crops(folder.train, 64)[3]
    assert (pixels.shape, pixels.dtype, label) == ((3, 64, 64), np.uint8, folder.train[3][1])
