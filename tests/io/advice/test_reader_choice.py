"""Which mechanism ``reader="auto"`` is, and the benchmark files that it goes by."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from penstock.errors import BadSetting
from penstock.io.advice import choose_reader
from penstock.io.advice.measurements import Measurement, read_benchmark, save, saved_at, saved_rows

KIB = 1 << 10


def row(mech: str, bs: int, us: float, cpu_us: float, **more) -> Measurement:
    case = {"mech": mech, "bs_bytes": bs, "qd": 128, "threads": 1, "pattern": "random", "cold": True, **more}
    return Measurement(iops=1e6 / us, mb_s=bs / us, cpu_us_per_op=cpu_us, **case)


DISK = [
    *(row("uring", size, 10 + size / 1200, 3) for size in (4 * KIB, 1 << 20)),
    *(row("direct", size, 14 + size / 2000, 12, threads=32) for size in (4 * KIB, 1 << 20)),
    *(row("posix", size, 60 + size / 1500, 20) for size in (4 * KIB, 1 << 20)),
]


def test_a_benchmark_is_a_list_of_rows_or_an_object_that_holds_them(tmp_path: Path):
    rows = msgspec.to_builtins(DISK)
    plain, full = tmp_path / "plain.json", tmp_path / "full.json"
    plain.write_text(json.dumps([{**r, "disk": "a"} for r in rows]))
    full.write_text(json.dumps({"machine": {"cpu": "EPYC"}, "rows": rows, "settings": 1}))
    assert read_benchmark(plain).rows == read_benchmark(full).rows == DISK
    assert read_benchmark(full).origin == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read: No such file"),
        ("", "no file of penstock bench io"),
        ('{"cells": []}', "no file of penstock bench io.*rows"),
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
    assert save(DISK, tmp_path) == saved_at(tmp_path)
    assert saved_rows(tmp_path) == DISK
    assert saved_at("/proc") != saved_at(tmp_path)
    assert [path.name for path in saved_at(tmp_path).parent.iterdir()] == [saved_at(tmp_path).name]


def test_what_cannot_be_kept_leaves_nothing(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    saved_at(tmp_path).mkdir(parents=True)
    with pytest.raises(OSError, match="Is a directory"):
        save(DISK, tmp_path)
    assert list(saved_at(tmp_path).parent.iterdir()) == [saved_at(tmp_path)]


def test_the_automatic_reader_follows_the_measurements_of_what_works():
    assert choose_reader(DISK, 4 * KIB)[:3] == ("uring", 128, 1)
    assert choose_reader(DISK, 1 << 20)[:3] == ("direct", 128, 32)
    chosen = choose_reader(DISK, 4 * KIB, works=["posix"])
    assert (chosen.mech, chosen.reason.tag) == ("posix", "measured here")


@pytest.mark.parametrize("rows", [None, [], [row("gds", 4 * KIB, 1, 1, dest="cuda:0")]])
def test_without_measurements_the_automatic_reader_follows_a_published_rule(rows):
    assert choose_reader(rows, 4 * KIB)[:3] == ("uring", 128, 1)
    assert choose_reader(rows, 1 << 20)[:3] == ("uring", 128, 1)
    assert choose_reader(rows, 1 << 20, works=["posix", "direct"])[:3] == ("direct", 128, 8)
    assert choose_reader(rows, 4 * KIB, works=["posix", "direct"])[:3] == ("direct", 128, 32)
    assert choose_reader(rows, 1 << 20, works=["posix", "uring"]).mech == "uring"
    last = choose_reader(rows, 4 * KIB, works=["posix"])
    assert last.mech == "posix"
    assert last.reason.tag.startswith("published (")
