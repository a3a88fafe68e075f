"""Blocks that are kept for several feeds: handed to each, made once while they fit, and given up in the end."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from penstock.contracts import Cursor
from penstock.sources.remote.retention import BlockRetention, Key

FEEDS = ("a", "b", "c")


def key(number: int) -> Key:
    return Key(Cursor(0, number), b"all")


def take(retention: BlockRetention, kept: set[Key], feed: str, number: int, oldest: int | None = None) -> bool:
    """A feed takes a block, as a conductor has it do; return whether that was made for it."""
    kept.difference_update(retention.asks(feed, key(number), key(number if oldest is None else oldest).at))
    new = key(number) not in kept
    if new:
        kept.add(key(number))
        kept.difference_update(retention.made(key(number), 10, {feed}))
    retention.handed(feed, key(number))
    return new


def hear(retention: BlockRetention, kept: set[Key], feed: str, now_s: float) -> None:
    kept.difference_update(retention.hear(feed, now_s))


def test_a_block_is_made_once_and_goes_when_each_feed_has_had_it() -> None:
    retention, kept = BlockRetention(1000), set[Key]()
    for feed in FEEDS:
        hear(retention, kept, feed, 0.0)
    assert [take(retention, kept, feed, 0) for feed in FEEDS] == [True, False, False]
    assert kept == {key(0)}, "whether the last has got it is known once it lacks only others"
    assert [take(retention, kept, feed, 1) for feed in FEEDS] == [True, False, False]
    assert kept == {key(1)}
    assert retention.counts.made == 2 and retention.counts.handed == 6


def test_what_a_slow_feed_has_not_had_goes_when_there_is_too_much_and_is_made_again() -> None:
    retention, kept = BlockRetention(50), set[Key]()
    for feed in ("fast", "slow"):
        hear(retention, kept, feed, 0.0)
    assert all(take(retention, kept, "fast", number) for number in range(10))
    assert len(kept) == 5
    assert [take(retention, kept, "slow", number) for number in range(10)].count(True) == 5
    assert retention.counts.again == 5


def test_a_feed_that_is_not_heard_of_is_waited_for_no_more() -> None:
    retention, kept = BlockRetention(1000), set[Key]()
    for feed in ("alive", "dead"):
        hear(retention, kept, feed, 0.0)
    take(retention, kept, "alive", 0)
    assert kept
    hear(retention, kept, "alive", 6.0)
    take(retention, kept, "alive", 1)
    assert kept == {key(1)}
    assert retention.frontier == Cursor(0, 1)


def test_a_feed_that_began_further_on_needs_nothing_before() -> None:
    retention, kept = BlockRetention(1000), set[Key]()
    for feed in ("old", "new"):
        hear(retention, kept, feed, 0.0)
    take(retention, kept, "new", 5)
    take(retention, kept, "old", 3)
    take(retention, kept, "old", 4)
    assert kept == {key(4), key(5)}


@settings(max_examples=examples(200))
@given(
    st.lists(st.tuples(st.sampled_from(FEEDS), st.sampled_from(["takes", "is heard of"])), max_size=80),
    st.integers(1, 100),
)
def test_whatever_comes_what_is_kept_fits_and_is_what_the_conductor_keeps(history: Any, most: int) -> None:
    retention, kept, now_s = BlockRetention(most), set[Key](), 0.0
    at = dict.fromkeys(FEEDS, 0)
    made = 0
    for feed, does in history:
        now_s += 0.5
        hear(retention, kept, feed, now_s)
        if does == "takes":
            made += take(retention, kept, feed, at[feed])
            at[feed] += 1
        assert len(kept) <= max(1, most // 10)
    assert retention.counts.made == made
    assert retention.counts.handed == sum(at.values())
    assert made - retention.counts.again == len({number for count in at.values() for number in range(count)})


def test_what_a_feed_asks_for_out_of_turn_is_made_once() -> None:
    retention, kept = BlockRetention(1000), set[Key]()
    for feed in ("a", "b"):
        hear(retention, kept, feed, 0.0)
    assert [take(retention, kept, "a", number) for number in range(4)] == [True] * 4
    assert [take(retention, kept, "b", number, oldest=0) for number in (2, 3, 0, 1)] == [False] * 4
    assert take(retention, kept, "b", 4)
    assert not take(retention, kept, "a", 4)
    assert kept == {key(4)}
