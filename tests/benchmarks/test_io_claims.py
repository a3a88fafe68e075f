"""The benchmark of reads beside fio: its script, tried shortly."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.benchmarks.reports import report_of

pytestmark = pytest.mark.whole


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
    ratios = sorted(
        _row(found, "uring", repeat)["iops"] / _row(found, "fio:io_uring", repeat)["iops"] for repeat in (0, 1)
    )
    assert claims["uring-iops"]["spread"] == pytest.approx(ratios)


def _row(found: dict, mech: str, repeat: int) -> dict:
    (row,) = (
        row for row in found["rows"] if (row["mech"], row["repeat"], row["bs_bytes"]) == (mech, repeat, 4096)
    )
    return row
