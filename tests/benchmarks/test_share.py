"""The benchmark itself: every field is there, and its counts fit together. No test asserts a speed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.share import jpeg
from benchmarks.share.claims import claims
from benchmarks.share.command import share_command
from benchmarks.share.extras import CrowdResult, ImportResult, MemoryUse
from benchmarks.share.plan import Settings, cases
from benchmarks.share.result import Result
from benchmarks.share.run import Report
from benchmarks.share.workload import jpegs, synthetic

from penstock.runs.machine import describe

pytestmark = pytest.mark.whole

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "share.json"

QUICK = Settings(trainers=(1, 2, 8), blocks=("128KB",), jpeg=False, peers=False, seconds=0.4).quickly()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        feeds = folder / "feeds"
        feeds.mkdir(mode=0o700)
        patch.setenv("PENSTOCK_DIR", str(feeds))
        share_command(QUICK, None, folder / "share.json", folder / "share.png")
        assert not list(feeds.iterdir())
    assert (folder / "share.png").read_bytes().startswith(b"\x89PNG")
    report: dict[str, Any] = json.loads((folder / "share.json").read_text())
    return report


def test_every_case_is_measured_once_and_its_figures_fit_together(saved):
    found = {(result["arm"], result["trainers"]) for result in saved["cells"]}
    assert found == {(arm, k) for arm in ("penstock", "borrow", "separate", "copy") for k in (1, 2)}
    assert len(saved["cells"]) == len(found)
    for result in saved["cells"]:
        assert result["finished"]
        assert len(result["samples_per_s"]) == len(result["batches_per_s"]) == result["trainers"]
        for samples, batches in zip(result["samples_per_s"], result["batches_per_s"], strict=True):
            assert samples == pytest.approx(64 * batches, rel=1e-3)
        assert result["trainer_us_per_batch"] > 0
        assert result["pss_bytes"] > 0
        fed = result["arm"] in {"penstock", "borrow"}
        assert (result["latency_us"] is not None) <= fed
        assert fed or result["feeder_cpu_s"] == 0


def test_the_report_names_its_machine_and_settings_and_no_path(saved):
    assert saved["benchmark"] == "share"
    assert saved["settings"]["trainers"] == [1, 2]
    assert {"cpu", "cores", "date", "libraries", "penstock", "kernel"} <= set(saved["machine"])
    assert saved["workloads"][0]["folder"] == ""
    assert not any(private in json.dumps(saved) for private in (str(Path.home()), "/tmp"))


def test_every_claim_has_its_row(saved):
    rows = {row["name"]: row for row in saved["claims"]}
    assert set(rows) == {row.name for row in claims(_report([]))} | set(rows)
    assert rows["trainer-cpu"]["measured"] is not None
    assert rows["jpeg-each-4"]["measured"] is None
    for row in saved["claims"]:
        if row["measured"] is None:
            assert row["met"] is None
        else:
            assert row["spread"][0] <= row["measured"] <= row["spread"][1]


def test_memory_and_the_crowd_are_measured(saved):
    measured = {(use["trainers"], use["borrow"]) for use in saved["memory"]}
    assert measured == {(k, borrow) for k in (1, 2) for borrow in (False, True)}
    assert all(0 < use["ring_bytes"] <= use["window_bytes"] for use in saved["memory"])
    crowd = saved["crowd"]
    assert (crowd["finished"], crowd["lost"], crowd["repeated"]) == (crowd["trainers"], 0, 0)
    assert saved["imports"]["heavy"] == []


def test_a_claim_is_the_median_of_ratios_within_a_repeat():
    results = [
        Result("JPEG", arm, k, repeat, finished=True, samples_per_s=(rate,) * k)
        for repeat, (alone, shared) in enumerate([(100.0, 99.0), (200.0, 180.0), (50.0, 50.0)])
        for arm, k, rate in (("alone", 1, alone), ("penstock", 4, shared))
    ]
    rows = {row.name: row for row in claims(_report(results, repeats=3))}
    assert rows["jpeg-each-4"].measured == pytest.approx(0.99)
    assert rows["jpeg-each-4"].spread == pytest.approx((0.9, 1.0))
    assert rows["jpeg-each-4"].met is True
    assert rows["jpeg-each-8"].met is None


def test_a_claim_is_missed_when_samples_are_lost_or_torch_is_imported():
    report = _report([])
    report.crowd = CrowdResult(64, 100, 64, 1, 0, 1.0)
    report.imports = ImportResult((0.01,), ("torch",))
    report.memory = [MemoryUse(1, True, 100, 101, 0, (1,), 1)]
    rows = {row.name: row for row in claims(report)}
    assert [rows[name].met for name in ("crowd", "import", "memory-window")] == [False, False, False]


def test_jpeg_cases_alternate_what_is_compared(tmp_path):
    arms = [(case.arm, case.trainers) for case in cases(jpegs(str(tmp_path), 2), Settings(trainers=(1, 4)))]
    assert arms == [
        ("alone", 1),
        *((arm, 1) for arm in ("penstock", "borrow")),
        *((arm, 4) for arm in ("penstock", "borrow", "separate")),
    ]


def test_generated_images_go_through_the_loader(tmp_path):
    pytest.importorskip("simplejpeg")
    pytest.importorskip("torch")
    jpeg.generate(str(tmp_path), 3)
    images, labels = next(iter(jpeg.make_loader(str(tmp_path), workers=0, batch_size=4)))
    assert tuple(images.shape) == (4, 224, 224, 3)
    assert all(0 <= label < 3 for label in labels)


def _report(results: list[Result], repeats: int = 1) -> Report:
    settings, workloads = Settings(repeats=repeats), [synthetic("128KB", 2)]
    return Report(machine=describe(), settings=settings, workloads=workloads, results=results)
