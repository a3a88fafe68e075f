"""Waiting for room is put down to whoever holds the most of it, to the second."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from penstock.feed.feeder.pace import Pace


def test_time_goes_to_the_culprit_of_the_moment():
    pace = Pace()
    pace.blocked(1, 10.0)
    pace.blocked(1, 12.0)
    assert (pace.culprit, pace.current_s(13.0), pace.total_s(1, 13.0)) == (1, 3.0, 3.0)
    pace.blocked(2, 14.0)
    assert (pace.culprit, pace.current_s(15.0)) == (2, 1.0)
    pace.moving(16.0)
    assert (pace.culprit, pace.current_s(20.0)) == (None, 0.0)
    assert (pace.total_s(1, 20.0), pace.total_s(2, 20.0)) == (4.0, 2.0)


def test_nobody_to_blame_is_no_ones_time():
    pace = Pace()
    pace.blocked(None, 1.0)
    assert pace.culprit is None
    assert pace.current_s(9.0) == 0.0
    pace.blocked(1, 10.0)
    pace.blocked(None, 11.0)
    assert pace.total_s(1, 20.0) == 1.0


def test_who_has_left_is_forgotten():
    pace = Pace()
    pace.blocked(1, 0.0)
    pace.forget(1, 5.0)
    assert pace.culprit is None
    assert pace.total_s(1, 9.0) == 0.0
    pace.blocked(2, 6.0)
    pace.forget(1, 7.0)
    assert pace.current_s(8.0) == 2.0


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
