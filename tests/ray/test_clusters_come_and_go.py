"""Clusters that are not there, come, lose their head, and go: only the speed changes."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import closing

import numpy as np
import pytest
from tests.ray.clusters import wait_until_gone

import penstock
from penstock.contracts import Cursor
from penstock.sources.remote import workers
from penstock.sources.remote.remote_source import RemoteSource

LEARNS_SOON = {"RAY_gcs_rpc_server_reconnect_timeout_s": "3"}
"""Ray ends after 3 s without its head, instead of 60."""


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """A port that is free, at which a feed looks for a cluster."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    return port


def test_a_cluster_that_comes_later_is_used_until_its_raylet_here_dies(new_cluster, training, port):
    run = training()
    run.is_loaded_by_the_feeder("no Ray head answers")
    run.goes_on()
    cluster = new_cluster([{}], port=port)
    run.is_made_by(1, 1)
    run.goes_on()
    os.kill(cluster.raylet, signal.SIGKILL)
    run.is_loaded_by_the_feeder()
    run.goes_on()
    run.end()


def test_a_head_that_is_frozen_holds_up_no_feed_but_one_across_machines(monkeypatch, capfd):
    monkeypatch.setattr(workers, "_CONNECTS_S", 3600.0)  # who waited for it would never have a batch
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{frozen.getsockname()[1]}")
        loader = penstock.ArraySource({"id": np.arange(100)}, batch_size=10)
        for cycle in range(2):  # as each feeder does that replaces one
            source = RemoteSource(loader, loader, None, segments=None, seed=0)
            with closing(source):
                ids = [int(i) for block in source.open(Cursor(cycle, 0)) for i in block.tree["id"]]
                assert sorted(ids) == list(range(100))
                assert "it is being connected" in source.description
    assert not capfd.readouterr().err


def test_a_feed_whose_clusters_head_dies_goes_on_alone_and_uses_the_next_one_until_that_is_shut_down(
    new_cluster, training, port, monkeypatch
):
    cluster = new_cluster([{}], port=port, **LEARNS_SOON)
    with monkeypatch.context() as patch:
        for name, value in LEARNS_SOON.items():
            patch.setenv(name, value)
        run = training()
    run.is_made_by(1, 1)
    os.kill(cluster.gcs, signal.SIGKILL)
    run.goes_on()
    run.is_loaded_by_the_feeder()
    run.goes_on()
    cluster.close()
    cluster = new_cluster([{}], port=port)
    run.is_made_by(1, 1)
    run.goes_on()
    cluster.close()
    run.is_loaded_by_the_feeder()
    run.goes_on()
    run.end()


def test_a_feeder_that_is_killed_while_the_head_is_dead_leaves_nothing_behind(new_cluster, training):
    cluster = new_cluster([{}], **LEARNS_SOON)
    run = training()
    run.is_made_by(1, 1)
    left = [run.bridge, *cluster.makers()]
    os.kill(cluster.gcs, signal.SIGKILL)
    run.goes_on()
    os.kill(run.feeder, signal.SIGKILL)
    wait_until_gone(*left)
    run.goes_on()
    assert not cluster.makers()
    run.end()


def test_a_feeder_that_is_killed_leaves_nothing_behind_and_the_next_one_uses_the_cluster(cluster, training):
    run = training()
    run.is_made_by(2, 2)
    left = [run.bridge, *cluster.makers()]
    assert len(left) == 3
    os.kill(run.feeder, signal.SIGKILL)
    wait_until_gone(*left)
    run.is_made_by(2, 2)
    run.end()


def test_a_trainer_with_another_cluster_joins_the_feed_that_runs(cluster, training, train, monkeypatch):
    run = training()
    run.is_made_by(2, 2)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    joins = train(source=run.settings, options=run.options, epochs=1)
    assert joins.wait_for("joined")["joined"] == run.feeder
    joins.has_all(run.samples)
    run.end()
