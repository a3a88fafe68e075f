"""Trainers that are themselves data-parallel: one epoch for all, and a word to who forgets to say."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch.distributed

import penstock
from penstock.contracts import Cursor
from penstock.feed.feeder.blocks import FeedMember, PublishedBlock
from penstock.feed.feeder.feed_state import FeedState
from penstock.memory.room import Room
from penstock.memory.slots import Placement
from penstock.tree.layout import Constant


def state_of_two(epochs: int | None = None) -> FeedState:
    state = FeedState(Room(10_000), 100, (0, 50), epochs)
    for rank in (0, 1):
        state.join(FeedMember(rank, rank, 2, "a"))
    return state


def test_a_rank_that_was_told_by_a_feeder_that_died_takes_along_the_rank_that_was_not():
    """It died between its two answers: rank 0 goes on from the epoch's start, rank 1 knows of none."""
    for first in (0, 1):
        state = state_of_two()
        starts = {
            0: lambda r=state: r.start(0, Cursor(3, 50), 0, Cursor(3, 50)),
            1: lambda r=state: r.start(1, None, 0, Cursor(0, 0)),
        }
        begun = [member.id for id in (first, 1 - first) for member in starts[id]()]
        assert sorted(begun) == [0, 1]
        assert {member.next for member in state.members.values()} == {Cursor(3, 50)}


def test_a_rank_that_is_behind_the_others_begins_where_their_epoch_began():
    state = state_of_two()
    state.start(0, Cursor(3, 80), 0, Cursor(3, 50))
    (member,) = state.start(1, None, 0, Cursor(0, 0))
    assert member.next == Cursor(3, 50)


def test_a_rank_that_was_sent_all_its_epochs_still_says_where_they_began():
    state = state_of_two(epochs=1)
    state.start(0, Cursor(0, 0), 0, Cursor(0, 0))
    offset = state.room.reserve(100)
    assert offset is not None
    state.publish(PublishedBlock(Cursor(0, 0), 100, offset, Placement(Constant(None), (), (), 100)))
    assert state.members[0].finished
    (member,) = state.start(1, None, 0, Cursor(0, 0))
    assert member.next == Cursor(0, 0)


def test_a_rank_that_is_there_twice_does_not_stand_for_another():
    """It was restarted, and its first connection is not heard to have ended yet."""
    state = state_of_two()
    state.join(FeedMember(2, 0, 2, "a"))
    assert state.start(0, None, 0, Cursor(0, 0)) == []
    assert state.start(2, None, 0, Cursor(0, 0)) == []
    assert [member.id for member in state.start(1, None, 0, Cursor(0, 0))] == [0, 1, 2]


def test_a_rank_in_another_epoch_is_not_waited_with():
    state = state_of_two()
    state.start(0, Cursor(3, 80), 2, Cursor(3, 50))
    assert state.start(1, None, 0, Cursor(0, 0)) == []
    assert state.members[1].state == "waiting"


@pytest.fixture
def two_ranks(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)


def test_one_of_several_workers_that_names_no_shard_is_warned(serve, monkeypatch):
    """Each worker of a DataLoader that attaches by itself gets every sample."""
    serve(penstock.ArraySource(np.arange(100)))
    for workers in (1, 2):
        info = SimpleNamespace(id=1, num_workers=workers)
        monkeypatch.setattr("torch.utils.data.get_worker_info", lambda info=info: info)
        with penstock.attach("feed", 10) as loader, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            iter(loader)
        told = [str(each.message) for each in caught if "Pass shard=(1, 2)" in str(each.message)]
        assert len(told) == workers - 1


def test_one_of_several_ranks_that_names_no_shard_is_warned(serve, two_ranks):
    serve(penstock.ArraySource(np.arange(100)))
    with penstock.attach("feed", 10) as loader, pytest.warns(UserWarning, match=r"Pass shard=\(1, 2\)"):
        iter(loader)


@pytest.mark.parametrize("shard", [(0, 1), (1, 2)])
def test_one_that_names_its_shard_is_not(serve, two_ranks, shard):
    serve(penstock.ArraySource(np.arange(100)))
    with penstock.attach("feed", 10, shard=shard) as loader, warnings.catch_warnings():
        warnings.simplefilter("error")
        iter(loader)
