"""Deaths among unmodified scripts on one feed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.autosharing.running import Scripts, check_like
from tests.forked import Forked, ForkServer, eventually

import penstock


@pytest.fixture
def scripts(servers: dict[str, ForkServer], tmp_path: Path) -> Iterator[Scripts]:
    runs = Scripts(servers["torch"], tmp_path)
    yield runs
    runs.close()
    for feed in penstock.feeds():
        penstock.stop(feed.name)


WORDS = [["plain", "--pause", "0.1", "--batch-size", size] for size in ("4", "7")]


def two(scripts: Scripts) -> list[Forked]:
    """Start two with different batch sizes; return them in the middle of their first epoch."""
    first = scripts.start(0, "loops.py", *WORDS[0])
    eventually(lambda: "reads feed" in first.output or first.ended, "the first never read")
    second = scripts.start(1, "loops.py", *WORDS[1])
    eventually(lambda: "reads feed" in second.output or second.ended, "the second never read")
    return [first, second]


def test_runs_whose_feeder_is_killed_replace_it_whoever_started_it(scripts: Scripts):
    first, second = two(scripts)
    first.kill()  # it had started the feeder, and decided the rows of its blocks
    (feed,) = penstock.feeds()
    os.kill(feed.pid, signal.SIGKILL)
    assert second.wait() == 0, second.output
    assert feed.name in {each.name for each in penstock.feeds()}
    check_like(scripts.seen(1), scripts.alone(*WORDS[1]))


def test_a_run_that_is_killed_leaves_the_other_as_it_was(scripts: Scripts):
    first, second = two(scripts)
    second.kill()
    assert first.wait() == 0, first.output
    check_like(scripts.seen(0), scripts.alone(*WORDS[0]))
