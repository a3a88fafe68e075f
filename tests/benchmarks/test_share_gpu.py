"""The GPU benchmark, tried without a GPU: its script, its counts, its claims. No test asserts a speed."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.gpu.claims import gpu_claims
from benchmarks.gpu.run import Measured
from benchmarks.share import tensorsocket
from benchmarks.share.result import Result
from tests.benchmarks.reports import report_of
from tests.fakes.nvml.fake_gpus import FakeGpus

from penstock.gpus.gpm import Activity, Meter
from penstock.gpus.nvml import nvml

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
    assert report["device_copy"][0]["nbytes"] == 131_072
    claims = {claim["name"]: claim["measured"] for claim in report["claims"]}
    assert claims["gpu-trainer-cpu"] is not None
    assert (claims["tensorsocket-128KB"] is None) == (not tensorsocket.PYTHON.exists())


def test_images_are_loaded_and_trained_on_and_their_bytes_counted(tmp_path: Path) -> None:
    simplejpeg = pytest.importorskip("simplejpeg")
    images = tmp_path / "images"
    images.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    (images / "one.jpg").write_bytes(simplejpeg.encode_jpeg(pixels))
    words = ("--blocks", "", "--data", str(images), "--width", "1", "--warm-up", "2", "--no-peers")
    found = crossed(measured(tmp_path, 1, *words))
    arms = ("separate", "host ring", "GPU ring")
    assert {*found} == {(what, arm) for what in ("JPEG", "training") for arm in arms}
    for which, nbytes in found.items():
        # One batch is copied ahead, in the time measured or before it: n batches are counted with n - 1 to n + 1.
        missed = abs(nbytes / (IMAGES_BYTES + LABELS_BYTES) - 1)
        assert missed <= 1, which
        assert missed == pytest.approx(0, abs=1e-9) or 1 / missed == pytest.approx(round(1 / missed)), which


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
    copy = [{"nbytes": 10_000_000, "ring_GBps": [9.0, 8.0, 10.0], "torch_GBps": [10.0, 10.0, 10.0]}]
    rows = {row.name: row for row in gpu_claims(found, copy)}
    assert (rows["tensorsocket-10MB"].measured, rows["tensorsocket-10MB"].spread) == (1.51, (1.5, 1.52))
    assert (rows["gpu-trainer-cpu"].measured, rows["gpu-trainer-cpu"].met) == (170.0, False)
    assert (rows["gpu-memory"].measured, rows["gpu-memory"].met) == (4.0, False)
    assert (rows["host-ring-copy-10000000"].measured, rows["host-ring-copy-10000000"].met) == (0.9, True)
    assert (rows["training-runs-4-GPU"].measured, rows["training-runs-4-GPU"].met) == (3.6, True)
    assert rows["training-runs-4-host"].met is None


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
