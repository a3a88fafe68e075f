"""Compaction: nothing is lost to the bit, a point takes few bytes, and a kill at any moment changes nothing."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.scripts import output_of

from penstock.runs.store import SeriesWriter
from penstock.runs.store.columns import coded_floats, coded_ints, decoded_floats, decoded_ints
from penstock.runs.store.merged import compact, lost_points, read_names, read_series

SECONDS = 36_000
TENTHS = st.integers(-(10**6), 10**6).map(lambda number: number / 10)


FLOATS = arrays(np.float64, st.integers(0, 30), elements=st.floats() | TENTHS)


@given(FLOATS | arrays(np.float64, 20, elements=TENTHS))
def test_any_values_come_back_to_the_bit(values):
    assert decoded_floats(coded_floats(values)).tobytes() == values.tobytes()


@given(arrays(np.int64, st.integers(0, 30), elements=st.integers(-(2**62), 2**62)))
def test_any_times_come_back(times_us):
    assert decoded_ints(coded_ints(times_us)).tolist() == times_us.tolist()


@pytest.mark.parametrize(
    "values", [[-0.0, 0.0, 1.0], [0.1 + 0.2, 0.3, 0.7 - 0.1], [np.nan, 1.0], [np.inf, -np.inf, 2.0**53, 5e-324]]
)
def test_values_that_are_nearly_decimal_come_back_to_the_bit(values):
    found = decoded_floats(coded_floats(np.array(values)))
    assert found.tobytes() == np.array(values).tobytes()


def realistic() -> dict[str, np.ndarray]:
    """What listeners measure of a run, each second for ten hours: 40 series, one in eight of them mere noise."""
    random = np.random.default_rng(12)

    def counter(mean: float, unit: float) -> np.ndarray:
        return np.cumsum(random.poisson(mean, SECONDS)) * unit

    def level(start: float, wander: float, unit: float) -> np.ndarray:
        return np.abs(np.rint(start + np.cumsum(random.normal(0, wander, SECONDS)))) * unit

    series: dict[str, np.ndarray] = {}
    for i in range(5):
        series |= {
            f"proc.cpu_s.{i}": counter(370, 1) / 100 - 17.23,
            f"proc.rss_bytes.{i}": level(120_000, 200, 4096),
            f"proc.read_bytes.{i}": counter(50_000, 4096),
            f"proc.threads.{i}": random.integers(30, 34, SECONDS).astype(float),
            f"gpu.power_w.{i}": random.normal(250_000, 9_000, SECONDS).round() / 1000,
            f"feed.wait_s.{i}": np.cumsum(random.gamma(2, 2e7, SECONDS).astype(np.int64)) / 1e9,
            f"loss.{i}": np.float32(2 * np.exp(-np.arange(SECONDS) / 9000) + random.normal(0, 0.05, SECONDS)),
            f"gauge.{i}": random.normal(50, 10, SECONDS),
        }
    return {name: values.astype(np.float64) for name, values in series.items()}


def test_forty_series_of_ten_hours_take_at_most_four_bytes_a_point(tmp_path):
    series = realistic()
    jitter = np.random.default_rng(3).normal(0, 200, (8, SECONDS)).astype(np.int64)
    times_us = 1_800_000_000_000_000 + np.arange(SECONDS) * 1_000_000 + jitter
    for listener in range(8):  # each asks for the time itself
        names = list(series)[listener::8]
        points = np.empty((SECONDS, len(names)), [("number", "<u4"), ("time_us", "<i8"), ("value", "<f8")])
        points["number"] = np.arange(len(names))
        points["time_us"] = times_us[listener][:, None]
        points["value"] = np.stack([series[name] for name in names], axis=1)
        with closing(SeriesWriter(tmp_path / f"{listener}.points")) as writer:
            for name in names:
                writer.declare(name)
            # A million calls of add() would take this test a second.
            writer._points += points.tobytes()
    compact(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["compacted"]
    assert len(series) == 40
    nbytes = (tmp_path / "compacted").stat().st_size
    assert nbytes <= 4 * 40 * SECONDS
    assert nbytes <= 15e6
    found = read_series(tmp_path)
    for i, (name, values) in enumerate(series.items()):
        assert found[name].values.tobytes() == values.tobytes()
        assert (np.rint(found[name].times_s * 1e6) == times_us[i % 8]).all()


def test_a_file_with_a_writer_is_left_and_compacted_with_the_next(tmp_path):
    with closing(SeriesWriter(tmp_path / "a.points")) as a:
        with closing(SeriesWriter(tmp_path / "b.points")) as b:
            a.add("x", 1, 1)
            b.add("x", 2, 2)
            a.flush()
        compact(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.points", "compacted"]
        a.add("x", 3, 3)
    assert read_series(tmp_path)["x"].values.tolist() == [1, 2, 3]
    compact(tmp_path)
    compact(tmp_path)
    assert read_series(tmp_path)["x"].values.tolist() == [1, 2, 3]
    with closing(SeriesWriter(tmp_path / "a.points")) as again:  # a new file of that name is not the one taken
        again.add("x", 4, 4)
    assert read_series(tmp_path)["x"].values.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(("at", "found"), [(0, "xy"), (20, ""), (50, ""), (-1, "x")])
def test_damage_in_the_compacted_file_costs_a_series_or_those_of_its_times(tmp_path, at, found):
    with closing(SeriesWriter(tmp_path / "a.points")) as writer:
        for name in "xy":
            writer.add(name, 1, 1)
    compact(tmp_path)
    content = bytearray((tmp_path / "compacted").read_bytes())
    content[at] ^= 1
    (tmp_path / "compacted").write_bytes(content)
    assert list(read_series(tmp_path)) == [*found]
    assert lost_points(tmp_path) == 2 - len(found)


def test_names_are_read_without_the_points(tmp_path):
    with closing(SeriesWriter(tmp_path / "a.points")) as writer:
        writer.add("x", 1, 1)
    compact(tmp_path)
    with closing(SeriesWriter(tmp_path / "b.points")) as again:
        again.add("x", 2, 2)
        again.add("y", 2, 2)
    assert set(read_names(tmp_path)) == {"x", "y"}
    (tmp_path / "compacted").write_bytes(b"")
    assert set(read_names(tmp_path)) == {"x", "y"} and lost_points(tmp_path) == 1


KILLS = """
import os, shutil, signal, sys
from pathlib import Path
import numpy
from penstock.runs.store import SeriesWriter, merged

