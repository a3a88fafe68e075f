"""What `penstock run --on` keeps to, whatever starts its jobs: as tests, for a subclass for each of these."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
from tests.forked import eventually
from tests.runs.running import UNWATCHED, Launch

from penstock.runs.stop import stop
from penstock.runs.store import Store

TRAIN = """
import os
import sys
import time
from pathlib import Path
import penstock

run = penstock.current_run()
print(f"run {os.environ['PENSTOCK_RUN_INDEX']} of {sys.argv[1:]}", flush=True)
penstock.log(loss=0.25)
Path(os.environ["PENSTOCK_RUN_FOLDER"], "made").write_text("by it" * 200_000)
sampled = Path(os.environ["PENSTOCK_RUN_FOLDER"]).parent / "series" / "sampler.points"
while "sampled" in sys.argv and not (sampled.exists() and b"host.cpus" in sampled.read_bytes()):
    time.sleep(0.01)
if "fail" in sys.argv:
    raise ValueError("as asked")
if "wait" in sys.argv:
    time.sleep(600)
"""
READS = """
import numpy as np
import penstock

def make():
    return penstock.ArraySource({"number": np.arange(40)}, batch_size=8)

loader = penstock.share(make, "numbers-of-a-job", batch_size=10, linger=0.5)
numbers = sorted(int(number) for batch in loader for number in batch["number"])
print("feeder", penstock.feeds()[0].pid, numbers == list(range(40)), flush=True)
"""
SPEC = """
groups:
  - name: readers
    command: reads.py
    repeats: 2
    feed: reads.py:make
    listeners: []
"""


class Elsewhere:
    """Tests of runs on a cluster.

    ``launch`` is a fixture that starts a `penstock run`. A subclass has the fixture ``there_with_python_path``:
    it takes a folder where nodes are to find modules first, and returns what ``there`` is.
    """

    on: ClassVar[str]

    @pytest.fixture
    def there(self, launch: Callable[..., Launch], tmp_path: Path) -> Callable[..., Launch]:
        for name, script in ("train.py", TRAIN), ("reads.py", READS), ("spec.yaml", SPEC):
            (tmp_path / name).write_text(script)
        return lambda *words, **environment: launch("--on", self.on, *words, **environment)

    def test_runs_there_have_the_records_that_they_would_have_here(self, there, tmp_path):
        both = there("-n", "2", "train.py", "sampled")
        assert both.wait() == 0, both.output + both.errors
        for place, record in enumerate(both.records()):
            assert (record.status, record.exit_code, record.reason) == ("finished", 0, "")
            assert record.began and record.seconds and record.index == place
            assert both.kept(place) == f"run {place} of ['sampled']\n"
            assert f"{record.name} | run {place} of" in both.output
            with Store.open(tmp_path / "store") as store:
                assert store.series(record.id)["loss"].values.tolist() == [0.25]
                assert {"run.cpu_s", "host.cpus"} <= {*store.names(record.id)}
                environment = store.environment(record.id)
                assert environment and environment["command"] == list(record.plan.command)
                assert (store.folder_of(record.id) / "files" / "made").read_text() == "by it" * 200_000

    def test_a_run_that_fails_there_is_a_failed_run_here_with_its_output(self, there):
        one = there(*UNWATCHED, "train.py", "fail")
        assert one.wait() == 1
        record = one.record()
        assert (record.status, record.exit_code, record.reason) == ("failed", 1, "ValueError: as asked")
        assert one.output.startswith("run 0 of ['fail']\nTraceback")
        assert one.kept() == one.output

    def test_runs_with_one_feed_go_to_one_node_and_share_it(self, there):
        both = there("--cpus", "1", "spec.yaml")
        assert both.wait() == 0, both.output + both.errors
        feeders = {line.partition(" | ")[2] for line in both.output.splitlines() if "feeder" in line}
        assert len(feeders) == 1 and feeders.pop().endswith(" True")

    def test_ctrl_c_here_ends_runs_there(self, there):
        both = there(*UNWATCHED, "-n", "2", "train.py", "wait")
        both.wait_until_said("#0 | run 0")
        both.wait_until_said("#1 | run 1")
        both.signal("SIGINT")
        assert both.wait() == 130
        assert [(run.status, run.exit_code, run.reason) for run in both.records()] == [
            ("killed", 130, "Ctrl-C")
        ] * 2
        assert "KeyboardInterrupt" in both.kept(0) and "KeyboardInterrupt" in both.kept(1)

    def test_runs_stop_ends_one_run_there_and_not_the_others(self, there, tmp_path):
        both = there(*UNWATCHED, "-n", "2", "train.py", "wait")
        both.wait_until_said("#0 | run 0")
        both.wait_until_said("#1 | run 1")
        with Store.open(tmp_path / "store") as store:
            first, second = store.runs()
            ((_, after),) = stop(store, [first.id])
            assert after.status == "killed" and after.reason.startswith("ended by ")
            assert store.run(second.id).status == "running"
            stop(store, [second.id])
        assert both.wait() == 1

    def test_runs_end_there_when_what_started_them_is_killed(self, there):
        one = there(*UNWATCHED, "train.py", "wait")
        one.wait_until_said("run 0")
        one.kill()
        assert one.record().status == "lost"  # and nothing is left, which the fixture sees to

    def test_a_detached_run_goes_on(self, there):
        launched = there(*UNWATCHED, "--detach", "train.py")
        assert launched.wait() == 0
        assert launched.output.split() == [launched.record().id]
        eventually(lambda: launched.record().status == "finished")
        assert launched.kept() == "run 0 of []\n"

    @pytest.mark.parametrize(
        ("option", "named"), [("--cpus", "--cpus 4096 --gpus 0"), ("--gpus", "--cpus 1 --gpus 4096")]
    )
    def test_more_than_any_node_has_is_refused_before_anything_starts(self, there, option, named):
        one = there(option, "4096", "train.py")
        assert one.wait() == 2
        assert named in one.errors and one.errors.count("\n") == 1
        assert one.records() == []

    def test_a_node_without_penstock_is_named(self, there_with_python_path, tmp_path):
        (tmp_path / "hides" / "penstock").mkdir(parents=True)
        (tmp_path / "hides" / "penstock" / "__init__.py").touch()
        one = there_with_python_path(tmp_path / "hides")(*UNWATCHED, "true")
        assert one.wait() == 1
        record = one.record()
        assert record.status == "failed" and record.began is None
        assert "needs" in record.reason and "No module named 'penstock.runs'" in record.reason
