"""Other tools beside the mechanisms: what they are asked, and what is understood of their answers.

``recorded/`` holds answers: fio's own (3.33), gdsio's as NVIDIA's guide prints it, spdk_nvme_perf's as
issues of SPDK quote it, nvm-block-bench's as its source prints it.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from penstock.bench.io.external import ENGINES, TOOLS, Bam, Fio, Gdsio, Spdk, Tool, installed
from penstock.bench.io.plan import Case, IoSettings
from penstock.bench.io.run import run
from penstock.bench.io.target import Target
from penstock.bench.measure.pool import Answer, MeasurementFailed
from penstock.io.advice.measurements import Measurement

RECORDED = Path(__file__).parent / "recorded"
FILE = Target("/data/a:b", "/data/a:b", 1 << 30)
SETTINGS = IoSettings(
    mech=(), bs_bytes=(4096,), qd=(8,), threads=(2,), runtime_s=0.3, warm_up_s=0.1, external=("fio",)
)
needs_fio = pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")


def row_of(tool: Tool, file: str, case: Case, cpu_s: float = 0.0, settings: IoSettings = SETTINGS) -> Measurement:
    return tool.row(case, Answer((RECORDED / file).read_text(), cpu_s), settings, cold=False)


def test_fio_s_answer_is_a_row() -> None:
    job = json.loads((RECORDED / "fio.json").read_text())["jobs"][0]
    row = row_of(Fio(), "fio.json", Case("fio:psync", 4096, 2, 2, "random"))
    assert row.iops == pytest.approx(job["read"]["iops"], rel=0.01)
    assert row.mb_s == pytest.approx(job["read"]["io_bytes"] / job["read"]["runtime"] / 1e3, rel=0.01)
    cpu_s = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000
    assert row.cpu_us_per_op == pytest.approx(1e6 * cpu_s / job["read"]["total_ios"], rel=0.01)
    assert row.cores_busy == pytest.approx(row.cpu_us_per_op * row.iops / 1e6, rel=0.01)
    assert row.p50_us == job["read"]["lat_ns"]["percentile"]["50.000000"] / 1e3
    assert row.path_taken == "fio 3.33, psync, O_DIRECT, 2 jobs"


def test_gdsio_s_answer_is_a_row() -> None:
    row = row_of(Gdsio(), "gdsio.txt", Case("gdsio:GPUD", 1 << 20, 8, 8, "sequential", "cuda:2"), cpu_s=60.0)
    assert row.mb_s == pytest.approx(6.524658 * 2**30 / 1e6, rel=0.01)
    assert row.iops == pytest.approx(799606 / 119.679102, rel=1e-4)
    assert row.cpu_s_per_gib == pytest.approx(60 / (799606 / 1024), rel=1e-3)
    assert row.p99_us is None
    assert "mean latency 1197 us" in row.note
    assert "XferType GPUD" in row.path_taken
    assert not row.copy_included


def test_spdk_s_answer_is_a_row() -> None:
    row = row_of(Spdk(), "spdk.txt", Case("spdk:nvme", 4096, 64, 1, "random"))
    assert row.iops == pytest.approx(176907.23, rel=1e-4)
    assert row.mb_s == pytest.approx(691.04 * 2**20 / 1e6, rel=1e-3)
    assert (row.p50_us, row.p99_us, row.p999_us) == (6.623, 10.407, 31.833)
    assert row.cores_busy == 1.0
    assert "not the file" in row.note


def test_bam_s_answer_is_a_row() -> None:
    row = row_of(Bam(), "bam.txt", Case("bam:block", 4096, 128, 131072, "random", "cuda:0"), cpu_s=0.5)
    assert (row.iops, row.gpu_threads, row.runtime_s) == (655360, 131072, 0.2)
    assert "not the file" in row.note


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
@pytest.mark.parametrize("text", ["", "{}", '{"jobs": []}', "Segmentation fault", "ops: 0 total_time 0 secs"])
def test_an_answer_that_is_not_understood_is_quoted(tool: Tool, text: str) -> None:
    case = Case(f"{tool.name}:io_uring", 4096, 8, 1, "random")
    with pytest.raises(MeasurementFailed, match=r"answer is not understood"):
        tool.row(case, Answer(text, 0.0), SETTINGS, cold=False)


def test_fio_is_never_asked_to_write() -> None:
    settings = IoSettings(pattern=("random", "sequential"), cold=True, threads=(2, 4))
    engines = set()
    for case in Fio().cases(settings):
        command = Fio().command("fio", case, FILE, settings)
        words = dict(word.removeprefix("--").split("=", 1) for word in command if "=" in word)
        assert "--readonly" in command
        assert words["rw"] == {"random": "randread", "sequential": "read"}[case.pattern]
        assert words["allow_file_create"] == "0"
        assert words["invalidate"] == "1"
        assert words["filename"] == "/data/a\\:b"
        assert words["direct"] == ("0" if case.mech == "fio:psync-buffered" else "1")
        engines.add(case.mech.removeprefix("fio:"))
    assert engines == set(ENGINES)


def test_gdsio_is_never_asked_to_write() -> None:
    settings = IoSettings(pattern=("random", "sequential"), dest=("host", "cuda:3"))
    cases = list(Gdsio().cases(settings))
    assert {(case.mech, case.dest) for case in cases} == {
        ("gdsio:CPUONLY", "host"), ("gdsio:GPUD", "cuda:3"), ("gdsio:CPU_GPU", "cuda:3"),
    }  # fmt: skip
    for case in cases:
        command = Gdsio().command("gdsio", case, FILE, settings)
        assert command[command.index("-I") + 1] in {"0", "2"}


def test_spdk_and_bam_say_why_they_do_not_run_and_find_what_they_can_read(tmp_path: Path) -> None:
    assert "bound to vfio-pci" in Spdk(tmp_path).refusal(FILE)
    for name, kind in (("0000:86:00.0", "0x010802"), ("0000:01:00.0", "0x030200")):
        device = tmp_path / "vfio-pci" / name
        device.mkdir(parents=True)
        (device / "class").write_text(f"{kind}\n")
    assert Spdk(tmp_path).refusal(FILE) == ""
    (case,) = Spdk(tmp_path).cases(SETTINGS)
    command = Spdk(tmp_path).command("spdk_nvme_perf", case, FILE, SETTINGS)
    assert "trtype:PCIe traddr:0000:86:00.0" in command
    assert command[command.index("-w") + 1] == "randread"
    assert "BaM's kernel module" in Bam(tmp_path / "libnvm0").refusal(FILE)
    assert Bam(tmp_path).refusal(FILE) == ""


def test_a_tool_that_is_missing_or_has_nothing_to_do_is_a_remark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = IoSettings(external=("fio", "gdsio"), dest=("cuda:0",))
    monkeypatch.setenv("PATH", str(tmp_path))
    tools, remarks = installed(IoSettings(external=("fio",)), FILE)
    assert (tools, remarks) == ({}, ["fio is not run: fio is not installed"])
    for name in ("fio", "gdsio"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    tools, remarks = installed(settings, FILE)
    assert list(tools) == ["gdsio"]
    assert remarks == ["fio is not run: it has nothing to measure for --dest cuda:0"]
    tools, remarks = installed(settings, Target("s3://a/b", "s3://a/b", None))
    assert remarks == [f"{name} is not run: it reads files, and s3://a/b is none" for name in ("fio", "gdsio")]


def test_a_tool_that_fails_is_a_row_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    settings = IoSettings(
        mech=("uring",), bs_bytes=(65536,), qd=(8,), threads=(2,), runtime_s=0.2, warm_up_s=0.0, external=("fio",),
        cold=cold,
    )  # fmt: skip
    rows = run(settings, str(file), lambda *_: None).rows
    assert [row.mech for row in rows] == ["uring", *(f"fio:{engine}" for engine in ENGINES)]
    for row in rows[1:]:
        assert row.iops > 0, row.note
        assert row.cpu_us_per_op > 0 or "too few" in row.note
        assert row.path_taken.startswith("fio ")
        assert row.p99_us is not None
        assert ("page cache" in row.path_taken) == (row.mech == "fio:psync-buffered")
    assert file.read_bytes() == content