folder = Path(sys.argv[1])

def write(name, *values):
    writer = SeriesWriter(folder / name)
    for value in values:
        writer.add("x", value, value)
    writer.close()

def found():
    return merged.read_series(folder)["x"].values.tolist()

def killed_at(line):
    if child := os.fork():
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    seen = 0
    def trace(frame, event, argument):
        nonlocal seen
        if frame.f_code != merged.compact.__code__:
            return None
        seen += event == "line"
        if seen == line:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace
    sys.settrace(trace)
    merged.compact(folder)
    os._exit(0)

kills = 0
while True:
    shutil.rmtree(folder, ignore_errors=True)
    write("a.points", 1, 2)
    merged.compact(folder)
    write("a.points", 3)
    write("b.points", 4)
    if not killed_at(kills + 1):
        break
    kills += 1
    assert found() == [1, 2, 3, 4], (kills, found())
    if (folder / "a.points").exists():
        write("a.points", 5)  # goes on in a file that may have been taken
        assert found() == [1, 2, 3, 4, 5], (kills, found())
    before = found()
    merged.compact(folder)
    assert found() == before, (kills, found())
    assert [path.name for path in folder.iterdir() if path.suffix != ".half"] == ["compacted"]
print(kills)
"""


def test_a_kill_at_any_line_loses_no_point_and_doubles_none(tmp_path):
    assert int(output_of(KILLS, tmp_path / "series")) > 20
