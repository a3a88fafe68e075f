"""Counters that each process of a run keeps of itself, read as the run's."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from penstock.runs.store import SeriesWriter, points_file
from penstock.runs.store.merged import compact, read_series


def write(run: Path, writer: str, name: str, *points: tuple[float, float]) -> None:
    with closing(SeriesWriter(points_file(run, writer))) as file:
        for time_s, value in points:
            file.add(name, value, time_s)


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("name", ["feed.wait_s", "feed.train.wait_s", "feed.train.loop_s", "feed.copy_s"])
def test_of_ranks_the_one_that_counted_most_counts(tmp_path: Path, name: str, compacted: bool):
    write(tmp_path, "script-1", name, (10, 1), (20, 2), (30, 3))
    write(tmp_path, "script-2", name, (11, 5), (21, 6), (29, 9))
    if compacted:
        compact(tmp_path / "series")
    series = read_series(tmp_path / "series")[name]
    assert list(series.times_s) == [10, 11, 20, 21, 29, 30]
    assert list(series.values) == [1, 5, 5, 6, 9, 9]


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("name", ["feed.batches", "feed.train.samples", "feed.main.samples"])
def test_what_ranks_were_given_adds_up(tmp_path: Path, name: str, compacted: bool):
    write(tmp_path, "script-1", name, (10, 8), (20, 16))
    write(tmp_path, "script-2", name, (11, 8), (21, 24))
    if compacted:
        compact(tmp_path / "series")
    assert list(read_series(tmp_path / "series")[name].values) == [8, 16, 24, 40]


def test_processes_one_after_the_other_add_up_also_when_compacted_in_between(tmp_path: Path):
    write(tmp_path, "script-1", "feed.wait_s", (10, 1), (20, 2))
    write(tmp_path, "script-2", "feed.wait_s", (12, 3), (22, 4))
    compact(tmp_path / "series")
    write(tmp_path, "script-3", "feed.wait_s", (30, 1), (40, 5))
    write(tmp_path, "script-4", "feed.wait_s", (31, 2), (41, 7))
    for _ in range(2):
        assert list(read_series(tmp_path / "series")["feed.wait_s"].values) == [1, 3, 3, 4, 5, 6, 9, 11]
        compact(tmp_path / "series")


def test_other_series_keep_all_their_points(tmp_path: Path):
    write(tmp_path, "script-1", "loss", (10, 3), (20, 1))
    write(tmp_path, "script-2", "loss", (11, 2))
    assert list(read_series(tmp_path / "series")["loss"].values) == [3, 2, 1]
