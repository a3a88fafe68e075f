"""``penstock advise``, as a process: on a small benchmark that was recorded, and on nonsense."""

from __future__ import annotations

import json
import shlex
from functools import partial
from pathlib import Path

import pytest

from penstock.cli import advise as verb
from penstock.io.measurements import Measurement, saved_rows

# mech, depth, threads; then MB/s and CPU-s for each GiB at 4 KiB, 64 KiB, 1 MiB: a virtual disk, two cores.
RECORDED = [
    ("posix", 1, 1, (53, 7.0), (579, 0.66), (1348, 0.35)),
    ("direct", 128, 8, (226, 2.6), (1479, 0.21), (2593, 0.05)),
    ("direct", 128, 32, (316, 2.1), (1309, 0.24), (2279, 0.06)),
    ("uring", 128, 1, (376, 0.96), (955, 0.11), (1496, 0.05)),
]


def recorded() -> list[dict[str, object]]:
    rows = []
    for mech, qd, threads, *figures in RECORDED:
        origin = {"machine": "EPYC, 2 cores", "date": "2026-01-01", "cold": True}
        for bs, (mb_s, cost) in zip((4 << 10, 64 << 10, 1 << 20), figures, strict=True):
            iops = mb_s * 1e6 / bs
            cpu_us = cost * bs / 2**30 * 1e6
            row = {"mech": mech, "bs_bytes": bs, "qd": qd, "threads": threads, "pattern": "random"}
            measured = {"iops": iops, "mb_s": mb_s, "cpu_us_per_op": cpu_us, "cpu_s_per_gib": cost}
            rows.append({**row, **measured, **origin, "path_taken": mech})
    failed = {"mech": "gds", "bs_bytes": 4096, "qd": 1, "threads": 1, "pattern": "random"}
    return [*rows, {**failed, "note": "no GPU"}]


@pytest.fixture
def bench(tmp_path: Path) -> str:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(recorded()))
    return str(path)


@pytest.fixture
def advise(command):
    return partial(command, "advise", "reader")


@pytest.fixture
def told(advise):
    def told(*words: str) -> dict:
        ran = advise(*words, "--json")
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    return told


def test_a_person_reads_the_choice_its_cost_the_reasons_and_the_remedies(advise, bench):
    words = ["--rate", "2GB/s", "--sample", "110KB", "--access", "random", "--cores", "1", "--gpu-share", "2%"]
    ran = advise(bench, *words)
    assert ran.returncode == 0, ran.stderr
    for part in (
        "at 2,000 MB/s, to host, on 1 core, with 2% of the GPU",
        "measured on EPYC, 2 cores, 2026-01-01",
        "✗ direct, depth 128, 8 threads, reads of 108 KiB",
        "10% short of what is needed",
        "costs 0.24 cores (0.14 CPU-s for each GiB)",
        "interpolated between measured sizes",
        "gds to host does not work here: no GPU",
        "uring, depth 128",
        "what to do",
        "pack the data",
    ):
        assert part in ran.stdout


@pytest.mark.parametrize(
    ("rate", "says"),
    [
        ("500GB/s", "1,809 MB/s, 276 times as much is needed"),
        ("4GB/s", "1,809 MB/s, 2.21 times as much is needed"),
        ("2GB/s", "1,809 MB/s, 10% short of what is needed"),
        ("1500MB/s", "1,809 MB/s, 21% more than needed"),
        ("100MB/s", "1,127 MB/s, 11.3 times what is needed"),
    ],
)
def test_what_is_reached_is_compared_with_what_is_needed(advise, bench, rate, says):
    assert says in advise(bench, "--sample", "110KB", "--cores", "1", "--rate", rate).stdout


def test_a_need_that_is_met_gets_no_remedies(advise, told, bench):
    advice = told(bench, "--rate", "400 MB/s", "--sample", "110KB", "--cores", "1")
    assert (advice["choice"]["mech"], advice["choice"]["qd"], advice["suffices"]) == ("uring", 128, True)
    assert advice["need"]["rate_bytes_per_s"] == 4e8
    assert advice["need"]["sample_bytes"] == 110_000
    assert advice["remedies"] == []
    shown = advise(bench, "--rate", "400MB/s", "--sample", "110KB").stdout
    assert "✓ uring, depth 128" in shown
    assert "what to do" not in shown


def test_a_quick_benchmark_is_kept_for_the_automatic_reader_or_why_not_is_said(tmp_path, monkeypatch, capsys):
    rows = [Measurement(**row) for row in recorded()]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(verb, "_measured_on", lambda directory: rows)
    verb.reader(on=tmp_path, sample="110KB", as_json=True)
    printed = capsys.readouterr()
    assert json.loads(printed.out)["choice"]["mech"] == "direct"
    assert "saved for reader='auto'" in printed.err
    assert saved_rows(tmp_path) == rows
    tmp_path.joinpath("file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    verb.reader(on=tmp_path, sample="110KB", as_json=True)
    printed = capsys.readouterr()
    assert json.loads(printed.out)["choice"]["mech"] == "direct"
    assert f"not saved for reader='auto': {tmp_path}" in printed.err and "Not a directory" in printed.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("BENCH", "give --sample"),
        ("--sample 4KiB", "give either a file of penstock bench io"),
        ("BENCH --on . --sample 4KiB", "give either a file"),
        ("--on no/such --sample 4KiB", "there is no such directory"),
        ("no-such.json --sample 4KiB", "cannot be read"),
        ("BENCH --sample '4 potatoes'", 'give bytes as a number above 0 or as text, such as "110KB"'),
        ("BENCH --sample 4KiB --dataset all", 'such as "100GB"'),
        ("BENCH --sample 4KiB --dataset 4KB", "dataset_bytes=4,000 is less than one sample of 4,096"),
        ("THIS --sample 4KiB", "give what its --json has saved"),
        ("BENCH --sample 4KiB --rate 2GB/min", "rate='2GB/min'"),
        ("BENCH --sample 4KiB --rate fast", "rate='fast'"),
        ("BENCH --sample 4KiB --rate 2", "--rate='2' has no unit: write --rate 2GB"),
        ("BENCH --sample 4KiB --rate '2 /s'", "--rate='2 ' has no unit"),
        ("BENCH --sample 110 --rate 2GB", "--sample='110' has no unit"),
        ("BENCH --sample 4KiB --dataset 100", "--dataset='100' has no unit"),
        ("/dev/null --sample 4KiB", "/dev/null cannot be read: it is a character device, no file"),
        ("BENCH --sample 4KiB --gpu-share half", "--gpu-share='half'"),
        ("BENCH --sample 4KiB --gpu-share 200%", "between 0 and 1"),
        ("BENCH --sample 4KiB --access both", "random or sequential"),
        ("BENCH --sample 4KiB --cores 0", "cores=0.0"),
    ],
)
def test_nonsense_is_one_clear_error(advise, bench, words, says):
    ran = advise(*({"BENCH": bench, "THIS": __file__}.get(word, word) for word in shlex.split(words)))
    assert ran.returncode == 2
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr
