"""Trainers that take part of a feed: each sample once an epoch, loaded once for all; or a refusal in words."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.feed.reading import at_once
from tests.feed.squares import N, Squares, arrays, epoch_of, part, right
from tests.forked import eventually
from tests.sources.drawing import DrawingStream
from torch.utils.data import DataLoader, WeightedRandomSampler

import penstock
from penstock import Selection
from penstock.errors import BadSetting, Refused
from penstock.sources.packed.packing import pack


def source(kind: str, folder: Path) -> Any:
    match kind:
        case "arrays":
            return arrays()
        case "packed":
            ids = np.arange(N)
            pack({"id": ids, "square": np.repeat(ids[:, None] ** 2, 3, 1)}, folder / "packed")
            return penstock.PackedSource(folder / "packed", batch_size=10, reader="posix")
        case "workers":
            return DataLoader(Squares(), 10, shuffle=True, num_workers=2)
        case _:
            return DataLoader(Squares(), 10)


@pytest.mark.parametrize(
    ("kind", "borrow"),
    [("arrays", False), ("arrays", True), ("packed", True), ("workers", False), ("in order", True)],
)
def test_each_trainer_gets_its_part_and_the_feed_loads_what_they_take_together(serve, tmp_path, kind, borrow):
    parts = [part(0, 0.5), part(1, 0.5), part(2, 0.1), [7]]
    feeder = serve(source(kind, tmp_path), window="2MiB", expect=4, epochs=3)

    def train(i: int) -> list[list[int]]:
        with penstock.attach("feed", [7, 33, 10, 1][i], select=parts[i], borrow=borrow) as loader:
            assert loader.samples == len(parts[i])
            return [epoch_of(loader) for _ in range(3)]

    with ThreadPoolExecutor(4) as threads:
        for epochs, mine in zip(threads.map(train, range(4)), parts, strict=True):
            assert [sorted(epoch) for epoch in epochs] == [mine] * 3
            assert kind == "in order" or len(mine) == 1 or epochs[0] != epochs[1], "each epoch has its own order"
    statistics = feeder.statistics()
    assert statistics.samples == 3 * len({id for each in parts for id in each})
    taken = sum(map(len, parts))
    assert statistics.taken <= 3 * taken, "the feed may end before it hears of its last blocks' release"
    assert statistics.reopened == 0


def test_what_a_trainer_has_taken_is_what_it_was_handed(serve: Any) -> None:
    feeder = serve(arrays(), window="1MiB")
    with penstock.attach("feed", 7, select=part(0, 0.5)) as loader:
        assert len(epoch_of(loader)) == len(part(0, 0.5))
        eventually(lambda: feeder.statistics().taken == len(part(0, 0.5)))
        assert feeder.statistics().trainers[0].taken == len(part(0, 0.5))


@pytest.mark.parametrize("world", [1, 2])
def test_a_feed_ends_though_its_trainers_parts_end_far_before_its_last_cycle(serve: Any, world: int) -> None:
    """As it was found: who left before the rest of the cycle had been sent was waited for ever after."""
    serve(penstock.ArraySource(np.arange(20_000), batch_size=10, shuffle=False), window="64KiB", epochs=2)

    def train(rank: int) -> list[int]:
        with penstock.attach("feed", 3, shard=(rank, world), select=range(12), drop_last=True) as loader:
            return [int(i) for _ in range(2) for batch in islice(loader, len(loader)) for i in batch]

    assert sorted(id for rank in at_once(train, world) for id in rank) == sorted([*range(12)] * 2)
    eventually(lambda: not penstock.feeds())


@pytest.mark.parametrize(
    ("size", "options"), [(1, {"drop_last": True}), (9, {}), (16, {"drop_last": True}), (16, {"pad": True})]
)
def test_ranks_deal_a_part_evenly(serve: Any, size: int, options: dict[str, Any]) -> None:
    serve(arrays(), window="1MiB")
    mine = sorted(np.random.default_rng(4).permutation(N)[:90].tolist())

    def train(rank: int) -> tuple[list[int], int]:
        with penstock.attach("feed", size, shard=(rank, 3), select=mine, **options) as loader:
            list(loader)
            return epoch_of(loader), len(loader)

    ranks = at_once(train, 3)
    assert len({batches for _, batches in ranks}) == 1
    seen = [id for ids, _ in ranks for id in ids]
    if options == {"drop_last": True}:
        assert len(seen) == len(set(seen)) == 90 // (3 * size) * 3 * size and set(seen) <= set(mine)
    else:
        assert sorted(set(seen)) == mine and len(seen) == 90


def test_the_samples_that_drop_last_leaves_out_change_from_epoch_to_epoch(serve: Any) -> None:
    serve(arrays(), window="1MiB")
    mine = part(5, 0.5)
    with penstock.attach("feed", 30, select=mine, drop_last=True) as loader:
        epochs = [epoch_of(loader) for _ in range(8)]
    assert all(len(set(epoch)) == len(epoch) == len(mine) // 30 * 30 for epoch in epochs)
    assert set().union(*epochs) == set(mine)


@pytest.mark.parametrize(("taken", "size"), [(0, 33), (1, 8), (3, 33)])
def test_an_epoch_goes_on_from_a_state_under_another_batch_size(serve: Any, taken: int, size: int) -> None:
    serve(arrays(), window="1MiB")
    mine = part(6, 0.4)
    with penstock.attach("feed", 8, select=mine) as loader:
        list(loader)
        seen = [id for batch in islice(loader, taken) for id in right(batch)]
        state = loader.state_dict()
    with penstock.attach("feed", size, select=mine) as loader:
        loader.load_state_dict(state)
        seen += [id for batch in loader for id in right(batch)]
        assert sorted(seen) == mine
        assert sorted(epoch_of(loader)) == mine and loader.epoch == 3


def test_a_late_trainer_begins_at_the_first_segment_that_is_loaded_with_its_samples(serve: Any) -> None:
    feeder = serve(arrays(), window="1MiB", prefetch=1)
    with penstock.attach("feed", 10, select=part(7, 0.5)) as first:
        reading = iter(first)
        next(reading)
        with penstock.attach("feed", 10, select=part(8, 0.5)) as late:
            with ThreadPoolExecutor(1) as other:
                of_late = other.submit(epoch_of, late)
                eventually(lambda: feeder.statistics().trainers[1].state != "attached")  # before the first goes on
                list(reading)
                assert sorted(epoch_of(first)) == part(7, 0.5)
                assert sorted(of_late.result()) == part(8, 0.5)
            assert late.state_dict()["start"][1] > 0, "the segment that had begun lacked its samples"
    assert feeder.statistics().reopened == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_loaded_again_beside_others_draw_anew(serve: Any, workers: int) -> None:
    """A trainer goes on in one epoch over two openings of the source at one place, for different parts."""
    serve(DataLoader(Draws(), 10, num_workers=workers), window="1MiB", prefetch=1, segments=20)
    with penstock.attach("feed", 10, select=range(0, N, 2)) as reader:
        reading = iter(reader)
        seen = [next(reading) for _ in range(4)]
        back = {"start": [0, 0], "delivered": 5, "at": [0, 10], "epoch": 0, "left_out": []}
        for select in (range(1, N, 2), range(0, N, 3), range(N)):
            with penstock.attach("feed", 10, select=select) as other:
                other.load_state_dict({**other.state_dict(), **back})
                seen += islice(other, 3)
        seen += reading
    draws: dict[float, int] = {}
    for batch in seen:
        for id, draw in zip(batch["id"].tolist(), batch["draw"].tolist(), strict=True):
            assert draws.setdefault(draw, id) == id, "one draw for two samples"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_cycle_begun_again_for_one_behind_draws_anew_for_one_ahead(serve: Any, workers: int) -> None:
    """The feed goes back a cycle, and begins the next one once more, where fewer samples are wanted."""
    serve(DataLoader(Draws(), 10, num_workers=workers), window="1MiB", prefetch=1, segments=1)
    with penstock.attach("feed", 10) as ahead:
        list(ahead)
        reading = iter(ahead)
        seen = [next(reading) for _ in range(6)]
        with penstock.attach("feed", 10, select=range(0, N, 3)) as behind:
            at = {"start": [0, 0], "delivered": 10, "at": [0, 30], "epoch": 0, "left_out": []}
            behind.load_state_dict({**behind.state_dict(), **at})
            with ThreadPoolExecutor(1) as other:
                others = other.submit(lambda: [len(list(behind)) for _ in range(2)])
                seen += reading
                others.result()
    draws = [draw for batch in seen for draw in batch["draw"].tolist()]
    assert len(draws) == N == len(set(draws))


class Draws(Squares):
    def __getitem__(self, i: int) -> Any:
        return {"id": i, "draw": torch.rand((), dtype=torch.float64)}


def test_ids_and_weights_are_those_of_the_batch(serve: Any) -> None:
    serve(arrays(), window="1MiB")
    mine = part(11, 0.3)
    with penstock.attach("feed", 12, select=Selection(mine, np.array(mine) / 10)) as loader:
        assert loader.weights is None
        for batch in loader:
            assert loader.weights is not None
            np.testing.assert_allclose(loader.weights, batch["id"] / 10, rtol=1e-6)
        loader.select(None)
        next(iter(loader))
        assert loader.weights is not None and loader.weights.tolist() == [1.0] * 12


def test_a_selection_is_a_mask_a_file_or_ids(serve: Any, tmp_path: Path) -> None:
    serve(arrays(), window="1MiB")
    mask = np.isin(np.arange(N), part(12, 0.2))
    np.save(tmp_path / "some.npy", mask)
    for given_as in (mask, torch.tensor(mask), str(tmp_path / "some.npy"), np.flatnonzero(mask)):
        with penstock.attach("feed", 12, select=given_as) as loader:
            assert sorted(epoch_of(loader)) == part(12, 0.2)


def add_one(tree: Any) -> Any:
    return {**tree, "id": tree["id"] + 1}


def test_a_feed_s_transform_sees_what_is_taken(serve: Any) -> None:
    serve(arrays(), window="1MiB", transform=add_one)
    with penstock.attach("feed", 8, select=[5, 50, 150]) as loader:
        assert sorted(id for batch in loader for id in batch["id"].tolist()) == [6, 51, 151]


def test_a_part_so_small_that_a_batch_spans_the_window_comes_through_slots_filled_in_part(serve: Any) -> None:
    """A slot has room for a whole block; where a worker fills it in part, the rest is given back."""

    class Wide(Squares):
        def __len__(self) -> int:
            return 2000

        def __getitem__(self, i: int) -> Any:
            return {"id": i, "square": np.full(3, i * i), "image": np.zeros(1000, np.uint8)}

    feeder = serve(DataLoader(Wide(), 20, num_workers=1), window=750_000)
    mine = list(range(5, 2000, 20))  # a sample of each block, 100 in a batch
    with penstock.attach("feed", 100, select=mine) as loader:
        for _ in range(2):
            assert sorted(epoch_of(loader)) == mine
    assert feeder.statistics().blocks_in_place > 20


@pytest.mark.parametrize(
    ("select", "why"),
    [
        ([], "select: no sample"),
        (np.zeros(N, np.bool_), f"select: none of {N} samples"),
        ([N, 1], f"feed 'feed': select: id {N} is not in a data set of {N} samples (0 to {N - 1})"),
        ([1, 10**9], f"select: id {10**9} is not in"),
        (np.ones(N + 1, np.bool_), f"select: some of {N + 1} samples, and the data set has {N}"),
        ([1, 1], "select: id 1 is selected more than once"),
        ("nothing.npy", "select: there is no file nothing.npy"),
    ],
)
def test_a_selection_that_the_data_does_not_have_is_one_error(serve: Any, select: Any, why: str) -> None:
    feeder = serve(arrays(), window="1MiB")
    with pytest.raises(BadSetting, match=re.escape(why)):
        penstock.attach("feed", select=select)
    eventually(lambda: not feeder.statistics().trainers)


@pytest.mark.parametrize(
    ("loader", "settings_", "why"),
    [
        (
            lambda: DataLoader(Squares(), 10),
            {"whole_batches": True},
            "gives whole batches: leave out whole_batches=True",
        ),
        (lambda: DataLoader(DrawingStream(N), 10), {}, "has a source that cannot leave samples out"),
        (lambda: DataLoader(Squares(), 10, sampler=WeightedRandomSampler([1.0] * N, N)), {}, "cannot leave"),
        (
            lambda: arrays(batch_size=9000),
            {},
            "has blocks of 9,000 rows: make its loader's batch_size at most 8,192",
        ),
    ],
)
def test_a_feed_that_cannot_leave_samples_out_refuses_in_words(serve, loader, settings_, why):
    serve(loader(), window="1MiB", **settings_)
    with pytest.raises(Refused, match=re.escape(why)):
        penstock.attach("feed", select=[1, 2])


@pytest.mark.parametrize(("saved", "read"), [([1, 2, 3], [1, 2, 4]), ([1, 2, 3], None), (None, [1, 2, 3])])
def test_a_state_goes_on_in_no_other_selection_and_begins_an_epoch_in_any(serve, saved, read):
    serve(arrays(), window="1MiB")
    with penstock.attach("feed", 2, select=saved) as loader:
        fresh = loader.state_dict()
        next(iter(loader))
        amid = loader.state_dict()
    with penstock.attach("feed", 2, select=read) as loader:
        with pytest.raises(BadSetting, match="select the same to go on, or begin the epoch anew"):
            loader.load_state_dict(amid)
        loader.load_state_dict(fresh)
        assert sorted(epoch_of(loader)) == (read or list(range(N)))


def test_a_state_s_place_in_the_feed_is_checked(serve: Any) -> None:
    serve(arrays(), window="1MiB")
    with penstock.attach("feed", 2, select=[1, 2, 3]) as loader:
        next(iter(loader))
        state = loader.state_dict()
        for at in (None, [0], [0, N], "0", [0, -1]):
            with pytest.raises(BadSetting, match="this state has at"):
                loader.load_state_dict({**state, "at": at})


def test_ranks_that_select_different_samples_are_told(serve: Any) -> None:
    feeder = serve(arrays(), window="1MiB")
    with ThreadPoolExecutor(1) as other, penstock.attach("feed", 5, shard=(0, 2), select=[1, 2, 3, 4]) as rank:
        waiting = other.submit(lambda: sorted(epoch_of(rank)))
        eventually(lambda: feeder.statistics().trainers[0].state == "waiting")
        with (
            penstock.attach("feed", 5, shard=(1, 2), select=[1, 2, 3, 5]) as differs,
            pytest.raises(Refused, match="waits with another selection: pass the same select= to all ranks"),
        ):
            list(differs)
        with penstock.attach("feed", 5, shard=(1, 2), select=[1, 2, 3, 4]) as same:
            assert sorted(epoch_of(same) + waiting.result()) == [1, 2, 3, 4]


def test_a_feeder_that_leaves_out_what_was_selected_is_found_out(serve: Any, monkeypatch: Any) -> None:
    feeder = serve(arrays(), window="1MiB")
    with penstock.attach("feed", 5, select=[3, 7, 11]) as loader:
        lie = Selection([3, 11]).bitmap(N)
        monkeypatch.setattr(feeder._state, "plan", lambda _, ids: lie.holds(ids))
        with pytest.raises(penstock.errors.ProtocolError, match="left out samples that this trainer selects"):
            list(loader)


def test_a_part_that_fills_no_batch_a_rank_is_refused_if_the_last_is_dropped(serve: Any) -> None:
    serve(arrays(), window="1MiB")
    with pytest.raises(BadSetting, match="3 samples fill no batch of 12, and drop_last leaves all of them out"):
        penstock.attach("feed", 12, select=[1, 2, 3], drop_last=True)
    with pytest.raises(BadSetting, match="30 samples fill no batch of 12 on each of 4 ranks"):
        penstock.attach("feed", 12, select=range(30), shard=(0, 4), drop_last=True)
    with penstock.attach("feed", 12, select=range(12), drop_last=True) as loader:
        assert sum(1 for _ in loader) == len(loader) == 1
        with pytest.raises(BadSetting, match="11 samples fill no batch"):
            loader.select(range(11))
        assert sum(1 for _ in loader) == 1
