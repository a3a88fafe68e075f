"""Who leaves a feed, and who comes back: the policy alone, in modelled worlds and in histories that lie."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.feed.feeder.pace_worlds import Simulation, World, best

from penstock.feed.feeder import parting
from penstock.feed.feeder.seen import FeedSeen, KinSeen, MemberSeen

TABLE = {"nbytes": 400, "sample_s": 0.00004, "train_s": 0.00001, "epoch": 5_000_000, "cores": 2}
TOKENS = {"nbytes": 4096, "sample_s": 0.00002, "epoch": 2_000_000}
SEARCH = [460, 795, 582, 885, 921, 337, 307, 1345]
EQUAL = [600] * 4
LATER: dict[str, Any] = {"begins": lambda run: 70.0 * run, "epoch": 150_000, "validates_s": 30}
TEN: dict[str, Any] = {"rates": [2000, 1000, 500, 200], "cores": 16}
WORLDS: dict[
    str, tuple[World, float, float]
] = {  # and what the worst run, and the mean one, reach of the best division
    "equal": (World(EQUAL), 0.98, 0.98),
    "1:1.2": (World([1000, 950, 900, 830]), 0.94, 0.97),
    "1:2": (World([1000, 500]), 0.97, 0.98),
    "asynchronous": (World([1000, 500], seen_busy=0.25), 0.97, 0.98),
    "asynchronous 1:1.05": (World([1000, 950], seen_busy=0.25), 0.98, 0.98),
    "3.5 cores": (World([1000, 500], cores=3.5), 0.98, 0.98),
    "2.5 cores": (World([1000, 500], cores=2.5), 0.98, 0.98),
    "1:10": (World(**TEN), 0.96, 0.97),
    "search, 64 cores": (World(SEARCH, cores=64), 0.96, 0.97),
    "search, 16 cores": (World(SEARCH, cores=16), 0.96, 0.97),
    "search, 8 cores": (World(SEARCH, cores=8), 0.91, 0.97),
    "search, 2 cores": (World(SEARCH, cores=2), 0.98, 0.98),
    "validation": (World(EQUAL, **LATER), 0.95, 0.96),
    "validation in mid-epoch": (World(EQUAL, **LATER, validates_each=100_000), 0.98, 0.98),
    "warm-up, finder, end": (
        World(
            [1000, 900, 300, 950],
            factor=lambda run, now: (0.4, 0.2, 1, 1)[run] if now < (180, 120, 0, 0)[run] else 1,
            ends=lambda run: 600_000 if run == 2 else float("inf"),
            begins=lambda run: 600.0 * (run == 3),
        ),
        0.95,
        0.97,
    ),
    "debugger": (World([800, 780, 750], factor=lambda run, now: not (run == 2 and 900 < now < 1500)), 0.97, 0.97),
    "stopped": (World(EQUAL, factor=lambda run, now: not (run == 3 and 120 < now < 300)), 0.97, 0.97),
    "tokens": (World([3000, 1500, 600], **TOKENS), 0.98, 0.98),
    "table": (World([20000, 10000, 5000], **TABLE), 0.98, 0.98),
    "small data": (World([2000, 1000, 500], epoch=20_000, cores=16), 0.97, 0.97),
}
LIMITS: dict[str, World] = {  # of all feeds together, which nobody sees
    "520": World([1000, 500], limit=lambda now: 520),
    "700": World([1000, 500], limit=lambda now: 700),
    "1000": World([1000, 500], limit=lambda now: 1000),
    "520 for four": World([1000, 900, 700, 500], limit=lambda now: 520),
    "280 at 1:10": World(**TEN, limit=lambda now: 280),
    "520 but in each fifth minute": World([1000, 500], limit=lambda now: 4000 if now % 300 < 60 else 520),
    "520 from the fourth minute on": World([1000, 500], limit=lambda now: 4000 if now < 240 else 520),
}
FIRST_S = 90.0
"""Until then feeds are measured and started: what a run has passed is counted from here on."""
SHORT_S = 600.0
SHORT_LOSS = 0.03  # in so short a time each split costs more of it
WHOLE_S = [SHORT_S, pytest.param(3600.0, marks=pytest.mark.soak)]


@pytest.mark.whole
@pytest.mark.parametrize("seconds", WHOLE_S)
@pytest.mark.parametrize("name", WORLDS)
def test_each_run_goes_nearly_as_fast_as_by_the_best_division(name: str, seconds: float) -> None:
    world, worst, mean = WORLDS[name]
    simulation, loss = Simulation(world), SHORT_LOSS * (seconds == SHORT_S)
    first = simulation.run(FIRST_S)
    four = first, simulation.run(seconds), best(world, FIRST_S), best(world, seconds)
    reached = [(b - a) / (d - c) for a, b, c, d in zip(*four, strict=True) if d > c]
    assert min(reached) >= worst - loss
    assert sum(reached) / len(reached) >= mean - loss


@pytest.mark.whole
@pytest.mark.parametrize("seconds", WHOLE_S)
@pytest.mark.parametrize("name", LIMITS)
def test_where_something_that_nobody_sees_is_short_each_run_goes_as_fast_as_on_one_feed(
    name: str, seconds: float
) -> None:
    got = Simulation(LIMITS[name]).run(seconds)
    on_one = Simulation(LIMITS[name], paced=False).run(seconds)
    assert min(a / b for a, b in zip(got, on_one, strict=True)) >= 0.98


@pytest.mark.parametrize(("hindered", "returns"), [(0.75, True), (0.94, False)])
def test_who_left_comes_back_where_those_who_stayed_train_slower_since(hindered: float, returns: bool) -> None:
    world = World([1000, 500], hindered=hindered)
    simulation, one = Simulation(world), Simulation(world, paced=False).run(SHORT_S)
    got = simulation.run(SHORT_S)
    back = [now for now, _, each in simulation.decided if isinstance(each, parting.Return)]
    left = [now for now, _, each in simulation.decided if isinstance(each, parting.Leave)]
    assert left
    assert all(after - before <= 20 for before, after in zip(left, back, strict=True)) if returns else not back
    assert min(a / b for a, b in zip(got, one, strict=True)) >= (0.97 if returns else hindered - 0.01)


RATES = st.lists(st.sampled_from([200.0, 500.0, 550.0, 600.0, 1000.0, 3000.0]), min_size=1, max_size=5)


@settings(max_examples=examples(10))
@given(
    rates=RATES,
    cores=st.sampled_from([1.0, 2.5, 8.0, 64.0]),
    epoch=st.sampled_from([2_000, 50_000]),
    limits=st.lists(st.sampled_from([300.0, 600.0, 1e9]), min_size=1, max_size=3),
    seen_busy=st.sampled_from([0.2, 1.0]),
    pauses=st.lists(st.tuples(st.integers(0, 4), st.floats(0, 900), st.floats(1, 120)), max_size=3),
    begins=st.lists(st.sampled_from([0.0, 30.0, 200.0]), min_size=5, max_size=5),
    ends=st.lists(st.sampled_from([1e18, 100_000.0]), min_size=5, max_size=5),
)
def test_no_history_makes_a_feed_part_more_often_than_its_patience_says(
    rates: list[float],
    cores: float,
    epoch: int,
    limits: list[float],
    seen_busy: float,
    pauses: list[tuple[int, float, float]],
    begins: list[float],
    ends: list[float],
) -> None:
    def factor(run: int, now: float) -> float:
        return float(not any(run == paused and at < now < at + long for paused, at, long in pauses))

    simulation = Simulation(
        World(
            rates,
            cores=cores,
            epoch=epoch,
            limit=lambda now: limits[int(now / 200) % len(limits)],
            seen_busy=seen_busy,
            factor=factor,
            begins=lambda run: begins[run] if any(not each for each in begins[: len(rates)]) else 0.0,
            ends=lambda run: ends[run],
        ),
        seed=random.Random(str(rates)).randrange(100),
    )
    simulation.run(900)
    starts = Counter(name for _, name, each in simulation.decided if isinstance(each, parting.StartFeed))
    assert max(starts.values(), default=0) <= 6
    left = {each.to for _, _, each in simulation.decided if isinstance(each, parting.Leave)}
    given_up = {each.to for _, _, each in simulation.decided if isinstance(each, parting.GiveUp)}
    assert not left & given_up


def seen(members: list[MemberSeen], **totals: float) -> FeedSeen:
    zero = {"published": 0.0, "blocks": 0.0, "room_s": 0.0, "idle_s": 0.0, "front": 0.0, "room": 1e9}
    return FeedSeen(**{**zero, "cpu_s": 0.0, "idle_cores": 8.0, **totals}, members=members)


def one_of_two(now: float, *, fast: bool, moves: bool = True, starts: bool = True) -> MemberSeen:
    """A trainer of 1,000 or 500 samples/s, where the feed has made 500 of them each second."""
    waited_s = now / 2 if fast else 0.0
    return MemberSeen(int(fast), now * 500, waited_s, now * 500, 1e6, not fast, moves, starts)


def held_back(now: float, **fast: bool) -> FeedSeen:
    members = [one_of_two(now, fast=True, **fast), one_of_two(now, fast=False)]
    return seen(members, published=now * 500, blocks=now * 50, room_s=now / 2, front=now * 500, cpu_s=now * 1.5)


def asked(policy: parting.Parting, until: int, **fast: bool) -> list[tuple[int, parting.Decision]]:
    return [(now, each) for now in range(until) for each in policy.look(float(now), held_back(now, **fast), {})]


def test_the_fast_one_is_asked_to_start_a_feed_when_all_are_measured_and_it_has_held_for_ten_seconds() -> None:
    decided = asked(parting.Parting(lambda: "new", 0.0), 60)
    assert decided == [(40, parting.StartFeed("new", (1,)))]


@pytest.mark.parametrize("fast", [{"moves": False, "starts": True}, {"moves": True, "starts": False}], ids=str)
def test_where_the_fast_one_cannot_leave_the_slow_one_does_and_where_it_can_start_none_nobody(
    fast: dict[str, bool],
) -> None:
    decided = asked(parting.Parting(lambda: "new", 0.0), 60, **fast)
    assert decided == ([] if fast["moves"] else [(40, parting.StartFeed("new", (0,)))])


def trial(
    made: float, *, old: float = 500.0, waits: float = 1.0, slow_goes_on: bool = True, slow_is_there: bool = True
) -> list[parting.Decision]:
    """What a trial comes to where feeds make so many samples/s, and the old one waits for room so long."""
    policy, names = parting.Parting(lambda: "new", 0.0), list[parting.Decision]()
    asked(policy, 41)
    for step in range(1, 60):
        took_s = step / 4
        feed = held_back(40 + took_s)
        feed = feed._replace(room_s=20 + waits * took_s, published=20_000 + old * took_s)
        if not slow_goes_on:
            feed = feed._replace(members=[feed.members[0], feed.members[1]._replace(passed=20_000.0)])
        feed = feed._replace(members=feed.members[: 1 + slow_is_there])
        there = KinSeen(False, made * took_s, 100, 0, False, None, 0, 0, took_s)
        names += policy.look(40 + took_s, feed, {"new": there})
        if names:
            return names
    raise AssertionError("it has no end")


@pytest.mark.parametrize(
    "how", [{}, {"waits": 0.0, "old": 480}, {"waits": 0.1, "old": 400}, {"slow_is_there": False}], ids=str
)
def test_a_trial_passes_where_the_new_feed_makes_more_and_the_old_one_is_unhindered(how: Any) -> None:
    assert trial(600, **how) == [parting.Leave("new", (1,), False)]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"made": 520}, "it made 520 samples/s, and this feed 500"),
        ({"made": 900, "waits": 0.0, "old": 400}, "this feed was hindered by it"),
        ({"made": 900, "waits": 0.04, "old": 460}, "this feed was hindered by it"),
        ({"made": 900, "slow_goes_on": False}, "this feed was hindered by it"),
    ],
    ids=str,
)
def test_a_trial_fails_and_nobody_has_moved(how: Any, why: str) -> None:
    assert trial(**how) == [parting.GiveUp("new", why)]
