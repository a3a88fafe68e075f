"""A chart of few points shows what one of all points would."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from penstock.web.buckets import reduced

POINTS = st.integers(0, 200).flatmap(
    lambda count: st.tuples(
        arrays(np.float64, count, elements=st.floats(0, 1e6)),
        arrays(np.float64, count, elements=st.floats(allow_nan=True, width=32)),
    )
)


@given(POINTS, st.floats(0, 1e6), st.floats(0, 1e6), st.integers(2, 50))
def test_extremes_stay_and_points_are_those_there_were(points, one, other, most):
    times, values = np.sort(points[0]), points[1]
    begin, end = sorted((one, other))
    few_times, few_values = reduced(times, values, begin, end, most)
    there = list(zip(times.tolist(), map(repr, values.tolist()), strict=True))
    assert all(point in there for point in zip(few_times.tolist(), map(repr, few_values.tolist()), strict=True))
    assert len(few_times) <= max(most, 2)
    assert (np.diff(few_times) >= 0).all()
    inside = (times >= begin) & (times <= end)
    if inside.any() and not np.isnan(values[inside]).all():
        assert np.nanmax(few_values) >= np.nanmax(values[inside])
        assert np.nanmin(few_values) <= np.nanmin(values[inside])


def test_a_line_reaches_both_edges():
    times = np.arange(10.0)
    few_times, _ = reduced(times, times, 3.5, 5.5, 10)
    assert few_times.tolist() == [3, 4, 5, 6]


def test_a_day_of_points_becomes_what_a_chart_can_draw_with_its_peak():
    times = np.arange(86_400.0)
    values = np.sin(times)
    values[43_210] = 7
    few_times, few_values = reduced(times, values, 0, 86_400, 1000)
    assert len(few_times) <= 1000
    assert few_values.max() == 7
