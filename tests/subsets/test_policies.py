"""Policies say which samples each epoch holds, in a sampler and on a feed, and go on where they stood."""

from __future__ import annotations

import io
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.feed.squares import N, arrays

import penstock
from penstock import Selection, SelectionSampler
from penstock.errors import BadSetting
from penstock.subsets.infobatch import InfoBatch
from penstock.subsets.policy import AnnealToFull, Fixed, Policy, RandomSubsets, TemperatureSampling

EPOCHS = 8


def from_a_file(state: dict[str, Any]) -> dict[str, Any]:
    """A state as it comes from a checkpoint, which torch reads without trusting it."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


@given(st.integers(2, 60), st.sampled_from([0.1, 0.25, 0.5, 0.6, 1.0]), st.integers(0, 9))
@settings(max_examples=examples(60))
def test_random_subsets_are_fresh_and_share_one_order_for_as_long_as_it_lasts(samples, fraction, seed):
    take = round(fraction * samples)
    if not take:
        with pytest.raises(BadSetting, match="selects none of"):
            RandomSubsets(samples, fraction)
        return
    policy = RandomSubsets(samples, fraction, seed=seed)
    parts = samples // take
    for first in (0, parts):
        drawn = np.concatenate([policy.selection(first + part).ids for part in range(parts)])
        assert len(drawn) == parts * take == len(set(drawn.tolist()))
    assert policy.selection(3).digest == RandomSubsets(samples, fraction, seed=seed).selection(3).digest


def test_numbers_of_numpy_are_numbers_and_scores_are_no_selection() -> None:
    assert RandomSubsets(np.int64(30), 0.5).digest == RandomSubsets(30, 0.5).digest

    class Scored:
        worth = np.zeros((3, 1))

    with pytest.raises(BadSetting, match=r"select: scores select nothing by themselves: penstock\.select\.top"):
        SelectionSampler(Scored())


def test_random_subsets_differ_between_epochs_and_seeds_unless_drawn_once() -> None:
    policy = RandomSubsets(1000, 0.5, seed=1)
    assert len({policy.selection(epoch).digest for epoch in range(6)}) == 6
    assert policy.selection(0).digest != RandomSubsets(1000, 0.5, seed=2).selection(0).digest
    once = RandomSubsets(1000, 0.5, seed=1, fresh=False)
    assert len({once.selection(epoch).digest for epoch in range(6)}) == 1


def test_a_pool_is_drawn_from_with_its_weights() -> None:
    pool = Selection([3, 5, 8, 13], weights=[1, 2, 3, 4])
    for epoch in range(4):
        drawn = RandomSubsets(pool, 0.5).selection(epoch)
        assert set(drawn.ids.tolist()) < {3, 5, 8, 13}
        assert drawn.weights_of(drawn.ids).tolist() == [[1, 2, 3, 4][[3, 5, 8, 13].index(id)] for id in drawn.ids]


def test_samples_are_drawn_as_often_as_their_scores_say() -> None:
    """Against the chance of a first draw, which the Gumbel trick gives exactly."""
    scores = np.array([0.0, 1.0, 2.0, 3.0])
    policy = TemperatureSampling(4, scores, 0.25, temperature=1.5, seed=3)
    drawn = np.bincount([int(policy.selection(epoch).ids[0]) for epoch in range(4000)], minlength=4) / 4000
    chances = np.exp((scores - scores.mean()) / scores.std() / 1.5)
    assert np.abs(drawn - chances / chances.sum()).max() < 0.03
    assert TemperatureSampling(4, scores, 0.5, temperature=1e-4).selection(0).ids.tolist() == [2, 3]


class PlainInfoBatch:
    """The paper's algorithm, word for word, on Python lists."""

    def __init__(self, samples: int, ratio: float) -> None:
        self.ratio = ratio
        self.losses: list[float | None] = [None] * samples

    def expected(self) -> tuple[set[int], int, float]:
        """Return the samples that must come, how many of the others do, and the weight of those."""
        known = [loss for loss in self.losses if loss is not None]
        mean = sum(known) / len(known) if known else 0.0
        learnt = {i for i, loss in enumerate(self.losses) if loss is not None and loss < mean}
        kept = len(learnt) - int(self.ratio * len(learnt))
        return set(range(len(self.losses))) - learnt, kept, len(learnt) / kept if kept else 0.0


