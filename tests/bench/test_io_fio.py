"""fio beside the mechanisms: what it is asked, and what is understood of its answers (``recorded/``: fio 3.33)."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from penstock.bench.io import fio
from penstock.bench.io.fio import ENGINES
from penstock.bench.io.plan import Case, IoSettings
from penstock.bench.io.run import run
from penstock.bench.io.target import Target
from penstock.bench.measure.pool import MeasurementFailed

RECORDED = Path(__file__).parent / "recorded"
FILE = Target("/data/a:b", "/data/a:b", 1 << 30)
SHORT = IoSettings(bs_bytes=(4096,), qd=(8,), threads=(2,), runtime_s=0.3, warm_up_s=0.1)
SETTINGS = msgspec.structs.replace(SHORT, mech=(), external=("fio",))
needs_fio = pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")


def test_fio_s_answer_is_a_row() -> None:
    text = (RECORDED / "fio.json").read_text()
    job = json.loads(text)["jobs"][0]
    row = fio.row(Case("fio:psync", 4096, 2, 2, "random"), text, cold=False)
    assert row.iops == pytest.approx(job["read"]["iops"], rel=0.01)
    assert row.mb_s == pytest.approx(job["read"]["io_bytes"] / job["read"]["runtime"] / 1e3, rel=0.01)
    cpu_s = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000
    assert row.cpu_us_per_op == pytest.approx(1e6 * cpu_s / job["read"]["total_ios"], rel=0.01)
    assert row.cores_busy == pytest.approx(row.cpu_us_per_op * row.iops / 1e6, rel=0.01)
    assert row.p50_us == job["read"]["lat_ns"]["percentile"]["50.000000"] / 1e3
    assert row.path_taken == "fio 3.33, psync, O_DIRECT, 2 jobs"


@pytest.mark.parametrize("text", ["", "{}", '{"jobs": []}', "Segmentation fault"])
def test_an_answer_that_is_not_understood_is_quoted(text: str) -> None:
    with pytest.raises(MeasurementFailed, match=r"answer is not understood"):
        fio.row(Case("fio:io_uring", 4096, 8, 1, "random"), text, cold=False)


def test_fio_is_never_asked_to_write() -> None:
    settings = IoSettings(pattern=("random", "sequential"), cold=True, threads=(2, 4))
    engines = set()
    for case in fio.cases(settings):
        command = fio.command(case, FILE, settings)
        words = dict(word.removeprefix("--").split("=", 1) for word in command if "=" in word)
        assert "--readonly" in command
        assert words["rw"] == {"random": "randread", "sequential": "read"}[case.pattern]
        assert words["allow_file_create"] == "0"
        assert words["invalidate"] == "1"
        assert words["filename"] == "/data/a\\:b"
        assert words["direct"] == ("0" if case.mech == "fio:psync-buffered" else "1")
        engines.add(case.mech.removeprefix("fio:"))
    assert engines == set(ENGINES)


def test_where_fio_is_missing_or_has_nothing_to_do_there_is_a_remark(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert fio.refusal(IoSettings(), FILE) == ""
    assert fio.refusal(SETTINGS, FILE) == "fio is not run: fio is not installed"
    (tmp_path / "fio").write_text("#!/bin/sh\n")
    (tmp_path / "fio").chmod(0o755)
    assert fio.refusal(SETTINGS, FILE) == ""
    on_gpu = IoSettings(external=("fio",), dest=("cuda:0",))
    assert fio.refusal(on_gpu, FILE) == "fio is not run: it has nothing to measure for --dest cuda:0"
    refusal = fio.refusal(SETTINGS, Target("s3://a/b", "s3://a/b", None))
    assert refusal == "fio is not run: it reads files, and s3://a/b is none"


def test_a_fio_that_fails_is_a_row_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fio").write_text("#!/bin/sh\necho 'fio: the disk is on fire' >&2\nexit 3\n")
    (tmp_path / "fio").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    rows = run(SETTINGS, str(tmp_path / "file"), lambda *_: None).rows
    assert len(rows) == len(ENGINES)
    assert {row.note for row in rows} == {"ended with status 3: fio: the disk is on fire"}


@needs_fio
@pytest.mark.parametrize("cold", [False, True])
def test_fio_s_rows_stand_beside_the_others(tmp_path: Path, cold: bool) -> None:
    file = tmp_path / "file"
    content = np.random.default_rng(0).bytes(64 << 20)
    file.write_bytes(content)
    settings = msgspec.structs.replace(SETTINGS, mech=("uring",), bs_bytes=(65536,), cold=cold)
    rows = run(settings, str(file), lambda *_: None).rows
    assert [row.mech for row in rows] == ["uring", *(f"fio:{engine}" for engine in ENGINES)]
    for row in rows[1:]:
        assert row.iops > 0, row.note
        assert row.cpu_us_per_op > 0 or "too few" in row.note
        assert row.path_taken.startswith("fio ")
        assert row.p99_us is not None
        assert ("page cache" in row.path_taken) == (row.mech == "fio:psync-buffered")
    assert file.read_bytes() == content
