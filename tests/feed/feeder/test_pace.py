"""Waiting for room is put down to whoever holds the most of it, to the second."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from penstock.feed.feeder.pace import Pace


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
