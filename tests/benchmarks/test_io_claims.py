"""The benchmark of reads beside fio: its script, tried shortly."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from benchmarks.io import FIO, fio_command, fio_row
from tests.benchmarks.reports import report_of

from penstock.bench.io_plan import IoSettings
from penstock.io.measurements import Measurement

CASE = Measurement(mech="fio:psync", bs_bytes=4096, qd=2, threads=2, pattern="random")


def test_fio_s_answer_is_a_row() -> None:
    text = (Path(__file__).parent / "recorded" / "fio.json").read_bytes()  # of fio 3.33
    job = json.loads(text)["jobs"][0]
    row = fio_row(CASE, text)
    assert row.iops == pytest.approx(job["read"]["iops"], rel=0.01)
    cpu_s = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000
    assert row.cpu_us_per_op == pytest.approx(1e6 * cpu_s / job["read"]["total_ios"], rel=0.01)


@pytest.mark.parametrize("mech", FIO)
def test_fio_is_never_asked_to_write(mech: str) -> None:
    case = Measurement(mech=mech, bs_bytes=4096, qd=8, threads=1, pattern="random")
    command = fio_command(case, "/data/a:b", 1 << 30, IoSettings())
    words = dict(word.removeprefix("--").split("=", 1) for word in command if "=" in word)
    assert "--readonly" in command
    assert (words["rw"], words["allow_file_create"], words["filename"]) == ("randread", "0", "/data/a\\:b")
    assert words["direct"] == ("0" if mech == "fio:psync-buffered" else "1")


@pytest.mark.whole
@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
def test_every_target_is_measured_side_by_side(tmp_path: Path) -> None:
    options = ["--size", "128MiB", "--qd", "8", "--large-qd", "4", "--threads", "2", "--seconds", "0.2"]
    found = report_of("io", tmp_path / "measured.json", tmp_path, *options, "--repeats", "2")
    assert found["machine"]["cpu"]
    assert len(found["rows"]) == 2 * 2 * 8
    claims = {claim["name"]: claim for claim in found["claims"]}
    for name, claim in claims.items():
        assert claim["spread"][0] <= claim["measured"] <= claim["spread"][1], name
        assert (claim["met"] is None) == name.startswith("batch")
    iops = {mech: [_row(found, mech, i)["iops"] for i in (0, 1)] for mech in ("uring", "fio:io_uring")}
    ratios = sorted(one / other for one, other in zip(*iops.values(), strict=True))
    assert claims["uring-iops"]["spread"] == pytest.approx(ratios)


def _row(found: dict, mech: str, repeat: int) -> dict:
    rows = (row for row in found["rows"] if (row["mech"], row["repeat"]) == (mech, repeat))
    (row,) = (row for row in rows if row["bs_bytes"] == 4096)
    return row
