"""Trainers that take part of a feed: each its samples once an epoch, the feed what they take together once."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.forked import eventually
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler

import penstock
from penstock import BadSetting, LoaderClosed, Refused, Selection
from penstock.packing.packing import pack

N = 203


class Squares(Dataset[Any]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        return {"id": i, "square": np.full(3, i * i), "name": str(i), "nothing": np.empty(0)}


def arrays(**options: Any) -> penstock.ArraySource:
    ids = np.arange(N)
    tree = {"id": ids, "square": np.repeat(ids[:, None] ** 2, 3, 1), "name": [str(i) for i in ids]}
    return penstock.ArraySource(tree, **{"batch_size": 10, "segments": 4, **options})


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


def right(batch: Any) -> list[int]:
    """The samples of a batch, each with what belongs to it."""
    ids = np.asarray(batch["id"])
    assert (np.asarray(batch["square"]) == ids[:, None] ** 2).all()
    assert list(batch.get("name", map(str, ids))) == list(map(str, ids))
    return ids.tolist()


def epoch_of(loader: penstock.Loader) -> list[int]:
    """The samples of a loop, whose ids the loader knows."""
    seen: list[int] = []
    batches = 0
    for batch in loader:
        seen += right(batch)
        batches += 1
        assert loader.ids is not None and loader.ids.tolist() == right(batch)
    assert batches == len(loader)
    return seen


def part(seed: int, share: float) -> list[int]:
    return np.flatnonzero(np.random.default_rng(seed).random(N) < share).tolist()


@pytest.mark.parametrize("borrow", [False, True])
@pytest.mark.parametrize("kind", ["arrays", "packed", "workers", "in order"])
def test_each_trainer_gets_its_part_and_the_feed_loads_what_they_take_together(
    serve: Any, tmp_path: Path, kind: str, borrow: bool
) -> None:
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


def test_a_part_beside_a_trainer_that_takes_all(serve: Any) -> None:
    feeder = serve(arrays(), window="1MiB", expect=2, epochs=2)

    def train(select: Any) -> list[list[int]]:
        with penstock.attach("feed", 16, select=select) as loader:
            return [sorted(epoch_of(loader)) for _ in range(2)]

    with ThreadPoolExecutor(2) as threads:
        some, every = threads.map(train, [part(3, 0.2), None])
    assert some == [part(3, 0.2)] * 2 and every == [list(range(N))] * 2
    assert feeder.statistics().samples == 2 * N


@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"pad": True}])
@pytest.mark.parametrize("size", [1, 9, 16])
def test_ranks_deal_a_part_evenly(serve: Any, size: int, options: dict[str, Any]) -> None:
    serve(arrays(), window="1MiB")
    mine = sorted(np.random.default_rng(4).permutation(N)[:90].tolist())

    def train(rank: int) -> tuple[list[int], int]:
        with penstock.attach("feed", size, shard=(rank, 3), select=mine, **options) as loader:
            list(loader)
            return epoch_of(loader), len(loader)

    with ThreadPoolExecutor(3) as threads:
        ranks = list(threads.map(train, range(3)))
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


@pytest.mark.parametrize("taken", [0, 1, 3])
@pytest.mark.parametrize("size", [8, 33])
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
                rest = other.submit(lambda: [list(reading), epoch_of(first)])
                assert sorted(epoch_of(late)) == part(8, 0.5)
                assert sorted(rest.result()[1]) == part(7, 0.5)
            assert late.state_dict()["start"][1] > 0, "the segment that had begun lacked its samples"
    assert feeder.statistics().reopened == 0


def test_a_trainer_changes_its_part_between_epochs_and_amid_one(serve: Any) -> None:
    feeder = serve(arrays(), window="1MiB")
    parts: list[Any] = [part(9, 0.3), part(10, 0.3), None, part(9, 0.3)]
    with penstock.attach("feed", 12, select=parts[0]) as loader:
        for i, chosen in enumerate(parts):
            loader.select(chosen)
            assert loader.samples == (N if chosen is None else len(chosen))
            assert loader.epoch == i
            assert sorted(epoch_of(loader)) == (chosen or list(range(N)))
        looping = iter(loader)
        next(looping)
        loader.select([1, 2, 3])
        with pytest.raises(LoaderClosed, match=r"select\(\) has replaced"):
            next(looping)
        assert sorted(epoch_of(loader)) == [1, 2, 3]
        assert loader.statistics().samples == sum(N if each is None else len(each) for each in parts) + 12 + 3
        eventually(lambda: len(feeder.statistics().trainers) == 1)


def test_a_change_never_gives_the_pass_again_that_was_just_read(serve: Any) -> None:
    """Even where that pass lies in the ring yet, for a slower trainer."""
    serve(arrays(), window="1MiB")
    with penstock.attach("feed", 10) as slow, penstock.attach("feed", 10) as loader:
        looking = iter(slow)
        next(looking)
        list(loader)
        for chosen in (part(0, 0.5), None):
            before = loader.state_dict()["start"]
            loader.select(chosen)
            first = iter(loader)
            next(first)
            assert loader.state_dict()["start"] >= before
            with ThreadPoolExecutor(1) as other:
                others = other.submit(list, looking)
                assert len([*first]) == len(loader) - 1
                others.result()
            looking = iter(slow)
            next(looking)


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


class Draws(Squares):
    def __getitem__(self, i: int) -> Any:
        return {"id": i, "draw": torch.rand((), dtype=torch.float64)}


def test_a_change_that_cannot_be_leaves_the_loader_as_it_was(serve: Any) -> None:
    feeder = serve(arrays(), window="1MiB")
    with penstock.attach("feed", 12, select=[1, 2, 3]) as loader:
        list(loader)
        for wrong in ([N], np.ones(N + 1, np.bool_), []):
            with pytest.raises(BadSetting):
                loader.select(wrong)
        assert sorted(epoch_of(loader)) == [1, 2, 3] and loader.epoch == 2
        eventually(lambda: len(feeder.statistics().trainers) == 1)


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


@pytest.mark.parametrize(
    ("select", "why"),
    [
        ([], "select: no sample"),
        (np.zeros(N, np.bool_), f"select: none of {N} samples"),
        ([N, 1], f"feed 'feed': select: id {N} is not in a data set of {N} samples (0 to {N - 1})"),
        ([1, 10**9], f"select: id {10**9} is not in"),
        (np.ones(N + 1, np.bool_), f"select: a mask of {N + 1} samples, and the data set has {N}"),
        ([1, 1], "select: id 1 is selected more than once"),
        ("nothing.npy", "select: there is no file nothing.npy"),
    ],
)
def test_a_selection_that_the_data_does_not_have_is_one_error(serve: Any, select: Any, why: str) -> None:
    feeder = serve(arrays(), window="1MiB")
    with pytest.raises(BadSetting, match=re.escape(why)):
        penstock.attach("feed", select=select)
    eventually(lambda: not feeder.statistics().trainers)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(N))


@pytest.mark.parametrize(
    ("loader", "settings_", "why"),
    [
        (
            lambda: DataLoader(Squares(), 10),
            {"whole_batches": True},
            "gives whole batches: leave out whole_batches=True",
        ),
        (lambda: DataLoader(Stream(), 10), {}, "has a source that cannot leave samples out"),
        (lambda: DataLoader(Squares(), 10, sampler=WeightedRandomSampler([1.0] * N, N)), {}, "cannot leave"),
        (
            lambda: arrays(batch_size=9000),
            {},
            "has blocks of 9,000 rows: make its loader's batch_size at most 8,192",
        ),
    ],
)
def test_a_feed_that_cannot_leave_samples_out_refuses_in_words(
    serve: Any, loader: Callable[[], Any], settings_: dict[str, Any], why: str
) -> None:
    serve(loader(), window="1MiB", **settings_)
    with pytest.raises(Refused, match=re.escape(why)):
        penstock.attach("feed", select=[1, 2])


@pytest.mark.parametrize(("saved", "read"), [([1, 2, 3], [1, 2, 4]), ([1, 2, 3], None), (None, [1, 2, 3])])
def test_a_state_goes_on_in_no_other_selection_and_begins_an_epoch_in_any(
    serve: Any, saved: Any, read: Any
) -> None:
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


def test_ranks_select_before_their_first_epoch_and_may_read_two_parts_at_once(serve: Any) -> None:
    serve(arrays(), window="1MiB")

    def train(rank: int) -> list[list[int]]:
        shard = rank, 2
        with (
            penstock.attach("feed", 5, shard=shard) as loader,
            penstock.attach("feed", 5, shard=shard, select=[7, 8]) as two,
        ):
            loader.select(None)  # as it is
            for chosen in ([1, 2, 3, 4], [5, 6, 7, 8]):
                loader.select(chosen)
            first = epoch_of(loader), epoch_of(two)
            loader.select([1, 2])
            return [*first, epoch_of(loader)]

    with ThreadPoolExecutor(2) as ranks:
        seen = [sorted([*one, *other]) for one, other in zip(*ranks.map(train, range(2)), strict=True)]
    assert seen == [[5, 6, 7, 8], [7, 8], [1, 2]]


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
        with pytest.raises(penstock.ProtocolError, match="left out samples that this trainer selects"):
            list(loader)


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
            return 4000

        def __getitem__(self, i: int) -> Any:
            return {"id": i, "square": np.full(3, i * i), "image": np.zeros(1000, np.uint8)}

    feeder = serve(DataLoader(Wide(), 20, num_workers=1), window=1_500_000)
    mine = list(range(5, 4000, 20))  # a sample of each block, 200 in a batch
    with penstock.attach("feed", 200, select=mine) as loader:
        for _ in range(2):
            assert sorted(epoch_of(loader)) == mine
    assert feeder.statistics().blocks_in_place > 20


def test_a_part_is_changed_between_the_epochs_of_a_feed_that_has_sent_them_all(serve: Any) -> None:
    feeder = serve(arrays(), window="1MiB", epochs=3, prefetch=100)
    with penstock.attach("feed", 10, select=part(1, 0.5)) as loader:
        list(loader)
        eventually(lambda: feeder.statistics().trainers[0].state == "finished")
        loader.select(part(2, 0.5))
        assert sorted(epoch_of(loader)) == sorted(epoch_of(loader)) == part(2, 0.5)
        with pytest.raises(penstock.FeedEnded):
            list(loader)


def test_who_selects_before_the_first_epoch_is_waited_for_still(serve: Any) -> None:
    feeder = serve(arrays(), window="1MiB", expect=2)

    def train(i: int) -> list[int]:
        with penstock.attach("feed", 10) as loader:
            loader.select(part(i, 0.5))
            return epoch_of(loader)

    with ThreadPoolExecutor(2) as threads:
        for i, seen in enumerate(threads.map(train, range(2))):
            assert sorted(seen) == part(i, 0.5)
    assert feeder.statistics().samples >= len({*part(0, 0.5), *part(1, 0.5)})


def test_views_that_are_kept_leave_no_room_for_another_part(serve: Any) -> None:
    serve(penstock.ArraySource({"x": np.zeros((1000, 1000), np.uint8)}, batch_size=10), window=100_000)
    with penstock.attach("feed", 10, borrow=True) as loader:
        kept = list(islice(loader, 7))
        with pytest.raises(penstock.WindowHeld, match="before it selects other samples"):
            loader.select([1, 2, 3])
        del kept[1:]
        loader.select([1, 2, 3])
        assert sum(len(batch["x"]) for batch in loader) == 3


@pytest.mark.usefixtures("forks_feeders")
def test_a_change_goes_on_where_the_others_are_when_the_feeder_has_died() -> None:
    with (
        penstock.share(arrays, "feed", 20, linger=5, window="1MiB") as one,
        penstock.share(arrays, "feed", 20, window="1MiB") as other,
    ):
        for _ in range(2):
            with ThreadPoolExecutor(2) as threads:
                list(threads.map(epoch_of, (one, other)))
        at = one.state_dict()["start"]
        os.kill(penstock.feeds()[0].pid, signal.SIGKILL)
        one.select([5, 50, 150])
        assert sorted(epoch_of(one)) == [5, 50, 150]
        assert one.state_dict()["start"] == [at[0] + 1, at[1]]


@pytest.mark.usefixtures("forks_feeders")
def test_share_takes_a_part_too() -> None:
    with penstock.share(arrays, "feed", 8, select=[5, 50, 150], linger=0.2) as loader:
        assert sorted(epoch_of(loader)) == [5, 50, 150]
        loader.select([6])
        assert epoch_of(loader) == [6]


SCRIPTS = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(["epoch", "epoch", "some", "resume", "change", "again"]),
            st.one_of(st.none(), st.tuples(st.integers(0, 99), st.sampled_from([0.02, 0.3, 0.5, 0.9]))),
            st.sampled_from([1, 7, 10, 33, 300]),
        ),
        min_size=1,
        max_size=5,
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(scripts=SCRIPTS, prefetch=st.sampled_from([None, 1, 3]), ahead=st.sampled_from(["64KiB", "1MiB"]))
def test_trainers_that_come_leave_change_and_resume_get_their_parts(
    scripts: list[Any], prefetch: int | None, ahead: str
) -> None:
    with (
        ThreadPoolExecutor(len(scripts) + 1) as threads,
        penstock.Feeder(arrays(), "scripts", prefetch=prefetch, window=ahead) as feeder,
    ):
        feeding = threads.submit(feeder.run)
        for done in [threads.submit(act, script) for script in scripts]:
            done.result(timeout=100)
        feeder.close()
        feeding.result()


def act(script: list[Any]) -> None:
    loader = None
    for what, chosen, size in script:
        mine = (
            list(range(N)) if chosen is None else [*part(*chosen), 5] if 5 not in part(*chosen) else part(*chosen)
        )
        select = None if chosen is None else mine
        if loader is None or what == "again":
            if loader is not None:
                loader.close()
            loader = penstock.attach("scripts", size, select=select)
        elif what == "change":
            loader.select(select)
        else:
            select = loader._options.select
            mine = list(range(N)) if select is None else select.ids.tolist()
        seen: list[int] = []
        if what in ("some", "resume"):
            seen = [id for batch in islice(loader, 2) for id in right(batch)]
        if what == "resume":
            state = loader.state_dict()
            loader.close()
            loader = penstock.attach("scripts", size, select=select)
            loader.load_state_dict(state)
        if what == "some" or (what == "resume" and not state["delivered"]):
            seen = []  # that epoch was given up, or over
        seen += [id for batch in loader for id in right(batch)]
        assert sorted(seen) == sorted(mine)
    assert loader is not None
    loader.close()
