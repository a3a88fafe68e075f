"""A chart of few points shows what one of all points would."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from penstock.web.charts import on_common_moments

LINES = st.lists(
    st.integers(0, 200).flatmap(
        lambda count: st.tuples(
            arrays(np.float64, count, elements=st.floats(0, 1e6)).map(np.sort),
            arrays(np.float64, count, elements=st.floats(allow_nan=True, allow_infinity=False, width=32)),
        )
    ),
    min_size=1,
    max_size=3,
)


@given(LINES, st.floats(0, 1e6), st.floats(0, 1e6), st.integers(4, 50))
def test_extremes_stay_and_values_are_those_there_were(lines, one, other, most):
    begin, end = sorted((one, other))
    moments, found = on_common_moments(lines, begin, end, most)
    assert len(moments) <= most and (np.diff(moments) >= 0).all()
    inside_all = [(times >= begin) & (times <= end) for times, _ in lines]
    exact = len(np.unique(np.concatenate([_around(times, begin, end) for times, _ in lines]))) <= most
    width = (moments[-1] - moments[0]) / (most // 2 - 1) if len(moments) else 0
    for (times, values), inside, (where, drawn) in zip(lines, inside_all, found, strict=True):
        assert (np.diff(where) >= (0 if exact else 1)).all() and len(where) == len(drawn)
        points = np.full(len(where), True) if exact else (where > 0) & (where < len(moments) - 1)
        at, few = where[points], drawn[points]
        for moment, value in zip(moments[at], few, strict=True):
            same = (values == value) | (np.isnan(values) & np.isnan(value))
            assert np.abs(times[same] - moment).min() <= width * 1.001 + 1e-9
        if inside.any() and not np.isnan(values[inside]).all():
            assert np.nanmax(few) >= np.nanmax(values[inside])
            assert np.nanmin(few) <= np.nanmin(values[inside])


def _around(times, begin, end):
    first = max(0, int(np.searchsorted(times, begin)) - 1)
    return times[first : int(np.searchsorted(times, end, side="right")) + 1]


@pytest.mark.parametrize(("most", "at_the_edges"), [(10, (3.0, 6.0)), (4, (3.5, 5.5))])
def test_a_line_reaches_both_edges(most, at_the_edges):
    times = np.arange(0, 10, 0.1 if most == 4 else 1)
    moments, [(at, values)] = on_common_moments([(times, times)], 3.5, 5.5, most)
    assert (moments[0], moments[-1]) == pytest.approx(at_the_edges)
    assert moments[at[[0, -1]]].tolist() == pytest.approx(values[[0, -1]].tolist())


def test_a_day_of_points_becomes_what_a_chart_can_draw_with_its_peaks_in_their_order():
    times = np.arange(86_400.0)
    values = np.sin(times)
    values[43_210], values[43_215] = 7, -7
    lines = [(times, values), (times[:100], values[:100])]
    moments, [(at, few), (other_at, other)] = on_common_moments(lines, 0, 86_400, 1000)
    assert len(moments) <= 1000
    assert few.max() == 7 and few.min() == -7 and few.argmax() == few.argmin() - 1
    assert moments[at[few.argmax()]] == pytest.approx(43_210, abs=86_400 / 499)
    assert other_at.max() <= 5 and len(other) == len(other_at)


def test_moments_of_no_width_are_in_order():
    lines = [(np.array([1.0, 2.0 + line, 5.0, 6.0 + line, 7.0]), np.arange(5.0)) for line in range(3)]
    moments, _ = on_common_moments(lines, 5, 5, 4)
    assert len(moments) == 4 and (np.diff(moments) >= 0).all()


def test_a_gap_stays_a_gap():
    times = np.arange(1000.0)
    values = np.where((times > 300) & (times < 400), np.nan, 1.0)
    moments, [(at, few)] = on_common_moments([(times, values)], 0, 999, 100)
    gap = moments[at[np.isnan(few)]]
    assert len(gap) and gap.min() > 295 and gap.max() < 405
