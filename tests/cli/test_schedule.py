"""``penstock schedule simulate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.errors import BadSetting

pytestmark = pytest.mark.whole

FEW = ("schedule", "simulate", "--trace", "synergy:6", "--gpus", "2", "--cores", "4", "--policy", "fifo,plan")


def test_policies_are_compared_with_and_without_sharing(tmp_path: Path) -> None:
    plot = tmp_path / "schedule.png"
    result = CliRunner().invoke(app, [*FEW, "--json", "--plot", str(plot)])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    rows = {(row["policy"], row["share"]): row["makespan_s"] for row in found["policies"]}
    assert len(rows) == 6 and rows["plan", "all"] < 0.8 * rows["plan", "none"] <= 0.8 * rows["fifo", "none"]
    assert min(rows.values()) >= found["least_makespan_s"]
    gains = [each["with_over_without"] for each in sorted(found["gains"], key=lambda each: each["rho"])]
    assert gains[-1] < 0.5 and all(gain <= 1.001 for gain in gains)
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_the_table_says_what_was_assumed() -> None:
    result = CliRunner().invoke(app, [*FEW, "--share", "none"])
    assert "6 jobs, 2 GPUs, 4 cores, ρ = " in result.output and "4 GiB of GPU memory" in result.output
    assert "plan, none" in result.output and "fifo, none" in result.output


@pytest.mark.parametrize(
    ("more", "error"),
    [
        (["--policy", "best"], "--policy best: 'best' is not one of fifo"),
        (["--share", "some"], "--share some: 'some' is not one of"),
        (["--mode", "mig"], "is not one of plain, mps"),
        (["--memory", "2GiB"], "needs more memory than a GPU of 2GiB has, less 5% (6 jobs do)"),
    ],
)
def test_what_cannot_be_is_one_error(more: list[str], error: str) -> None:
    result = CliRunner().invoke(app, [*FEW, *more])
    assert isinstance(result.exception, BadSetting) and error in str(result.exception)