@pytest.mark.whole
@given(st.integers(1, 50), st.floats(0, 0.9), st.integers(0, 5), st.randoms(use_true_random=False))
@settings(max_examples=examples(100))
def test_infobatch_leaves_out_what_the_paper_does(samples: int, ratio: float, seed: int, draws: Any) -> None:
    policy, plain = InfoBatch(samples, epochs=EPOCHS, ratio=ratio, seed=seed), PlainInfoBatch(samples, ratio)
    for epoch in range(EPOCHS):
        chosen = policy.selection(epoch)
        if epoch == EPOCHS - 1:
            assert len(chosen) == samples and (chosen.weights == 1).all()
            break
        hard, kept, weight = plain.expected()
        assert chosen.weights is not None
        assert {id for id in chosen.ids.tolist() if id in hard} == hard
        others = [id for id in chosen.ids.tolist() if id not in hard]
        assert len(others) == kept
        assert np.allclose(chosen.weights_of(np.array(others, np.int64)), weight)
        assert sum(chosen.weights.tolist()) == pytest.approx(samples, rel=1e-5) or not kept
        for id in chosen.ids.tolist():
            if draws.random() < 0.9 or id == 0:  # who never reports is warned
                loss = float(np.float32(draws.random()))
                policy.report(np.array([id]), np.array([loss]))
                plain.losses[id] = loss


def test_what_is_left_out_differs_from_epoch_to_epoch() -> None:
    policy = InfoBatch(1000, epochs=20)
    policy.selection(0)
    policy.report(np.arange(1000), np.arange(1000.0))
    chosen = [set(policy.selection(epoch).ids.tolist()) for epoch in range(1, 6)]
    assert all(len(each) == 750 for each in chosen)
    assert len({frozenset(each) for each in chosen}) == 5


def test_a_report_that_makes_no_sense_is_refused_and_counts_for_nothing() -> None:
    policy = InfoBatch(10, epochs=4)
    for ids, losses, said in (
        ([10], [1.0], "id 10 is not in a data set of 10 samples"),
        ([-1], [1.0], "id -1"),
        ([1.5], [1.0], "whole numbers"),
        ([1, 2], [1.0], r"shape \(1,\), for 2 samples"),
        ([1, 2], [1.0, np.nan], "1 of 2 are not finite, the first is that of id 2"),
    ):
        with pytest.raises(BadSetting, match=said):
            policy.report(np.array(ids), np.array(losses))
    assert len(policy.selection(1)) == 10


def test_who_never_reports_is_told_once() -> None:
    policy = InfoBatch(10, epochs=8)
    assert len(policy.selection(0)) == 10
    with pytest.warns(UserWarning, match="InfoBatch leaves nothing out, since no loss was reported") as told:
        assert [len(policy.selection(epoch)) for epoch in range(1, 8)] == [10] * 7
    assert len(told) == 1
    assert [len(InfoBatch(10, epochs=8, ratio=0).selection(epoch)) for epoch in range(8)] == [10] * 8


def test_a_damaged_state_is_refused_and_changes_nothing() -> None:
    one, other = InfoBatch(10, epochs=4), InfoBatch(10, epochs=4)
    for policy, losses in ((one, np.arange(10.0)), (other, np.arange(10.0)[::-1])):
        policy.report(range(10), losses)
        policy.selection(1)
        policy.report([3], [1.0])
    state, before = other.state_dict(), one.state_dict()
    damages: list[dict[str, Any]] = [
        {"losses": b"123"},
        {"losses": b"1234"},
        {"reported": 7},
        {"reported": [(np.arange(2).tobytes(), np.zeros(1).tobytes())]},
        {"decided": (1, b"")},
    ]
    for damage in damages:
        with pytest.raises(BadSetting, match="this state of InfoBatch is damaged"):
            one.load_state_dict(state | damage)
        assert one.state_dict() == before
    with pytest.raises(BadSetting, match=r"damaged \(KeyError: 'reported'\)"):
        one.load_state_dict({name: part for name, part in state.items() if name != "reported"})
    assert one.state_dict() == before
    one.load_state_dict(state)
    assert one.state_dict() == state


def test_a_policy_with_more_samples_than_all_is_refused() -> None:
    policy = AnnealToFull(RandomSubsets(800, 0.5), 700, epochs=6)
    with pytest.raises(BadSetting, match="its policy selects from 800 samples, and the last epochs from 700"):
        policy.selection(0)
    assert len(AnnealToFull(RandomSubsets(100, 0.5), [1, 2, 3], epochs=8).selection(0)) == 50


