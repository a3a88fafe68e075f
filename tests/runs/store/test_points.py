"""Points of a writer: what was flushed is read to the bit, whatever became of the end of the file."""

from __future__ import annotations

import math
import os
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadSetting
from penstock.runs.store import SeriesWriter
from penstock.runs.store.merged import read_series


def write(path: Path, *blocks: list[tuple[str, float]]) -> list[int]:
    """Write blocks of points, one second apart, and return where the file ended after each."""
    ends = []
    with closing(SeriesWriter(path)) as writer:
        for block in blocks:
            for i, (name, value) in enumerate(block):
                writer.add(name, value, i)
            writer.flush()
            ends.append(path.stat().st_size)
    return ends


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(["loss", "proc.cpu_s", "genauigkeit µ"]), st.floats()), max_size=5),
        max_size=4,
    )
)
def test_any_values_are_read_to_the_bit(tmp_path_factory, blocks):
    folder = tmp_path_factory.mktemp("series")
    write(folder / "a.points", *blocks)
    series = read_series(folder)
    points = [(i, *point) for block in blocks for i, point in enumerate(block)]
    for name in {name for _, name, _ in points}:
        mine = sorted(((i, value) for i, given, value in points if given == name), key=lambda point: point[0])
        assert series[name].times_s.tolist() == [i for i, _ in mine]
        assert series[name].values.tobytes() == np.array([value for _, value in mine]).tobytes()
    assert set(series) == {name for _, name, _ in points}


def test_a_file_torn_at_any_byte_has_all_whole_blocks_and_takes_new_ones(tmp_path):
    path = tmp_path / "a.points"
    ends = write(path, [("a", 1)], [("b", 2), ("a", 3)], [("c", 4)])
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        for tail in (b"", bytes(50), b"\xff" * 50):  # a block that was lost may lie there as zeros
            path.write_bytes(whole[:cut] + tail if cut >= ends[0] else whole[:cut])
            written = sum(end <= cut for end in ends)
            expected = [[], [1], [1, 2, 3], [1, 2, 3, 4]][written]
            assert sorted(v for s in read_series(tmp_path).values() for v in s.values) == expected
            write(path, [("c", 5), ("new", 6)])
            assert sorted(v for s in read_series(tmp_path).values() for v in s.values) == [*expected, 5, 6]


def test_a_damaged_byte_hides_nothing_before_its_block(tmp_path):
    path = tmp_path / "a.points"
    ends = write(path, [("a", 1)], [("a", 2)])
    content = bytearray(path.read_bytes())
    for at in range(ends[0], len(content)):
        damaged = content.copy()
        damaged[at] ^= 1
        path.write_bytes(damaged)
        assert read_series(tmp_path)["a"].values.tolist() == [1]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        *(("", "it is empty"), ("x" * 251, "251 characters, more than 250"), (7, "a name is text")),
        *((name, "control characters") for name in ("loss\n", "\x1b[2J", "\ud800")),
    ],
)
def test_a_name_that_cannot_be_one_is_refused_and_the_writer_goes_on(tmp_path, name, why):
    with closing(SeriesWriter(tmp_path / "a.points")) as writer:
        with pytest.raises(BadSetting, match=why):
            writer.add(name, 1.0)
        writer.add("x" * 250, 1.0)
    assert list(read_series(tmp_path)) == ["x" * 250]


@pytest.mark.parametrize("value", ["1.0", None, [1], 1j, 10**400], ids=str)
def test_what_is_no_number_is_refused_by_name_and_the_writer_goes_on(tmp_path, value):
    with closing(SeriesWriter(tmp_path / "a.points")) as writer:
        with pytest.raises(BadSetting, match=r"^loss=.*takes numbers"):
            writer.add("loss", value)
        writer.add("loss", np.float32(0.5), 1)
        writer.add("loss", math.nan, 2)
        writer.add("loss", -math.inf, 3)
    assert str(read_series(tmp_path)["loss"].values) == "[ 0.5  nan -inf]"


def test_a_name_for_each_step_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.runs.store.points._MOST_NAMES", 10_000)
    with closing(SeriesWriter(tmp_path / "a.points")) as writer, pytest.raises(BadSetting, match="10,001th"):
        for step in range(20_000):
            writer.add(f"loss{step}", 1.0)


def test_a_writer_writes_by_itself_when_it_holds_many_points_or_old_ones(tmp_path, monkeypatch):
    with closing(SeriesWriter(tmp_path / "a.points")) as writer:
        for _ in range(4096):
            writer.add("many", 1.0, 0.0)
        assert len(read_series(tmp_path)["many"].values) == 4096
        writer.add("old", 1.0)
        now_s = time.time()
        monkeypatch.setattr("time.time", lambda: now_s + 2)
        writer.add("new", 1.0)
        assert set(read_series(tmp_path)) == {"many", "old", "new"}


def test_a_second_writer_of_one_file_is_refused(tmp_path):
    with closing(SeriesWriter(tmp_path / "a.points")), pytest.raises(BadSetting, match="has another writer"):
        SeriesWriter(tmp_path / "a.points")


def test_a_file_of_somebody_elses_is_refused_and_left_alone(tmp_path):
    (tmp_path / "a.points").write_text("a,b,c\n1,2,3\nfour,five,six\nseven,eight,nine\n")
    with pytest.raises(BadSetting, match="no points of Penstock's"):
        SeriesWriter(tmp_path / "a.points")
    assert (tmp_path / "a.points").read_text().startswith("a,b,c")
    assert not os.path.exists(tmp_path / "a.points.half")
