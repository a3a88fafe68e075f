"""What a selection is; and a sampler gives each selected sample once an epoch, and goes on where it stood."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from penstock import Selection, SelectionSampler
from penstock.errors import BadSetting
from penstock.subsets.infobatch import InfoBatch
from penstock.subsets.policy import AnnealToFull, RandomSubsets

SOME = [3, 14, 15, 92, 65, 35, 89]


def test_a_loader_gives_the_selected_samples_in_another_order_each_epoch() -> None:
    sampler: Any = SelectionSampler(SOME, seed=1)
    loader = DataLoader(range(100), 2, sampler=sampler)  # type: ignore[arg-type]
    epochs = [[i for batch in loader for i in batch.tolist()] for _ in range(4)]
    assert len(loader) == 4 and all(sorted(epoch) == sorted(SOME) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    again = SelectionSampler(SOME, seed=1)
    again.set_epoch(2)
    assert list(again) == epochs[2] and list(again) == epochs[3]
    assert list(SelectionSampler(SOME, seed=2)) != epochs[0]
    assert list(SelectionSampler(SOME, shuffle=False)) == sorted(SOME)


@given(count=st.integers(1, 40), world=st.integers(1, 6), drop=st.booleans(), epoch=st.integers(0, 3))
@settings(max_examples=examples(100))
def test_ranks_get_what_torch_deals_them(count: int, world: int, drop: bool, epoch: int) -> None:
    if drop and count < world:
        with pytest.raises(BadSetting, match="fill no batch of 1: select more, or leave out drop_last"):
            SelectionSampler(range(count), num_replicas=world, drop_last=True)
        return
    for rank in range(world):
        mine = SelectionSampler(range(count), shuffle=False, rank=rank, num_replicas=world, drop_last=drop)
        torchs = DistributedSampler(range(count), world, rank, shuffle=False, drop_last=drop)  # type: ignore[arg-type]
        assert list(mine) == list(torchs) and len(mine) == len(torchs)
        mixed = SelectionSampler(range(count), seed=5, rank=rank, num_replicas=world, drop_last=drop)
        mixed.set_epoch(epoch)
        assert len(list(mixed)) == len(mixed)


@given(given_before=st.integers(0, 7), told=st.booleans())
@settings(max_examples=examples(30))
def test_a_saved_iteration_goes_on_behind_what_it_gave(given_before: int, told: bool) -> None:
    before = SelectionSampler(SOME, seed=1)
    first = list(before)
    if told:
        before.set_epoch(1)
    iterator = iter(before)
    second = [next(iterator) for _ in range(given_before)]
    after = SelectionSampler(SOME, seed=1)
    after.load_state_dict(before.state_dict())
    if told:
        after.set_epoch(1)
    rest = list(after)
    if given_before == len(SOME) and not told:
        assert sorted(rest) == sorted(SOME) and rest not in (first, second)
    elif given_before < len(SOME) and not (given_before == 0 and not told):
        assert sorted(second + rest) == sorted(SOME)


@pytest.mark.parametrize("wrong", [{"rank": 2, "num_replicas": 2}, {"num_replicas": 0}, {"seed": 0.5}])
def test_arguments_that_make_no_sense_are_refused(wrong: Any) -> None:
    with pytest.raises(BadSetting, match=next(iter(wrong))):
        SelectionSampler(SOME, **wrong)


@pytest.mark.parametrize(
    "other", [{"selection": [1, 2, 3]}, {"seed": 1}, {"shuffle": False}, {"num_replicas": 4}, {"drop_last": True}]
)
def test_a_state_of_another_selection_order_or_of_other_ranks_is_refused(other: Any) -> None:
    made: dict[str, Any] = {"selection": range(100), "num_replicas": 2}
    with pytest.raises(BadSetting, match=f"this state was saved with {next(iter(other))}="):
        SelectionSampler(**made | other).load_state_dict(SelectionSampler(**made).state_dict())


def test_ids_that_do_not_exist_and_less_than_a_batch_are_refused_before_they_are_read() -> None:
    with pytest.raises(BadSetting, match=r"id 100 is not in a data set of 100 samples \(0 to 99\)"):
        SelectionSampler([3, 100], samples=100)
    with pytest.raises(BadSetting, match="some of 3 samples, and the data set has 100"):
        SelectionSampler(np.array([True, False, True]), samples=100)
    said = "63 samples, 32 for each of 2 ranks, fill no batch of 33: select more, or take smaller batches"
    with pytest.raises(BadSetting, match=said):
        SelectionSampler(range(63), samples=100, num_replicas=2, batch_size=33)
    with pytest.raises(BadSetting, match="samples='100': it must be a whole number"):
        SelectionSampler(range(3), samples="100")  # type: ignore[arg-type]
    data = TensorDataset(torch.arange(100))
    sampler = SelectionSampler(range(63), samples=len(data), num_replicas=2, batch_size=32)
    assert len(DataLoader(data, batch_size=32, sampler=sampler, drop_last=True)) == 1


def test_an_epoch_of_a_policy_is_refused_when_it_begins() -> None:
    sampler = SelectionSampler(AnnealToFull(RandomSubsets(range(80), 0.5), 100, epochs=2, last=0.5), samples=80)
    assert len(list(sampler)) == 40
    with pytest.raises(BadSetting, match="some of 100 samples, and the data set has 80"):
        list(sampler)
    policy = InfoBatch(40, epochs=8)
    sampler = SelectionSampler(policy, batch_size=32)
    policy.report(sorted(sampler), (np.arange(40) >= 38).astype(float))
    with pytest.raises(BadSetting, match="21 samples fill no batch of 32"):
        list(sampler)


def test_a_loaded_state_is_not_given_up_in_silence() -> None:
    sampler = SelectionSampler(range(40), seed=1)
    ids = iter(sampler)
    for _ in range(12):
        next(ids)
    state = sampler.state_dict()
    with pytest.warns(
        UserWarning, match=r"set_epoch\(3\) gives up the state that was loaded, 12 of 40 samples into"
    ):
        loaded(state).set_epoch(3)
    again = loaded(state)
    again.set_epoch(0)
    assert len(list(again)) == 28
    next_one = loaded(state | {"given": 40})
    next_one.set_epoch(1)
    assert len(list(next_one)) == 40


def loaded(state: dict[str, Any]) -> SelectionSampler:
    sampler = SelectionSampler(range(40), seed=1)
    sampler.load_state_dict(state)
    return sampler


@pytest.mark.parametrize("state", [None, 5, {}, {"epoch": 1, "given": 3}])
def test_what_is_no_state_is_one_error(state: Any) -> None:
    with pytest.raises(BadSetting, match="does not come from a SelectionSampler"):
        SelectionSampler(range(100)).load_state_dict(state)


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