def losses_of(ids: list[int], epoch: int) -> np.ndarray:
    return (np.array(ids) * 7 % 13 + epoch).astype(np.float64)


@given(stop=st.integers(0, 200), seed=st.integers(0, 3))
@settings(max_examples=examples(30))
def test_a_sampler_with_a_policy_goes_on_behind_what_it_gave(stop: int, seed: int) -> None:
    """Interrupted anywhere: the rest, its weights included, is that of a sampler that was not."""

    def made() -> tuple[SelectionSampler, Policy]:
        policy = InfoBatch(40, epochs=6, seed=seed)
        return SelectionSampler(policy, seed=seed), policy

    def samples_of(sampler: SelectionSampler, policy: Policy, epochs: int) -> Any:
        for _ in range(epochs):
            for id in sampler:
                yield id, float(sampler.weights([id])[0])
                policy.report([], [])
                policy.report(np.array([id]), losses_of([id], 0))

    whole = list(samples_of(*made(), epochs=6))
    weights = {weight for _, weight in whole}
    assert len(whole) < 240 and weights > {1.0} and all(1.5 < weight < 2.5 for weight in weights - {1.0})
    sampler, policy = made()
    begun = list(islice(samples_of(sampler, policy, 6), stop))
    state = from_a_file(sampler.state_dict())
    again, its = made()
    again.load_state_dict(state)
    # The last sample of those that were begun was handed out and not reported: its loss went with the generator.
    if begun:
        its.report(np.array([begun[-1][0]]), losses_of([begun[-1][0]], 0))
    rest = list(samples_of(again, its, 6))
    assert begun + rest[: len(whole) - len(begun)] == whole


def test_ranks_with_a_policy_have_nothing_in_common_and_miss_nothing() -> None:
    ranks = [SelectionSampler(RandomSubsets(30, 0.5, seed=4), seed=3, rank=r, num_replicas=3) for r in range(3)]
    first = [id for rank in ranks for id in rank]
    second = [id for rank in ranks for id in rank]
    assert sorted(first + second) == list(range(30))


@pytest.mark.parametrize(
    ("epochs", "last", "first"), [(10, 0.9, 1), (5, 0.8, 1), (10, 0.8, 2), (8, 0.125, 7), (8, 0.25, 6), (3, 1, 0)]
)
def test_the_last_part_begins_at_a_whole_epoch(epochs: int, last: float, first: int) -> None:
    policy = AnnealToFull(Fixed([1]), 9, epochs=epochs, last=last)
    assert [len(policy.selection(epoch)) for epoch in range(epochs)] == [1] * first + [9] * (epochs - first)


def test_scores_are_drawn_by_in_their_direction() -> None:
    class Scored:
        ids = np.arange(3)
        worth = np.array([[0.0], [5.0], [1.0]])

    policy = TemperatureSampling(3, Scored(), 1 / 3, temperature=0.01)
    assert policy.selection(0).ids.tolist() == [1]
    Scored.worth = np.zeros((3, 2))
    with pytest.raises(BadSetting, match="scores: they are of 2 targets; give those of one"):
        TemperatureSampling(3, Scored(), 0.5)


def test_scores_are_those_of_the_ids_that_they_are_of() -> None:
    """Every other sample was scored, from 10 on; the best is 14, which stands at place 2 of them."""

    class Scored:
        ids = np.array([10, 12, 14, 16])
        worth = np.array([[0.0], [1.0], [9.0], [2.0]])

    for pool in ([12, 14], [10, 14, 16], Selection(Scored.ids)):
        policy = TemperatureSampling(pool, Scored(), 1 / len(pool), temperature=0.01)
        assert policy.selection(0).ids.tolist() == [14]
    with pytest.raises(BadSetting, match="scores: 4 of 4 samples have none, the first is id 0: give Selection"):
        TemperatureSampling(4, Scored(), 0.5)
    Scored.worth = np.array([[0.0], [1.0], [np.nan], [2.0]])
    with pytest.raises(BadSetting, match="1 of 3 are not finite, the first is that of id 14"):
        TemperatureSampling([10, 14, 16], Scored(), 0.5)


