"""``penstock schedule profile``: each run of a file is measured once, and what cannot be measured is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("penstock.schedule.jobs")
pytestmark = pytest.mark.whole

JOB = Path(__file__).parents[1] / "schedule" / "synthetic_job.py"
SPEC = f"""
machine: {{gpus: 2, simulated: true}}
groups:
  - name: jobs
    runs:
      - {{name: one, command: "{JOB} numpy 0.004 0.0002 0.01 400 1000"}}
      - {{name: other, command: "{JOB} numpy 0.004 0.0002 0.01 400 1000"}}
      - {{name: broken, command: broken.py}}
      - {{name: last, command: "{JOB} numpy 0.004 0.0002 0.01 400 500", after: one}}
      - {{name: needy, command: needy.py, after: one}}
"""


def test_runs_of_a_file_are_profiled_once(process: Callable[..., Any], tmp_path: Path):
    (tmp_path / "broken.py").write_text("import os; 1 / int(os.environ['CUDA_VISIBLE_DEVICES'])")
    (tmp_path / "needy.py").write_text("open('of-one')")
    (tmp_path / "jobs.yaml").write_text(SPEC)
    words = ("schedule", "profile", "jobs.yaml", "--store", str(tmp_path / "store"))
    first = process(*words, "--json", cwd=tmp_path)
    assert first.stderr == (
        "penstock: broken: failed before its first batch: ZeroDivisionError: division by zero\n"
        "penstock: needy: failed before its first batch: FileNotFoundError: [Errno 2] No such file or directory: "
        "'of-one'; it may need what those leave that come before it\n"
    )
    assert first.returncode == 1
    found: dict[str, Any] = json.loads(first.stdout)
    assert found["profiles"].keys() == {"one", "other", "last"}
    assert found["profiles"]["one"] == found["profiles"]["other"]  # one command, measured once
    assert found["contention"] > 0
    (tmp_path / "jobs.yaml").write_text(
        "".join(
            line for line in SPEC.splitlines(True) if not {"broken", "needy"} & {*line.replace(",", " ").split()}
        )
    )
    again = process(*words, cwd=tmp_path)
    assert (again.returncode, again.stderr) == (0, "")
    assert "one" in again.stdout and "synthetic" in again.stdout and "ρ = " in again.stdout
