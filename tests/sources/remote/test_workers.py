"""The feeder's end of the bridge: one that hangs or dies costs the feeder nothing but time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import numpy as np
import pytest

import penstock
from penstock.sources.order import Planned
from penstock.sources.remote.bridge import BlockTask
from penstock.sources.remote.maker import commission_of
from penstock.sources.remote.workers import NodesLost, NodeWorkers

pytestmark = pytest.mark.whole


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeWorkers]:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # where nobody is
    source = penstock.ArraySource({"id": np.arange(100)}, batch_size=10)
    found = NodeWorkers(commission_of(source, source, None, 0), None, None)
    yield found
    found.close()


def test_a_bridge_that_takes_nothing_is_given_up(workers: NodeWorkers) -> None:
    assert not workers.usable()
    os.kill(workers.pid, signal.SIGSTOP)
    ids = np.arange(100_000)
    for number in range(3):
        workers.submit(BlockTask(number, Planned(0, len(ids), ids, None), 0, None))
    assert "takes no messages" in workers.standing.why
    with pytest.raises(NodesLost):
        workers.result(0)
    workers.settle()


def test_where_no_head_is_that_is_said(workers: NodeWorkers, capfd: pytest.CaptureFixture[str]) -> None:
    workers.wait()
    assert "no Ray head answers at 127.0.0.1:1: Connection refused" in workers.standing.why
    assert "this feeder loads by itself" in capfd.readouterr().err
    assert not workers.usable()


def test_a_bridge_that_is_killed_is_known_at_once(workers: NodeWorkers) -> None:
    assert not workers.usable()
    os.kill(workers.pid, signal.SIGKILL)
    until_s = time.monotonic() + 20
    while workers.standing.why == "it is being connected" and time.monotonic() < until_s:
        assert not workers.usable()
        time.sleep(0.01)
    assert not workers.standing.workers
    with pytest.raises(NodesLost):
        workers.submit(BlockTask(0, Planned(0, 1, np.arange(1), None), 0, None))
        workers.result(0)
