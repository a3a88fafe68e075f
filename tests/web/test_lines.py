"""Lines over steps, smoothed, with what no axis has a place for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.web.seeded import add_points, group

from penstock.runs.figures import extremes
from penstock.runs.store import Series
from penstock.web.charts import title_of
from penstock.web.lines import against, chart, line_over, odd, smoothed, within_epochs

NAN, INF = math.nan, math.inf
VALUES = st.lists(st.floats(-1e6, 1e6) | st.just(NAN), max_size=80)


def array(*values: float) -> np.ndarray:
    return np.array(values, float)


@given(values=VALUES, weight=st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.99, 0.999]))
def test_a_moving_average_is_what_the_recurrence_gives(values, weight):
    average, count, expected = 0.0, 0, []
    for value in values:
        if math.isnan(value):
            expected.append(NAN)
            continue
        count += 1
        average = weight * average + (1 - weight) * value
        expected.append(average / (1 - weight**count))
    assert smoothed(array(*values), weight) == pytest.approx(expected, rel=1e-6, abs=1e-4, nan_ok=True)


def test_a_long_line_is_smoothed_in_blocks_as_one():
    values = np.random.default_rng(0).normal(size=200_000)
    found = smoothed(values, 0.9)
    average = 0.0
    for value in values:
        average = 0.9 * average + 0.1 * value
    assert found[-1] == pytest.approx(average)
    assert np.abs(found[1000:]).max() < 1.5


def test_a_line_lies_over_the_last_step_before_each_of_its_points():
    line = array(0, 1, 2, 2.5, 4), array(10, 11, 12, 13, 14)
    steps = Series(array(1, 2, 3), array(5, NAN, 3))
    found = against(line, steps)
    assert found[0].tolist() == [3, 5] and found[1].tolist() == [14, 11]
    assert len(against(line, Series(array(), array()))[0]) == 0


def over_epochs(times_s, epochs):
    line = np.array(times_s, float), np.arange(len(times_s), dtype=float)
    moments_s, numbers = ([each[which] for each in epochs] for which in (0, 1))
    return [each.tolist() for each in within_epochs(line, Series(array(*moments_s), array(*numbers)))]


@pytest.mark.parametrize(
    ("times_s", "epochs", "places"),
    [
        pytest.param([1, 2, 3, 4], [(2, 0), (4, 1)], [-0.5, 0, 0.5, 1], id="logged at their ends"),
        pytest.param([1, 2, 3, 4], [(0, 1), (2.5, 2)], [0.5, 1, 1.5, 2], id="logged at their beginnings"),
        pytest.param([1, 2, 3, 4], [(1, 0), (2, 0), (3, 1), (4, 1)], [-0.5, 0, 0.5, 1], id="in each call"),
        pytest.param([2, 4], [(2, 0), (4, 1)], [0, 1], id="one point an epoch"),
        pytest.param([2, 4], [(2, 0.25), (4, 0.5)], [0.25, 0.5], id="parts of an epoch"),
        pytest.param([1, 2, 3, 4], [(0, 0.25), (2.5, 0.5)], [-0.25, 0.25, 0.375, 0.5], id="several in each part"),
        pytest.param([1, 2, 3, 4, 5], [(4, 0)], [-0.75, -0.5, -0.25, 0, 0.25], id="one that goes on"),
        pytest.param([1, 2, 3], [], [], id="none was logged"),
        pytest.param(
            [0.5, 1, 2, 3, 4],
            [(1, 0), (2, 0), (3, 1), (4, 1)],
            [-2 / 3, -1 / 3, 0, 0.5, 1],
            id="in each call but the first",
        ),
    ],
)
def test_the_points_of_an_epoch_lie_up_to_its_number(times_s, epochs, places):
    found = over_epochs(times_s, epochs)
    assert found[0] == pytest.approx(places) and found[1] == [*map(float, range(len(places)))]


def test_of_an_epoch_that_is_trained_again_the_newer_points_count():
    times_s = [1, 2, 3, 4, 5, 6]
    assert over_epochs(times_s, [(2, 1), (4, 2), (6, 1)]) == [[0.5, 1, 1.5, 2], [4, 5, 2, 3]]


def test_what_is_not_finite_is_named_and_does_not_count():
    line = array(0, 1, 2, 3, 4), array(1, NAN, INF, -INF, 3)
    assert odd(line, -INF, INF, 10) == [(1, "NaN"), (2, "∞"), (3, "−∞")]
    assert odd(line, 2, 2, 10) == [(2, "∞")]
    assert len(odd((np.arange(1000.0), np.full(1000, NAN)), -INF, INF, 50)) == 50
    assert extremes(line[1]) == (3, 1, 3)
    assert math.isnan(extremes(array(1, NAN))[0]) and extremes(array(1, NAN))[1:] == (1, 1)
    assert math.isnan(extremes(array(NAN))[0]) and extremes(array(NAN))[1:] == (None, None)
    assert extremes(array()) == (None, None, None)


def test_charts_over_steps_hold_every_run_at_its_own_steps(page, store):
    [one] = group(store, "one", series={"loss": [4.0, 3, 2, 1], "step": [0.0, 10, 20, 30]})
    [other] = group(store, "other", series={"loss": [8.0, 7], "step": [10.0, 30], "proc.rss_bytes": [1.0, 2, 3]})
    found = page.json(f"/api/chart?id={one.id}&id={other.id}&name=loss&over=series:step")
    assert found["times"] == [0, 10, 20, 30]
    assert found["lines"] == [[None, [4, 3, 2, 1]], [[1, 3], [8, 7]]]
    assert found["figures"][0] == {"last": 1, "least": 1, "most": 4}
    part = page.json(f"/api/chart?id={one.id}&name=loss&over=series:step&begin=15&end=20")
    assert part["times"] == [10, 20, 30], "with one point beyond each edge"
    measured = page.json(f"/api/chart?id={other.id}&name=proc.rss_bytes&over=series:step")
    assert measured["times"] == [10, 30] and measured["lines"][0][1][-1] == 3


def test_what_was_logged_without_a_step_is_counted_and_what_is_measured_has_no_steps(page, store):
    [run] = group(store, "one", series={"loss": [4.0, 3, 2], "proc.rss_bytes": [1.0, 2, 3]})
    found = page.json(f"/api/chart?id={run.id}&name=loss&over=series:step")
    assert (found["times"], found["lines"]) == ([0, 1, 2], [[None, [4, 3, 2]]])
    assert page.json(f"/api/chart?id={run.id}&name=proc.rss_bytes&over=series:step")["times"] == []
    assert page.json(f"/api/chart?id={run.id}&name=loss&over=series:epoch")["times"] == []


def test_a_point_without_a_step_has_none_of_another_call():
    series = {
        "step": Series(array(1, 4), array(4, 5)),
        "d": Series(array(1, 2, 4), array(1, 2, 3)),  # the second without
        "e": Series(array(3, 5, 6), array(7, 8, 9)),  # all without
        "gpu.busy": Series(array(2, 4.5), array(0.5, 0.25)),
    }
    found = {name: [each.tolist() for each in line_over(name, series, "series:step", 0.0)] for name in series}
    assert found == {
        "step": [[4, 5], [4, 5]],
        "d": [[4, 5], [1, 3]],
        "e": [[0, 1, 2], [7, 8, 9]],
        "gpu.busy": [[4, 5], [0.5, 0.25]],
    }


def test_a_smoothed_chart_has_both_lines_on_the_same_moments(page, store):
    rng = np.random.default_rng(0)
    [run] = group(store, "one", series={"loss": rng.normal(size=5000)})
    found = page.json(f"/api/chart?id={run.id}&name=loss&most=100&smoothing=0.99")
    [(_, raw)], [(_, smooth)] = found["lines"], found["smooth"]
    assert max(raw) > 3 and max(smooth[10:]) < 1
    assert len(found["times"]) <= 100
    assert page.json(f"/api/chart?id={run.id}&name=loss&most=100")["smooth"] == []


def test_nan_and_infinities_come_by_name(page, store):
    [run] = group(store, "one", series={"loss": [1, NAN, INF, 2]})
    found = page.json(f"/api/chart?id={run.id}&name=loss")
    assert [word for _, word in found["odd"][0]] == ["NaN", "∞"]


def test_series_have_titles_as_people_say_them_in_the_order_of_a_runs_charts():
    names = ["train/loss", "feed.wait_s", "feed.samples", "proc.cpu_s", "proc.rss_bytes", "gpu.0.memory_bytes"]
    titles = [title_of(name) for name in names]
    assert [title.place for title in titles] == [0, 1, 2, 3, 4, 5]
    assert titles[0].text == "train/loss"
    assert (titles[1].text, titles[1].unit) == ("Waits for data", "% of the time")
    assert title_of("gpm.1.mig3.sm_active_percent").text == "GPU 1, MIG 3: multiprocessors active"
    assert title_of("disk.nvme0n1.busy_s") == ("Disk nvme0n1: busy", "% of the time", 9)
    assert title_of("proc.unheard_of").text == "proc.unheard_of"


def test_a_counter_of_time_is_drawn_in_percent(page, store):
    [run] = group(store, "one")
    values = page.json(f"/api/chart?id={run.id}&name=feed.wait_s")["lines"][0][1]
    assert values == pytest.approx([40 * 59 / 60] * len(values))


def test_names_may_hold_what_a_script_likes(page, store):
    [run] = group(store, "one", series={"a/b c?&=#é": [1.0, 2.0]})
    add_points(store, run.id, "series:step", [3.0], run.began, 0, "other")
    assert set(page.json(f"/api/titles?id={run.id}")) == {"a/b c?&=#é", "series:step"}
    assert page.json(f"/api/chart?id={run.id}&name=a%2Fb%20c%3F%26%3D%23%C3%A9")["lines"] == [[None, [1, 2]]]


def logged_again(of: list[range]) -> tuple[Series, Series]:
    """Return a loss and the steps that it was logged at, some of them again with other values."""
    steps = [float(step) for each in of for step in each]
    values = [step + 1000 * attempt for attempt, each in enumerate(of) for step in each]
    times_s = np.arange(len(steps)) + 1e9
    return Series(times_s, array(*values)), Series(times_s, array(*steps))


@pytest.mark.parametrize(
    "of",
    [
        [range(120), range(100, 200)],
        [range(50), range(10, 30), range(20, 60)],
        [range(10)] * 3,
        [range(20), range(5)],
    ],
)
def test_a_step_that_was_logged_again_has_its_newer_value_alone(of):
    loss, steps = logged_again(of)
    newest = dict(zip(steps.values.tolist(), loss.values.tolist(), strict=True))
    at, values = line_over("loss", {"loss": loss, "step": steps}, "series:step", 1e9)
    assert dict(zip(at.tolist(), values.tolist(), strict=True)) == newest and len(at) == len(newest)
    found = chart([[(at, values)]], -INF, INF, 2000, 0.9)
    assert found["smooth"][0][1] == pytest.approx(smoothed(array(*(newest[step] for step in sorted(newest))), 0.9))
    assert len(line_over("loss", {"loss": loss, "step": steps}, "", 1e9)[0]) == len(loss.values), "over time, all"
