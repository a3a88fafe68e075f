"""The feeder's end of the bridge: one that hangs or dies costs the feeder nothing but time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import BadSetting
from penstock.sources.order import Planned
from penstock.sources.remote import workers as module
from penstock.sources.remote.bridge import BlockTask, Connected, NotSafe
from penstock.sources.remote.maker import maker_spec_of
from penstock.sources.remote.status import ClusterStanding
from penstock.sources.remote.workers import NodesLost, NodeWorkers

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("new_pythons")]


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeWorkers]:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # where nobody is
    found = made()
    yield found
    found.close()


def made() -> NodeWorkers:
    source = penstock.ArraySource({"id": np.arange(100)}, batch_size=10)
    return NodeWorkers(maker_spec_of(source, source, None, 0), None, None)


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


@pytest.fixture
def bridges(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Have the next bridge, which is due at once, say what is given."""
    ends: list[Any] = []
    says: list[Any] = []

    def start_process(*_: Any) -> tuple[int, Any]:
        here, there = Pipe()
        ends.append(there)
        for message in says:
            there.send(message)
        return os.posix_spawn("/bin/sleep", ["sleep", "60"], {}), here

    def begin(workers: NodeWorkers, *messages: Any) -> None:
        says[:] = messages
        workers._lose_bridge("it has ended")
        workers._started_s = -module._AGAIN_S

    monkeypatch.setattr(module, "start_process", start_process)
    yield begin
    for each in ends:
        each.close()


def test_a_cluster_that_is_open_ends_a_feed_that_begins_and_is_named_once_to_one_that_runs(
    workers, bridges, capfd
):
    begins = made()
    bridges(begins, NotSafe("whoever reaches it"))
    with pytest.raises(BadSetting, match="whoever reaches it"):
        begins.usable()

    bridges(workers, ClusterStanding(0, why="no head"))
    assert not workers.usable()
    assert "(no head): this feeder loads by itself" in capfd.readouterr().err
    for _ in range(2):
        bridges(workers, NotSafe("whoever reaches it"))
        assert not workers.usable()
    said = capfd.readouterr().err
    assert said.count("(whoever reaches it): this feeder loads by itself") == said.count("\n") == 1
    with pytest.raises(NodesLost):
        workers.result(0)

    bridges(workers, Connected(None), ClusterStanding(2))
    assert workers.usable()
    assert "the Ray cluster makes the blocks" in capfd.readouterr().err


def test_a_head_that_answers_nothing_is_named_once(workers, bridges, capfd, monkeypatch):
    bridges(workers)
    assert not workers.usable()
    assert not capfd.readouterr().err
    monkeypatch.setattr(module, "_MOST_CONNECTING_S", 0.0)
    for _ in range(2):
        assert not workers.usable()
    assert capfd.readouterr().err.count("(it has not answered for 0 s): this feeder loads by itself") == 1
