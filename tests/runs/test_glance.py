"""What a run does now is read from the end of its series, which has what a whole read gives."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from penstock.runs.glance import Recent, glance
from penstock.runs.store import Series, SeriesWriter, points_file
from penstock.runs.store.merged import compact, read_series


def series(times_s: list[float], values: list[float]) -> Series:
    return Series(np.array(times_s), np.array(values))


def test_rates_are_those_of_the_last_seconds() -> None:
    times_s = [1000.0 + i for i in range(60)]
    now = glance(
        {
            "proc.cpu_s": series(times_s, [0.1 * i if i < 40 else 4 + 2.0 * (i - 40) for i in range(60)]),
            "feed.wait_s": series(times_s, [0.25 * i for i in range(60)]),
            "proc.rss_bytes": series(times_s, [1.0] * 59 + [7.0]),
            "loss": series([1000.0, 1059.0], [5.0, 0.5]),
        }
    )
    assert now.cores == pytest.approx(2.0)
    assert now.waiting == pytest.approx(0.25)
    assert (now.memory_bytes, now.read_bytes_per_s, now.logged) == (7.0, None, {"loss": 0.5})


def test_a_run_is_shown_without_its_part_of_a_feed_which_has_a_row_of_its_own() -> None:
    times_s = [1000.0, 1001.0]
    own = {"proc.cpu_s": series(times_s, [0.0, 0.5]), "proc.rss_bytes": series(times_s, [7.0, 7.0])}
    fed = {"feed.cpu_s": series(times_s, [3.0, 4.0]), "feed.memory_bytes": series(times_s, [5.0, 6.0])}
    assert (glance(own | fed).cores, glance(own | fed).memory_bytes) == (0.5, 7.0)


def test_memory_is_what_a_run_has_for_itself_as_when_it_has_ended() -> None:
    rss, pss = series([1000.0, 1001.0, 1060.0], [100.0, 100.0, 200.0]), series([1001.0], [60.0])
    assert glance({"proc.rss_bytes": rss, "proc.pss_bytes": pss}).memory_bytes == pytest.approx(120.0)


def test_sparse_points_give_the_rate_between_the_last_two() -> None:
    assert glance({"proc.cpu_s": series([0.0, 100.0, 200.0], [0.0, 5.0, 55.0])}).cores == pytest.approx(0.5)


@pytest.mark.parametrize("times_s", [[], [1.0], [1.0, 1.0]])
def test_one_moment_has_no_rate(times_s: list[float]) -> None:
    assert glance({"proc.cpu_s": series(times_s, [1.0] * len(times_s))}).cores is None


KEEP_S = 10.0
steps = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["x", "y", "left out"]), st.integers(0, 8_000_000)),
    max_size=30,
)
"""Who adds a point to what, how many microseconds behind the last: within one, nobody says which comes first."""


def writer(folder: Path, name: str) -> SeriesWriter:
    return SeriesWriter(points_file(folder, name))


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(steps, max_size=6))
def test_each_look_has_the_end_of_what_a_whole_read_has(tmp_path_factory, looks) -> None:
    folder = tmp_path_factory.mktemp("run")
    recent = Recent(folder, KEEP_S)
    writers, time_s = {name: writer(folder, name) for name in "ab"}, 1e9
    for points in looks:
        for who, name, passed_us in points:
            time_s += passed_us / 1e6
            writers[who].add(name, time_s / 3, time_s)
        for each in writers.values():
            each.flush()
        whole = read_series(folder / "series")
        seen = recent.look("left out".__ne__)
        assert set(seen) == set(whole) - {"left out"} and recent.names() == set(whole)
        for name, (times_s, values) in seen.items():
            kept = whole[name].times_s >= whole[name].times_s[-1] - KEEP_S
            count = int(np.count_nonzero(kept))
            assert len(times_s) >= count
            np.testing.assert_array_equal(times_s[-count:], whole[name].times_s[kept])
            np.testing.assert_array_equal(values[-count:], whole[name].values[kept])
    for each in writers.values():
        each.close()


def test_little_is_kept_of_a_long_run(tmp_path: Path) -> None:
    recent, one = Recent(tmp_path, KEEP_S), writer(tmp_path, "one")
    for second in range(1000):
        one.add("x", second, 1e9 + second)
        one.flush()
        recent.look(bool)
    assert recent.look(bool)["x"].values.tolist() == list(range(988, 1000))
    one.close()


def test_the_sum_of_processes_rises_as_it_did(tmp_path: Path) -> None:
    recent, ranks = Recent(tmp_path, KEEP_S), [writer(tmp_path, name) for name in "ab"]
    for second in range(100):
        for place, rank in enumerate(ranks):
            rank.add("feed.samples", 10.0 * second, 1e9 + second + 0.25 * place)
            rank.flush()
    seen = recent.look(bool)["feed.samples"]
    assert len(seen.values) >= 2 * KEEP_S and np.diff(seen.values).max() == 10
    for rank in ranks:
        rank.close()


def test_a_count_that_stands_still_has_risen_as_it_did_since_the_run_began(tmp_path: Path) -> None:
    recent, one = Recent(tmp_path, KEEP_S), writer(tmp_path, "one")
    for second in range(100):
        one.add("train/epoch", 5 + second // 30, 1e9 + second)  # of an epoch that goes on with each step
        one.add("step", 7.0, 1e9 + second)
        one.add("loss", second, 1e9 + second)
        one.flush()
        recent.look(bool)
        assert recent.risen_per_s() == ({"train/epoch": pytest.approx(1 / 30)} if second >= 30 else {})
    one.close()


def test_a_count_that_falls_begins_anew_and_what_is_no_number_counts_for_nothing(tmp_path: Path) -> None:
    recent = Recent(tmp_path, KEEP_S)
    values = [float("nan"), *range(900, 960), float("inf"), *range(40), float("nan"), *range(0, 100, 2)]
    rates = [1.0] * (60 + 1 + 40 + 1) + [2.0] * 50
    untold = 0
    with closing(writer(tmp_path, "one")) as one:
        for second, (value, rate) in enumerate(zip(values[1:], rates, strict=True)):
            one.add("step", values[0] if second == 0 else value, 1e9 + second)
            one.flush()
            assert recent.look(bool)
            untold += not (found := recent.risen_per_s())
            assert not found or found == {"step": pytest.approx(rate)}
    assert untold <= 4, "where it begins, and begins anew"
    with closing(writer(tmp_path, "another")) as behind:  # of another process, which counts more slowly
        behind.add("step", 1.0, 1e9)
        behind.add("step", 2.0, 1e9 + 10)
    recent.look(bool)
    assert recent.risen_per_s() == {"step": pytest.approx(2.0)}


def test_a_torn_block_and_a_file_that_is_gone_change_nothing(tmp_path: Path) -> None:
    recent, one = Recent(tmp_path, KEEP_S), writer(tmp_path, "one")
    one.add("x", 1.0)
    one.flush()
    path = points_file(tmp_path, "one")
    whole = path.read_bytes()
    one.add("x", 2.0)
    one.close()
    both = path.read_bytes()
    for content, values in ((both[: len(whole) + 7], [1.0]), (both, [1.0, 2.0])):
        path.write_bytes(content)
        assert recent.look(bool)["x"].values.tolist() == values
    compact(path.parent)
    assert recent.look(bool)["x"].values.tolist() == [1.0, 2.0]


def test_a_run_that_is_removed_while_its_folder_is_opened_has_no_points(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(Path, "is_dir", lambda path: True)  # as it was a moment ago
    assert Recent(tmp_path / "removed", KEEP_S).look(bool) == {}
