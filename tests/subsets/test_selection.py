"""What a selection is, and what is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock import BadSetting, Selection


@pytest.mark.parametrize(
    "given",
    [
        [4, 1, 7],
        (7, 4, 1),
        range(1, 8, 3),
        np.array([7, 1, 4], np.uint8),
        torch.tensor([1, 4, 7]),
        [False, True, False, False, True, False, False, True],
        Selection([1, 4, 7]),
    ],
)
def test_ids_and_masks_of_the_same_samples_are_one_selection(given: Any) -> None:
    selection = Selection(given)
    assert selection.ids.tolist() == [1, 4, 7] and len(selection) == 3
    assert selection.digest == Selection([1, 4, 7]).digest
    assert selection.bitmap(8).holds(np.arange(8)).nonzero()[0].tolist() == [1, 4, 7]


@pytest.mark.parametrize("content", [np.array([7, 1, 4]), np.isin(np.arange(8), [1, 4, 7])])
def test_a_file_holds_either(tmp_path: Path, content: Any) -> None:
    np.save(tmp_path / "some.npy", content)
    for path in (tmp_path / "some.npy", str(tmp_path / "some.npy")):
        assert Selection(path).ids.tolist() == [1, 4, 7]


def test_weights_go_with_their_ids() -> None:
    selection = Selection([7, 1, 4], [0.7, 0.1, 0.4])
    assert selection.weights_of(np.array([4, 7])).tolist() == pytest.approx([0.4, 0.7])
    assert selection.digest not in (Selection([1, 4, 7]).digest, Selection([1, 4, 7], [1, 1, 2]).digest)
    assert Selection(selection).digest == selection.digest
    assert Selection([1, 4, 7]).weights_of(np.array([4, 7])).tolist() == [1, 1]
    assert Selection([False, True, True], 2).weights_of(np.array([2])).tolist() == [2]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([], "no sample"),
        ([False, False], "none of 2 samples"),
        ([1, -2, -3], "ids -2, -3 are below 0"),
        ([3, 1, 3], "id 3 is selected more than once"),
        ([0.5, 1.5], r"a list \(1 dimensions of float64\)"),
        ([[1, 2], [3, 4]], "2 dimensions of int64"),
        ([[1], [2, 3]], "it must be a list of ids"),
        (["a"], "it must be a list of ids"),
        (7, "0 dimensions"),
        ("nowhere.npy", "there is no file nowhere.npy"),
        (np.array([0, 2**63], np.uint64), "id 9223372036854775808 is too large"),
        ([0, 1, 1, 0], r"ids 0, 1 are selected more than once.*mask\.astype\(bool\)"),
        (np.ma.array([1, 2], mask=[0, 1]), "a masked array: give the ids that count"),
        (torch.tensor([True, False]).to_sparse(), "it must be a list of ids"),
    ],
)
def test_what_is_no_selection_is_one_error(given: Any, why: str) -> None:
    with pytest.raises(BadSetting, match=why):
        Selection(given)


def test_a_file_that_holds_no_numbers_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "text.npy").write_text("1, 2, 3")
    with pytest.raises(BadSetting, match=r"text\.npy is no \.npy file of numbers"):
        Selection(tmp_path / "text.npy")


@pytest.mark.parametrize(
    "weights",
    [
        torch.ones(3, requires_grad=True),
        torch.ones(3).bfloat16(),
        [1, 2],
        [1, 2, float("nan")],
        [1, 2, -1],
        [[1, 2, 3]],
        ["a", "b", "c"],
        [1, 2, 1e300],
    ],
)
def test_weights_that_do_not_fit_are_one_error(weights: Any) -> None:
    with pytest.raises(BadSetting, match="weights: "):
        Selection([1, 4, 7], weights)


def test_a_selection_of_another_data_set_is_one_error() -> None:
    with pytest.raises(BadSetting, match=r"id 7 is not in a data set of 7 samples \(0 to 6\)"):
        Selection([1, 4, 7]).check(7)
    with pytest.raises(BadSetting, match="some of 3 samples, and the data set has 4"):
        Selection([True, False, True]).check(4)


def test_a_selection_stays_what_its_digest_says() -> None:
    with pytest.raises(ValueError, match="read-only"):
        Selection([1, 4, 7]).ids[0] = 5
