"""The accuracy benchmark trains on real feeds; what its figures are is not for a test."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from tests.benchmarks.reports import report_of

pytestmark = pytest.mark.whole
TOGETHER = ("together from the start", "together from the start too")


def test_all_arms_are_trained_with_each_seed_and_compared(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for folder in ("train/a", "train/b", "test/a", "test/b"):
        tmp_path.joinpath(folder).mkdir(parents=True)
        for i in range(70 if folder.startswith("train") else 100):
            cv2.imwrite(str(tmp_path / folder / f"{i}.jpg"), draw.integers(0, 256, (32, 32, 3), np.uint8))
    report, picture = tmp_path / "report.json", tmp_path / "picture.png"
    words = ["--data", tmp_path, "--seeds", "2", "--images", "140", "--epochs", "1", "--plot", picture]
    found = report_of("accuracy", report, *words)
    assert len(found["own"]) == 2
    joined = {f"joined at {part}% of a cycle" for part in (33, 67)}
    assert {*found["feeds"]} == {*TOGETHER, "there from the start", *joined}
    for arm in found["feeds"].values():
        assert len(arm["accuracies"]) == 2
        assert arm["difference"] == pytest.approx(arm["mean"] - np.mean(found["own"]))
    # Together they get the loader's own order, and so its very accuracy.
    for arm in TOGETHER:
        assert found["feeds"][arm]["accuracies"] == found["own"]
    assert picture.stat().st_size > 1000
