"""Rows of ``penstock bench io``, and the files that they are kept in."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from penstock.errors import BadSetting
from penstock.io.measurements import Measurement, read_benchmark, save, saved_at, saved_rows

ROW = Measurement(mech="uring", bs_bytes=4096, qd=128, threads=1, pattern="random", note='a "note", with commas')


def test_the_figures_of_a_row_fit_together():
    row = ROW.measured(90_000, 1.5, 0.3)
    assert (row.iops, row.mb_s) == (60_000, 245.76)
    assert row.cpu_us_per_op == pytest.approx(0.3 / 90_000 * 1e6, rel=1e-5)
    assert row.cpu_s_per_gib == pytest.approx(row.cpu_us_per_op / 1e6 * 2**18, rel=1e-5)


def test_rows_come_back_from_json_whatever_else_is_in_it(tmp_path: Path):
    rows = [ROW, ROW.measured(90_000, 1.5, 0.3)]
    path = tmp_path / "rows.json"
    path.write_bytes(msgspec.json.encode([{**each, "disk": "a"} for each in msgspec.to_builtins(rows)]))
    assert read_benchmark(path) == rows


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read: No such file"),
        ("", "no file of penstock bench io"),
        ('{"rows": []}', "no file of penstock bench io"),
        ('[{"mech": "uring"}]', "no file of penstock bench io.*bs_bytes"),
        ("[]", "holds no row"),
        ('"rows"', "no file of penstock bench io"),
    ],
)
def test_a_file_that_is_no_benchmark_is_one_clear_error(tmp_path: Path, text, says):
    path = tmp_path / "bench.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadSetting, match=says):
        read_benchmark(path)


def test_a_machine_keeps_its_benchmark_by_file_system(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert saved_rows(tmp_path) is None
    assert save([ROW], tmp_path) == saved_at(tmp_path)
    assert saved_rows(tmp_path) == [ROW]
    assert saved_at("/proc") != saved_at(tmp_path)
    assert [path.name for path in saved_at(tmp_path).parent.iterdir()] == [saved_at(tmp_path).name]


def test_what_cannot_be_kept_leaves_nothing(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    saved_at(tmp_path).mkdir(parents=True)
    with pytest.raises(OSError, match="Is a directory"):
        save([ROW], tmp_path)
    assert list(saved_at(tmp_path).parent.iterdir()) == [saved_at(tmp_path)]
