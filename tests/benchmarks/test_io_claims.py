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
    iops = {mech: [_row(found, mech, i)["iops"] for i in (0, 1)] for mech in ("uring", "fio:io_uring")}
    ratios = sorted(one / other for one, other in zip(*iops.values(), strict=True))
    assert claims["uring-iops"]["spread"] == pytest.approx(ratios)


def _row(found: dict, mech: str, repeat: int) -> dict:
    rows = (row for row in found["rows"] if (row["mech"], row["repeat"]) == (mech, repeat))
    (row,) = (row for row in rows if row["bs_bytes"] == 4096)
    return row
