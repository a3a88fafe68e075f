"""Labels of images: from folders, files, arrays and dicts."""

from __future__ import annotations

import numpy as np
import pytest

import penstock
from penstock.sources.images.labels import labels_of


def test_labels_are_folders_numbers_names_or_several(tmp_path):
    names = ["a/x/1.jpg", "b/2.jpg", "a/3.jpg"]
    found = labels_of(names, None)
    assert found is not None
    assert (found.values.tolist(), list(found.classes)) == ([0, 1, 0], ["a", "b"])
    years = labels_of(["2024/1.jpg", "7/2.jpg"], None)
    assert years is not None
    assert (years.values.tolist(), list(years.classes)) == ([0, 1], ["2024", "7"])
    unknown = labels_of(names, [3, -100, 10])
    assert unknown is not None
    assert unknown.values.tolist() == [3, -100, 10]
    matrix = labels_of(names, np.array([[0, 1], [1, 1], [0, 0]]))
    assert matrix is not None
    assert matrix.values.tolist() == [[0, 1], [1, 1], [0, 0]]
    assert labels_of(["1.jpg", "2.jpg"], None) is None
    numbers = labels_of(names, dict(zip(names, [7, "2", np.int64(0)], strict=True)))
    assert numbers is not None
    assert numbers.values.tolist() == [7, 2, 0]
    (tmp_path / "labels.csv").write_text('a/x/1.jpg,cat,dog\nb/2.jpg,\n"a/3.jpg",dog\nelse.jpg,cow\n')
    several = labels_of(names, tmp_path / "labels.csv")
    assert several is not None
    assert several.values.tolist() == [[1, 1], [0, 0], [0, 1]]
    assert several.values.dtype == np.uint8
    (tmp_path / "labels.txt").write_text("a/x/1.jpg 3\nb/2.jpg 1\na/3.jpg 0\n")
    assert labels_of(names, tmp_path / "labels.txt").values.tolist() == [3, 1, 0]  # type: ignore[union-attr]
    for given, match in (
        (tmp_path / "none.txt", "cannot be read"),
        ({"a/x/1.jpg": 1}, "none for 2 of 3 images, such as b/2.jpg"),
        ([0.5, 1, 2], "not whole"),
        ([1, 2], "2 labels for 3 images"),
        (3, "give a file, a dict, or a label for each image"),
        ([[0, 1, 0], [1, 0, 0], [0, 0, 1]], "rows of 0 and 1: give them as an array"),
        (np.zeros((2, 2)), "a row of 0 and 1 for each of 3 images"),
    ):
        with pytest.raises(penstock.BadSetting, match=match):
            labels_of(names, given)
    with pytest.raises(penstock.BadSetting, match=r"2 images lie in class folders, and 1 in none, such as 3.jpg"):
        labels_of(["a/1.jpg", "b/2.jpg", "3.jpg"], None)
