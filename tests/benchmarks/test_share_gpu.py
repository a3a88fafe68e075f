"""The GPU benchmark, tried without a GPU: its script, its counts, its claims. No test asserts a speed."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.gpu import copies, why
from benchmarks.gpu.claims import gpu_claims
from benchmarks.gpu.command import whole_cores
from benchmarks.gpu.mps import main as tries_mps
from benchmarks.gpu.run import ARMS, Measured, Settings, bursts_of, cases
from benchmarks.share import tensorsocket
from benchmarks.share.result import Result
from benchmarks.share.workload import jpegs
from tests.benchmarks.reports import report_of
from tests.fakes.mps.fake_mps import FakeMps
from tests.fakes.nvml.fake_gpus import FakeGpus

from penstock.gpus.gpm import Activity, Meter
from penstock.gpus.nvml import nvml
from penstock.memory.gpu_ring import _PIECE_BYTES

pytestmark = pytest.mark.whole

IMAGES_BYTES = 64 * 224 * 224 * 3
LABELS_BYTES = 64 * 8


def measured(tmp_path: Path, trainers: int, *options: str) -> dict[str, Any]:
    short = ["--seconds", "0.3", "--repeats", "1", "--window", "64MiB"]
    words = ["--device", "cpu", "--trainers", str(trainers), *short, *options]
    return report_of("gpu", tmp_path / "measured.json", *words)


def crossed(report: dict[str, Any]) -> dict[tuple[str, str], float]:
    """Bytes to the device for each block, all trainers together."""
    results = {(one["cell"]["workload"], one["cell"]["arm"]): one for one in report["measured"]}
    for (_, arm), one in results.items():
        if arm == "tensorsocket" and not tensorsocket.PYTHON.exists():
            assert one["cell"]["note"] == tensorsocket.NOT_INSTALLED
            continue
        assert one["cell"]["finished"], one
        assert min(one["cell"]["batches_per_s"]) > 0
    return {which: one["host_to_device_bytes"] for which, one in results.items() if one["cell"]["finished"]}


def test_blocks_from_memory_are_measured_and_their_bytes_counted(tmp_path: Path) -> None:
    report = measured(tmp_path, 2, "--blocks", "128KB", "--no-jpeg")
    found = crossed(report)
    wanted = {"separate": 2, "host ring": 2, "GPU ring": 1, "device copies": 0}
    for arm, times in wanted.items():
        assert found.pop(("128KB", arm)) == pytest.approx(times * 131_072, rel=0.05), arm
    for nbytes in found.values():  # TensorSocket's, where it is installed
        assert nbytes == 131_072
    claims = {claim["name"]: claim["measured"] for claim in report["claims"]}
    assert claims["gpu-trainer-cpu"] is not None
    assert (claims["tensorsocket-128KB"] is None) == (not tensorsocket.PYTHON.exists())


def test_images_are_loaded_and_trained_on_and_their_bytes_counted(tmp_path: Path) -> None:
    simplejpeg = pytest.importorskip("simplejpeg")
    images = tmp_path / "images"
    images.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    (images / "one.jpg").write_bytes(simplejpeg.encode_jpeg(pixels))
    words = (
        "--blocks",
        "",
        "--data",
        str(images),
        "--width",
        "1",
        "--warm-up",
        "2",
        "--arms",
        ",".join(ARMS[:-1]),
    )
    found = crossed(measured(tmp_path, 1, *words))
    arms = ("separate", "host ring", "GPU ring")
    assert {*found} == {(what, arm) for what in ("JPEG", "training") for arm in arms}
    for which, nbytes in found.items():
        # One batch is copied ahead, in the time measured or before it: n batches are counted with n - 1 to n + 1.
        missed = abs(nbytes / (IMAGES_BYTES + LABELS_BYTES) - 1)
        assert missed <= 1, which
        # A feeder with a ring on a GPU may be asked in the middle of a block, which is copied in pieces.
        pieces = (*range(_PIECE_BYTES, IMAGES_BYTES, _PIECE_BYTES), IMAGES_BYTES) if which[1] == "GPU ring" else ()
        ahead = [1.0, *(nbytes / (IMAGES_BYTES + LABELS_BYTES) for nbytes in pieces)]
        batches = [part / missed if missed > 1e-9 else 0.0 for part in ahead]
        assert any(count == pytest.approx(round(count)) for count in batches), which


def one(workload: str, arm: str, trainers: int, repeat: int, **fields: Any) -> Measured:
    of_cell = {"samples_per_s": (1.0,) * trainers, **fields}
    device_bytes = of_cell.pop("device_bytes", None)
    result = Result(workload, arm, trainers, repeat, finished=True, **of_cell)
    return Measured(result, block_bytes=100, device_bytes=device_bytes)


def test_a_claim_is_the_worst_cases_median_of_ratios_within_a_repeat() -> None:
    found = [
        one("10MB", arm, k, repeat, samples_per_s=(rate, 9e9), trainer_us_per_batch=us, device_bytes=int(100 * k))
        for repeat in range(3)
        for arm, k, rate, us in (
            ("GPU ring", 1, 300.0, 90.0),
            ("GPU ring", 4, 150.0 + repeat, 200.0),
            ("tensorsocket", 1, 100.0, 5.0),
            ("tensorsocket", 4, 100.0, 5.0),
            ("device copies", 1, 1.0, 80.0),
            ("device copies", 4, 1.0, 30.0),
        )
    ]
    for arm, rate in (("GPU ring", 36.0), ("separate", 10.0)):
        found.append(one("training", arm, 4, 0, samples_per_s=(rate,) * 4))
    rows = {row.name: row for row in gpu_claims(found)}
    assert (rows["tensorsocket-10MB"].measured, rows["tensorsocket-10MB"].spread) == (1.51, (1.5, 1.52))
    assert (rows["gpu-trainer-cpu"].measured, rows["gpu-trainer-cpu"].met) == (170.0, False)
    assert (rows["gpu-memory"].measured, rows["gpu-memory"].met) == (4.0, False)
    assert (rows["training-runs-4-GPU"].measured, rows["training-runs-4-GPU"].met) == (3.6, True)
    assert rows["training-runs-4-host"].met is None


def test_a_repeat_measures_what_is_claimed_and_an_arm_its_own_number_of_trainers() -> None:
    settings = Settings("cpu", (1, 4), 2, 1.0, 1, again=("separate",))
    planned = cases([jpegs("images", 1)], settings, ["separate", "GPU ring", "tensorsocket:4"], "train")
    found = [(case.trainers, case.arm, repeat) for case, repeat in planned]
    first = [
        (1, "separate", 0),
        (1, "GPU ring", 0),
        (4, "separate", 0),
        (4, "GPU ring", 0),
        (4, "tensorsocket", 0),
    ]
    assert found == [*first, (4, "separate", 1)]


def test_bursts_are_counted_whole() -> None:
    times = [burst + i / 1000 for burst in range(10) for i in range(8)]
    assert bursts_of(times, 5.5) == pytest.approx(8.0)
    assert bursts_of(times[:9], 5.0) == pytest.approx(8.0)
    assert bursts_of(times[:8], 5.0) == bursts_of([], 5.0) == 0


def test_cpus_are_this_processs() -> None:
    assert {*whole_cores(1)} < {*whole_cores(10_000)} == os.sched_getaffinity(0)


def test_a_feed_with_clients_of_a_daemon_is_tried_and_the_daemon_ended(
    tmp_path: Path, fake_gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeMps(tmp_path / "mps", str(tmp_path), fake_gpus)
    for name in ("FAKE_MPS", "PATH"):
        monkeypatch.setenv(name, fake.environment[name])
    tries_mps(tmp_path / "told.json", "cpu")
    told = json.loads((tmp_path / "told.json").read_text())
    assert [*told] == ["feeder among the clients", "feeder outside"]
    for session in told.values():
        for step in ("A at first", "B at first", "B after A was killed", "C, which joined then", "B beside C"):
            assert session[step]["right"], (step, session)
            assert session[step]["way"] == "GPU ring"
    assert len(fake.daemons()) == 2
    assert [each["command"] for each in fake.asked() if "command" in each].count("quit -t 5") == 2


def test_what_fails_of_a_batchs_costs_is_told_and_the_rest_measured(tmp_path: Path) -> None:
    why.main(tmp_path / "why.json", "cpu", 0.1, ["64KB"])
    told = json.loads((tmp_path / "why.json").read_text())
    assert "failed" in told["event wait"]
    assert {case["arm"] for case in told["cases"]} >= {"host ring", "GPU ring", "paced as the GPU ring"}
    assert {*told["beyond the paced control"]} == {"host ring, 64KB", "GPU ring, 64KB"}
    copies.main(tmp_path / "copies.json", "cpu", 0.01)
    assert min(json.loads((tmp_path / "copies.json").read_text())["memfd, small pages"]["GBps"]) > 0


def metered(uuid: str) -> Activity:
    meter = Meter(uuid)
    meter.begin()
    meter.end()
    return meter.activity


def test_the_gpu_tells_how_busy_it_was_and_what_came(fake_gpus: FakeGpus) -> None:
    seen = metered(fake_gpus.add(gpm={"2": 75.0, "21": 100.0}))
    assert (seen.sm_active, seen.received_bytes, seen.note) == (0.75, round(seen.seconds * 100 * 2**20), "")
    assert not importlib.import_module("pynvml").samples


def test_what_the_gpu_does_not_tell_is_said(fake_gpus: FakeGpus) -> None:
    seen = metered(fake_gpus.add(gpm=None))
    assert (seen.sm_active, seen.received_bytes, seen.note) == (None, None, "GPM: Not Supported")
    seen = metered(fake_gpus.add(gpm={"2": 75.0}))
    assert (seen.sm_active, seen.received_bytes, seen.note) == (0.75, None, "PCIe: NVML does not report it")
    fake_gpus.refuse("nvmlInitWithFlags", 9)
    nvml.cache_clear()
    assert metered("GPU-1").note.startswith("NVML cannot be used: Driver Not Loaded")
    assert metered("").note == "no GPU"
