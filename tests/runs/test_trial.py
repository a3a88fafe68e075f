"""What a trial counts of its copies."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.runs.record import RunPlan
from penstock.runs.store import Store
from penstock.runs.trial import TrialRunner

SCRIPT = """
import os, time
for _ in range(20):
    if not os.fork():
        while time.process_time() < 0.055: pass  # the kernel rounds their sums down to ticks
        os._exit(0)
    os.wait()
time.sleep(1.0)
"""


def test_cpu_time_of_children_too_brief_to_be_seen_counts(tmp_path: Path):
    with Store.open(tmp_path / "store") as store:
        plan = RunPlan(command=(sys.executable, "-c", SCRIPT), name="brief", directory=str(tmp_path))
        runner = TrialRunner(store, [plan], group="trial")
        assert [run.status for run in runner.run()] == ["finished"]
        assert runner.cpu_s >= 20 * 0.05
