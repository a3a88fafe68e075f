"""Several runs as one line: the mean, between the least and the greatest, at common places."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.web.seeded import group

from penstock.web.charts import union
from penstock.web.lines import together

NAN, INF = math.nan, math.inf
POINTS = st.lists(
    st.tuples(st.integers(0, 30), st.floats(-1e6, 1e6) | st.sampled_from([NAN, INF, -INF])), max_size=25
)


def line(points: list[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    points = sorted(points, key=lambda point: point[0])
    return np.array([at for at, _ in points], float), np.array([value for _, value in points], float)


def held(points: list[tuple[float, float]], place: float) -> float:
    """What one run counts for at a place: its last value there; NaN for nothing."""
    known = [(at, value) for at, value in sorted(points, key=lambda point: point[0]) if at <= place]
    ended = all(at < place for at, _ in points)
    return known[-1][1] if known and not ended and math.isfinite(known[-1][1]) else NAN


@given(runs=st.lists(POINTS, min_size=1, max_size=5))
def test_the_mean_and_its_band_are_those_of_the_values_that_runs_have_there(runs):
    found = together([line(points) for points in runs], -INF, INF)
    if len(runs) == 1:
        assert len(found) == 1
        return
    mean, least, greatest, counted = found
    places = sorted({at for points in runs for at, _ in points})
    assert mean[0].tolist() == places
    for at, place in enumerate(places):
        values = [value for points in runs if not math.isnan(value := held(points, place))]
        assert counted[1][at] == len(values)
        expected = (np.mean(values), min(values), max(values)) if values else (NAN, NAN, NAN)
        here = (mean[1][at], least[1][at], greatest[1][at])
        assert here == pytest.approx(expected, rel=1e-9, abs=1e-6, nan_ok=True)


def test_runs_with_the_same_steps_have_numpys_mean():
    values = np.random.default_rng(0).normal(size=(7, 5000))
    steps = np.arange(5000.0)
    mean, least, greatest, runs = together([(steps, each) for each in values], -INF, INF)
    np.testing.assert_allclose(mean[1], values.mean(axis=0), atol=1e-12)
    np.testing.assert_array_equal(least[1], values.min(axis=0))
    np.testing.assert_array_equal(greatest[1], values.max(axis=0))
    assert (runs[1] == 7).all()


@pytest.mark.parametrize(("band", "divisor"), [("deviation", 1.0), ("error", 7**0.5)])
def test_a_band_is_the_deviation_or_the_error_of_the_mean(band, divisor):
    values = np.random.default_rng(0).normal(size=(7, 500))
    mean, lower, upper, _ = together([(np.arange(500.0), each) for each in values], -INF, INF, band)
    away = values.std(axis=0, ddof=1) / divisor
    np.testing.assert_allclose(upper[1], values.mean(axis=0) + away)
    np.testing.assert_allclose(lower[1], values.mean(axis=0) - away)
    longer = [(np.arange(500.0), values[0]), (np.arange(600.0), np.ones(600))]
    mean, lower, upper, runs = together(longer, -INF, INF, band)
    assert runs[1][-1] == 1 and mean[1][-1] == lower[1][-1] == upper[1][-1] == 1  # of one run, nothing is known


def test_of_more_places_than_can_be_shown_some_are_looked_at_and_all_once_it_is_zoomed():
    values = np.random.default_rng(0).normal(size=(3, 100_000))
    steps = np.arange(100_000.0)
    lines = [(steps, each) for each in values]
    whole = together(lines, -INF, INF)[0]
    assert len(whole[0]) == 20_000 and whole[0][[0, -1]].tolist() == [0, 99_999]
    at = whole[0].astype(int)
    np.testing.assert_allclose(whole[1], values.mean(axis=0)[at])
    part = together(lines, 500, 600)[0]
    assert part[0].tolist() == list(range(499, 602))
    np.testing.assert_allclose(part[1], values.mean(axis=0)[499:602])


def test_moments_are_counted_without_being_sorted():
    rising = np.repeat(np.arange(10.0), 3)
    assert union([rising, np.array([2.5])], 11).tolist() == sorted([*range(10), 2.5])
    assert union([rising, np.array([2.5])], 10) is None
    assert union([rising], 9) is None
    assert union([], 9).tolist() == []


@pytest.mark.whole
def test_a_chart_holds_the_mean_of_runs_beside_a_single_one(page, store):
    ids = [
        group(store, "sweep", series={"loss": [4.0, 3, value, *more], "step": [0.0, 10, 20, *more]})[0].id
        for value, more in ((1.0, [30.0]), (2.0, []), (NAN, []))
    ]
    [one] = group(store, "one", series={"loss": [8.0, 7], "step": [0.0, 20]})
    found = page.json(f"/api/chart?id={','.join(ids)}&id={one.id}&name=loss&over=series:step")
    assert found["times"] == [0, 10, 20, 30]
    assert found["lines"] == [[None, [4, 3, 1.5, 30]], [[0, 2], [8, 7]]]
    assert found["bands"] == [[[None, [4, 3, 1, 30]], [None, [4, 3, 2, 30]], [None, [3, 3, 2, 1]]], None]
    assert found["figures"] == [{"last": 16, "least": 1, "most": 30}, {"last": 7, "least": 7, "most": 8}]
    assert [word for _, word in found["odd"][0]] == ["NaN"] and found["ends"] == [30, 20]
    smooth = page.json(f"/api/chart?id={','.join(ids)}&name=loss&over=series:step&smoothing=0.5")
    assert smooth["lines"] == [[None, [4, 3, 1.5, 30]]]
    assert smooth["smooth"][0][1][1] == pytest.approx(0.5 * (0.5 * 4 + 3) / 0.75)
    assert smooth["bands"][0][0][1][2] < smooth["smooth"][0][1][2] < smooth["bands"][0][1][1][2]


@pytest.mark.whole
def test_runs_of_several_groups_are_one_group_if_they_are_asked_for_together(page, store):
    ids = [group(store, "seeds", began=1_790_000_000.0 + 100 * at)[0].group_id for at in range(3)]
    found = page.json(f"/api/groups?id={','.join(ids)}")
    [one] = found["groups"]
    assert len(one["runs"]) == 3 and one["name"] == "seeds"
    assert one["seconds"] == pytest.approx(180), "without the time between them"
