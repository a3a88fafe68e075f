"""A feed that expects trainers begins with all of them, or when one has ended, or has waited for long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tests.forked import eventually

import penstock
from penstock.contracts import Cursor
from penstock.feed.feeder import pace
from penstock.feed.feeder.blocks import FeedMember
from penstock.feed.feeder.feed_state import FeedState
from penstock.memory.room import Room

SAMPLES = 400


def rows() -> penstock.ArraySource:
    return penstock.ArraySource({"id": np.arange(SAMPLES)}, batch_size=10, segments=1)


def state(expect: int) -> FeedState:
    return FeedState(Room(1 << 20), 100, (0, 50), None, expect=expect)


def begin(feed: FeedState, *ids: int, world: int = 1, group: str = "") -> None:
    for rank, id in enumerate(ids):
        feed.join(FeedMember(id, rank if world > 1 else 0, world, group))
        feed.start(id, None, 0, Cursor(0, 0))


class Reader:
    """A trainer in a thread that reads one epoch."""

    def __init__(self, **options: Any) -> None:
        self.loader = penstock.attach("feed", 16, **options)
        self.ids: list[int] = []
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self) -> None:
        self.ids = [int(i) for batch in self.loader for i in batch["id"]]

    def has_all(self) -> None:
        self.thread.join()
        self.loader.close()
        assert sorted(self.ids) == list(range(SAMPLES))


def told(feeder: penstock.Feeder) -> list[tuple[str, str]]:
    return [(trainer.state, trainer.waits_for) for trainer in feeder.statistics().trainers]


def test_nothing_is_needed_before_as_many_read_as_are_expected():
    feed = state(3)
    begin(feed, 1, 2)
    feed.join(FeedMember(3))  # attached is not enough: it might come too late for the first blocks
    assert feed.needed() is None
    feed.start(3, None, 0, Cursor(0, 0))
    assert feed.needed() == (0, 0)
    assert {member.next for member in feed.members.values()} == {(0, 0)}


def test_the_ranks_of_a_run_are_one_trainer():
    feed = state(2)
    begin(feed, 1, 2, world=2, group="one")
    assert feed.needed() is None
    begin(feed, 3, 4, world=2, group="other")
    assert feed.needed() == (0, 0)


@pytest.mark.parametrize("leave", [lambda feed: feed.leave(2), lambda feed: feed.rest(2, [])])
def test_the_first_cycle_begins_when_one_of_them_has_ended(leave: Callable[[FeedState], None]):
    feed = state(4)
    begin(feed, 1, 2)
    leave(feed)
    assert feed.needed() == (0, 0)


def test_trainers_of_a_feeder_that_died_do_not_wait_again():
    feed = state(4)
    feed.join(FeedMember(1))
    feed.start(1, Cursor(2, 70), 1, Cursor(1, 50))
    assert feed.needed() == (2, 70)


def test_trainers_that_are_expected_read_one_pass_together(serve):
    feeder = serve(rows(), expect=3, prefetch=1)
    readers = [Reader(), Reader()]
    eventually(lambda: told(feeder) == [("waiting", "1 more trainer")] * 2)
    assert feeder.statistics().waits_for == "expected trainers"
    assert feeder.statistics().blocks == 0
    readers.append(Reader())
    for reader in readers:
        reader.has_all()
    # The last may ask for one block of the next cycle, which is kept ready, but nobody for another pass.
    assert SAMPLES <= feeder.statistics().samples < 2 * SAMPLES
    assert feeder.statistics().reopened == 0


def test_one_that_ends_lets_the_others_begin(serve):
    feeder = serve(rows(), expect=3)
    with penstock.attach("feed") as gone, ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(lambda: next(iter(gone)))
        reader = Reader()
        eventually(lambda: told(feeder) == [("waiting", "1 more trainer")] * 2)
        gone._rows.connection.close()  # as if it had died
        reader.has_all()
        assert isinstance(waiting.exception(), penstock.PenstockError)


def test_nobody_waits_for_ever_for_trainers_that_do_not_come(serve, monkeypatch):
    monkeypatch.setattr(pace, "GATHER_S", 0.2)
    serve(rows(), expect=100)
    Reader().has_all()


def test_two_runs_that_begin_with_different_feeds_do_not_expect_each_other_for_ten_seconds():
    gathering = pace.Patience(None, 0.0)
    gathering.gathers(100.0)
    assert not gathering.ends_gathering(105.0) and gathering.ends_gathering(109.5)


@pytest.mark.usefixtures("forks_feeders")
def test_who_comes_later_is_not_waited_for_and_may_expect_another_number(serve):
    make = rows
    with penstock.share(make, "feed", expect=1, linger=0.5) as first:
        assert len(list(first)) == SAMPLES / 10
        with penstock.share(make, "feed", expect=7) as second:
            assert len(list(second)) == SAMPLES / 10


@pytest.mark.usefixtures("forks_feeders")
def test_a_feed_expects_a_whole_number_of_trainers():
    for nonsense in (0, -1, 2.5, True, "3"):
        with pytest.raises(penstock.BadSetting, match="expect="):
            penstock.share(rows, "feed", expect=nonsense)  # type: ignore[arg-type]
