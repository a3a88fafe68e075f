"""A selection that a feed, its data or a state cannot have is refused in words; a wrong feeder is found out."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tests.feed.squares import N, Squares, arrays, epoch_of
from tests.forked import eventually
from tests.sources.drawing import DrawingStream
from torch.utils.data import DataLoader, WeightedRandomSampler

import penstock
from penstock import BadSetting, Refused, Selection


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
