"""When a feed begins, how far it runs ahead of its trainers, and whom waiting for room is put down to."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.feed.reading import ids_of
from tests.forked import eventually
from torch.utils.data import DataLoader, Dataset

import penstock
from penstock.contracts import Cursor
from penstock.feed.feeder import pace
from penstock.feed.feeder.blocks import FeedMember
from penstock.feed.feeder.feed_state import FeedState
from penstock.feed.feeder.pace import Pace
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


def read_epoch() -> None:
    with penstock.attach("feed", 16) as loader:
        assert sorted(ids_of(loader)) == list(range(SAMPLES))


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
    with ThreadPoolExecutor(3) as threads:
        readers = [threads.submit(read_epoch) for _ in range(2)]
        eventually(lambda: told(feeder) == [("waiting", "1 more trainer")] * 2)
        assert feeder.statistics().waits_for == "expected trainers"
        assert feeder.statistics().blocks == 0
        for reader in [*readers, threads.submit(read_epoch)]:
            reader.result()
    # The last may ask for one block of the next cycle, which is kept ready, but nobody for another pass.
    assert SAMPLES <= feeder.statistics().samples < 2 * SAMPLES
    assert feeder.statistics().reopened == 0


def test_one_that_ends_lets_the_others_begin(serve):
    feeder = serve(rows(), expect=3)
    with penstock.attach("feed") as gone, ThreadPoolExecutor(2) as beside:
        waiting = beside.submit(lambda: next(iter(gone)))
        reader = beside.submit(read_epoch)
        eventually(lambda: told(feeder) == [("waiting", "1 more trainer")] * 2)
        gone._rows.connection.close()  # as if it had died
        reader.result()
        assert isinstance(waiting.exception(), penstock.PenstockError)


def test_nobody_waits_for_ever_for_trainers_that_do_not_come(serve, monkeypatch):
    monkeypatch.setattr(pace, "GATHER_S", 0.2)
    serve(rows(), expect=100)
    read_epoch()


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
        with pytest.raises(penstock.errors.BadSetting, match="expect="):
            penstock.share(rows, "feed", expect=nonsense)  # type: ignore[arg-type]


CYCLE, ROWS = 200, 10


def arrays(width: int = 1) -> penstock.ArraySource:
    ids = np.arange(CYCLE)
    return penstock.ArraySource({"id": ids, "row": np.repeat(ids, width).reshape(-1, width)}, batch_size=ROWS)


@pytest.mark.parametrize("batch_size", [1, 35, 1000])
def test_with_one_batch_ready_every_batch_size_gets_its_epochs(serve: Any, batch_size: int) -> None:
    serve(arrays(), prefetch=1)
    with penstock.attach("feed", batch_size) as loader:
        for _ in range(2):
            assert sorted(ids_of(loader)) == list(range(CYCLE))


def test_who_keeps_every_view_gets_its_epoch_too(serve: Any) -> None:
    serve(arrays(), prefetch=1)
    with penstock.attach("feed", borrow=True) as loader:
        kept = list(loader)
        assert sorted(ids_of(kept)) == list(range(CYCLE))
        del kept


@pytest.mark.parametrize(
    ("width", "options", "batches", "untold"),
    [(1, {"prefetch": 3}, 3, 1), (1, {}, CYCLE // ROWS, 5), (100, {}, 2, 2)],
    ids=["three batches", "at most a cycle of small ones", "two large ones"],
)
def test_a_feed_is_no_further_ahead_of_its_trainer(serve, monkeypatch, width, options, batches, untold):
    """It may not have told yet that it has released ``untold`` blocks, a quarter of those kept ready."""
    monkeypatch.setattr(pace, "_READY_BYTES", 8 << 10)  # else blocks of 8 MB are large
    feeder = serve(arrays(width), **options)
    with penstock.attach("feed") as loader:
        seen = 0
        for _ in range(2):
            for batch in loader:
                seen += len(batch["id"])
                assert feeder.statistics().samples <= seen + (batches + untold) * ROWS


@pytest.mark.parametrize(("block_s", "most"), [(0.0, 40), (0.001, 40), (0.1, 20), (0.5, 4), (60.0, 2)])
def test_no_more_is_made_ahead_than_takes_two_seconds_but_for_two_blocks(block_s: float, most: int) -> None:
    feed = state(1)
    begin(feed, 1)
    feed.batches, feed.block_s = 40, block_s
    for unread in range(41):
        feed.members[1].unread = unread
        assert feed.has_enough(10, 100) == (unread >= most)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_trainer_that_ends_leaves_no_cycle_of_slow_rows_behind(serve, monkeypatch, workers, tmp_path):
    monkeypatch.setattr(pace, "_MOST_AHEAD_S", 0.2)
    made = tmp_path / "made"

    class Slow(Dataset[dict[str, int]]):
        def __len__(self) -> int:
            return CYCLE

        def __getitem__(self, i: int) -> dict[str, int]:
            with made.open("ab") as file:
                file.write(b".")
            time.sleep(0.01)
            return {"id": i}

    feeder = serve(DataLoader(Slow(), ROWS, num_workers=workers))
    with penstock.attach("feed") as loader:
        assert len(ids_of(loader)) == CYCLE
        eventually(lambda: feeder.statistics().waits_for == "trainers")
        assert made.stat().st_size <= CYCLE + (2 + 2 + 2 * workers + 2) * ROWS  # it may not know the last two


def test_a_stream_s_feed_is_no_further_ahead_than_a_cycle_once_it_knows_how_long_that_is(serve: Any) -> None:
    class Stream:
        def __iter__(self) -> Iterator[Any]:
            return ({"id": np.arange(i, i + ROWS)} for i in range(0, CYCLE, ROWS))

    feeder = serve(Stream())
    with penstock.attach("feed") as loader:
        seen = len(ids_of(loader))
        for batch in loader:
            seen += len(batch["id"])
            time.sleep(0.002)  # it has time to run ahead
            assert feeder.statistics().samples <= seen + CYCLE + ROWS


@pytest.mark.usefixtures("stays")
def test_who_waits_for_the_next_cycle_is_not_kept_waiting_by_who_does_not_read(serve: Any) -> None:
    feeder = serve(arrays(1600), segments=1, prefetch=2, window="8MiB")
    with penstock.attach("feed") as slow, penstock.attach("feed") as late:
        batches = iter(slow)
        first = next(batches)["id"].tolist()
        # As nothing stays, the cycle's beginning is in the window no more once the feeder has heard of that batch.
        eventually(lambda: feeder.statistics().newcomer_waits_samples)
        waits = iter(late)
        other = next(waits)["id"].tolist()
        assert late.state_dict()["start"] == [1, 0]
        assert sorted(other + ids_of(waits)) == list(range(CYCLE))
        assert sorted(first + ids_of(batches)) == list(range(CYCLE))


def test_nothing_is_read_for_a_trainer_that_leaves(serve: Any) -> None:
    feeder = serve(arrays(), prefetch=20)
    for _ in range(30):
        before = feeder.statistics().samples
        with penstock.attach("feed") as loader:
            next(iter(loader))
        while feeder.statistics().trainers:
            time.sleep(0.001)
        assert feeder.statistics().samples - before <= (1 + 20) * ROWS


def test_a_trainer_that_loads_the_state_it_is_in_goes_on_with_what_it_has(serve: Any) -> None:
    feeder = serve(arrays(), segments=1)
    with penstock.attach("feed") as loader:
        batches = iter(loader)
        seen = [i for _ in range(3) for i in next(batches)["id"].tolist()]
        loader.load_state_dict(loader.state_dict())
        assert sorted(seen + ids_of(loader)) == list(range(CYCLE))
        assert feeder.statistics().reopened == 0


@settings(max_examples=examples(50))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["blocked", "moving", "forget"]),
            st.one_of(st.none(), st.integers(0, 3)),
            st.integers(0, 100),
        )
    )
)
def test_every_second_of_any_history_is_put_down_once(events):
    pace, now_s = Pace(), 0.0
    culprit: int | None = None
    since_s = 0.0
    totals = dict.fromkeys(range(4), 0.0)
    for event, member, passed_s in events:
        now_s += passed_s
        if culprit is not None:
            totals[culprit] += passed_s
        if event == "blocked":
            pace.blocked(member, now_s)
            culprit, since_s = member, (now_s if member != culprit else since_s)
        elif event == "moving":
            pace.moving(now_s)
            culprit = None
        elif member is not None:
            pace.forget(member, now_s)
            totals[member] = 0.0
            culprit = None if culprit == member else culprit
        assert pace.culprit == culprit
        assert pace.current_s(now_s) == (now_s - since_s if culprit is not None else 0.0)
        assert all(math.isclose(pace.total_s(m, now_s), total) for m, total in totals.items())