@pytest.mark.parametrize("annealed", [False, True])
def test_infobatch_refuses_ranks_that_cannot_exchange_losses(serve: Any, annealed: bool) -> None:
    policy: Policy = InfoBatch(N, epochs=4)
    policy = AnnealToFull(policy, N, epochs=4) if annealed else policy
    said = "InfoBatch: 2 ranks, and 1 of them in torch.distributed's process group"
    with pytest.raises(BadSetting, match=said):
        list(SelectionSampler(policy, rank=1, num_replicas=2))
    serve(arrays(), window="1MiB")
    with penstock.attach("feed", 12, select=policy, shard=(0, 2)) as loader, pytest.raises(BadSetting, match=said):
        list(loader)
    assert list(SelectionSampler(InfoBatch(N, epochs=4, ratio=0), rank=1, num_replicas=2))


def test_what_another_rank_has_reported_is_not_taken_for_one_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = InfoBatch(30, epochs=4)
    policy.selection(0)
    policy.report(np.arange(30), np.arange(30.0))
    state = policy.state_dict()
    monkeypatch.setattr("penstock.subsets.infobatch._rank", lambda: (1, 2))
    with pytest.raises(BadSetting, match="holds what rank 0 of 1 has reported, and this is rank 1 of 2"):
        InfoBatch(30, epochs=4).load_state_dict(state)
    InfoBatch(30, epochs=4).load_state_dict(state | {"reported": []})


def test_another_policy_of_a_state_is_refused() -> None:
    state = SelectionSampler(RandomSubsets(30, 0.5, seed=4)).state_dict()
    with pytest.raises(BadSetting, match="this state was saved with selection="):
        SelectionSampler(RandomSubsets(30, 0.5, seed=5)).load_state_dict(state)
    state = InfoBatch(30, epochs=4).state_dict()
    with pytest.raises(BadSetting, match="another data set, number of epochs, ratio or seed"):
        InfoBatch(30, epochs=5).load_state_dict(state)


def test_weights_of_a_sample_that_is_not_selected_are_refused() -> None:
    with pytest.raises(BadSetting, match="id 7 is not selected"):
        SelectionSampler([1, 2]).weights([1, 7])


def test_a_feed_follows_a_policy_from_epoch_to_epoch(serve: Any) -> None:
    serve(arrays(), window="1MiB")
    policy = InfoBatch(N, epochs=5, seed=1)
    with penstock.attach("feed", 12, select=policy) as loader:
        seen = []
        for _ in range(5):
            ids = []
            for _ in loader:
                assert loader.ids is not None and loader.weights is not None
                ids += loader.ids.tolist()
                policy.report(loader.ids, losses_of(loader.ids.tolist(), 0))
            seen.append(ids)
    assert sorted(seen[0]) == sorted(seen[4]) == list(range(N))
    alone = InfoBatch(N, epochs=5, seed=1)  # after all losses of the first epoch
    alone.report(np.arange(N), losses_of(list(range(N)), 0))
    for epoch in (1, 2, 3):
        assert sorted(seen[epoch]) == alone.selection(epoch).ids.tolist() and len(seen[epoch]) < N


@pytest.mark.parametrize("stop", [0, 3, 7])
@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_a_feed_with_a_policy_is_resumed_where_it_stood(serve: Any, epoch: int, stop: int) -> None:
    serve(arrays(), window="1MiB")

    def read(loader: Any, policy: Policy, batches: int | None = None) -> list[tuple[int, float]]:
        found = []
        for i, _ in enumerate(loader):
            found += zip(loader.ids.tolist(), loader.weights.tolist(), strict=True)
            policy.report(loader.ids, losses_of(loader.ids.tolist(), 0))
            if batches is not None and i + 1 == batches:
                break
        return found

    policy = InfoBatch(N, epochs=5, seed=1)
    with penstock.attach("feed", 10, select=policy) as loader:
        for _ in range(epoch):
            read(loader, policy)
        begun = read(loader, policy, stop) if stop else []
        state = from_a_file(loader.state_dict())
    again = InfoBatch(N, epochs=5, seed=1)
    with penstock.attach("feed", 10, select=again) as loader:
        loader.load_state_dict(state)
        assert loader.epoch == epoch
        rest = read(loader, again)
        chosen = again.selection(epoch)
    whole = begun + rest
    assert sorted(id for id, _ in whole) == chosen.ids.tolist()
    assert dict(whole) == dict(zip(chosen.ids.tolist(), chosen.weights_of(chosen.ids).tolist(), strict=True))
