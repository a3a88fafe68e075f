"""For how long a feeder waits: for room, which somebody holds, and for its readers, who have enough."""

from __future__ import annotations

from penstock.feed.feeder.pace import Pace


def test_each_second_is_counted_once_and_as_what_it_was():
    pace = Pace()
    pace.blocked(1, 10.0)
    assert pace.waited_s(12.0) == (2.0, 0.0)
    pace.blocked(2, 13.0)
    pace.idles(14.0)
    pace.idles(15.0)  # it still does
    assert pace.idle_since_s == 14.0
    assert pace.waited_s(16.0) == (4.0, 2.0)
    pace.blocked(2, 17.0)
    assert pace.waited_s(18.0) == (5.0, 3.0)
    pace.moving(19.0)
    pace.moving(20.0)
    assert pace.waited_s(30.0) == (6.0, 3.0)
    assert pace.total_s(1, 30.0) == 3.0 and pace.total_s(2, 30.0) == 3.0
    pace.blocked(1, 31.0)
    pace.forget(1, 32.0)
    assert pace.waited_s(40.0) == (7.0, 3.0)
