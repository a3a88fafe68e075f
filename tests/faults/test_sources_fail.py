"""A source that fails: every trainer is told what went wrong, in the source's own words, and nobody hangs."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import psutil
import pytest
from tests.faults.conftest import Trainer, each_waits_for, eventually
from tests.faults.sources import make

import penstock

pytestmark = pytest.mark.whole


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file that opens the source's gate when it is made."""
    return tmp_path / "gate"


def joined(trainers: list[Trainer], gate: Path) -> None:
    """Let the source go on to where it fails once all trainers read."""
    each_waits_for(trainers, "joined")
    eventually(lambda: [t.state for t in penstock.feeds()[0].trainers] == ["reading"] * len(trainers))
    gate.touch()


@pytest.mark.parametrize(("how", "workers"), [("attach", 2), ("share", 0)])
def test_a_dataset_that_raises_is_reported_to_every_trainer_with_its_traceback(feed, train, gate, how, workers):
    source = {"workers": workers, "bad": 123, "gate": str(gate)}
    if how == "attach":
        feeder = feed("loader", source=source, window=100_000)
        trainers = [train(torch=True), train(batch_size=64, torch=True)]
    else:
        order = {"source": {"kind": "loader", **source}, "options": {"linger": 1.0}, "forks_feeders": True}
        trainers = [train(batch_size=size, torch=True, **order) for size in (7, 64, 7)]
    joined(trainers, gate)
    for trainer in trainers:
        error = trainer.fails("SourceError", "ValueError", "sample 123 cannot be decoded")
        assert "__getitem__" in error["traceback"]
        assert "sources.py" in error["traceback"]
        assert error["message"].count("sample 123 cannot be decoded") <= 3
        assert trainer.wait() == 0
        assert 123 not in trainer.ids(0)
    if how == "attach":
        assert feeder.wait() == 3


@pytest.mark.parametrize("what", ["shape", "type"])
def test_batches_that_change_midway_are_an_error_that_names_the_leaf(clean, serve, train, gate, what):
    serve(make("changing", what=what, gate=str(gate)), window=100_000)
    trainers = [train(batch_size=5), train(batch_size=None)]
    joined(trainers, gate)
    for trainer in trainers:
        now = "<f8 of shape (…, 3)" if what == "shape" else "<f4"
        changed = "leaf batch['x']", "numpy <f8 of shape (…, 2) before", now
        trainer.fails("BlockChanged", "sample 40", *changed, "whole_batches=True")
        assert trainer.ids(0) == list(range(40))


def test_a_block_larger_than_the_window_is_an_error_with_both_sizes_and_the_remedy(clean, serve, train):
    serve(make("rows", width=10_000), window=65_536)
    error = train().fails("BlockTooLarge", "65,536 bytes", 'window="1MiB"')
    assert re.search(r"100,(096|160) bytes \(10 samples\)", error["message"])


@pytest.mark.parametrize("how", ["attach", "share"])
def test_a_loader_worker_that_is_killed_is_reported_to_every_trainer(feed, train, how):
    source = {"workers": 2, "samples": 4000}
    if how == "attach":
        pid = feed("loader", source=source, window=100_000).pid
        trainers = [train(delay_s=0.005, torch=True) for _ in range(2)]
    else:
        order = {"source": {"kind": "loader", **source}, "options": {"linger": 1.0, "window": 100_000}}
        trainers = [train(delay_s=0.005, torch=True, forks_feeders=True, **order) for _ in range(2)]
        pid = trainers[0].wait_for("joined")["joined"]
    each_waits_for(trainers, "epoch", 5)
    os.kill(eventually(psutil.Process(pid).children)[0].pid, signal.SIGKILL)
    for trainer in trainers:
        error = trainer.fails("SourceError")
        # Torch's words where it waited for a batch, ours where it was just receiving one.
        assert re.search("killed by signal: Killed|exited unexpectedly|was ended: Killed", error["message"])
        trainer.ids(0)


def test_a_make_loader_that_raises_is_reported_to_all_and_a_later_call_succeeds(train, tmp_path, feeds_directory):
    source = {"kind": "failing", "message": "no such bucket", "unless": str(tmp_path / "mended")}
    failed = [train(source=source, options={"linger": 0.0}, forks_feeders=True) for _ in range(3)]
    for trainer in failed:
        error = trainer.fails("SourceError", "RuntimeError: no such bucket")
        assert "in failing" in error["traceback"]
        assert "penstock/feed" not in error["traceback"]
        assert trainer.wait() == 0
    assert not list(feeds_directory.iterdir())
    (tmp_path / "mended").touch()
    train(source=source, options={"linger": 0.0}, forks_feeders=True).has_all(1000, 2)


def test_a_source_without_samples_is_an_error_not_a_hang(clean, serve, train, gate):
    serve(make("empty", gate=str(gate)))
    trainers = [train(), train(batch_size=None)]
    joined(trainers, gate)
    for trainer in trainers:
        trainer.fails("SourceError", "gave no sample in cycle 0")


def test_under_share_a_source_without_samples_is_an_error_not_a_hang(train):
    train(source={"kind": "empty", "gate": ""}, options={"linger": 0.0}).fails("SourceError", "gave no sample")
