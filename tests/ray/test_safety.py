"""Clusters that let everybody in are not used, unless that is said; one with a token is used by who has it."""

from __future__ import annotations

import pytest

EVERYWHERE = "127.0.0.2"
"""Ray listens everywhere if its nodes have this address, as with any but 127.0.0.1."""


@pytest.fixture
def trains(train, shard):
    """Start a trainer of a feed of its own."""

    def start(name):
        source = {"kind": "records", "folder": shard, "pause_s": 0.001}
        options = {"linger": 0.2, "workers": "ray"}
        return train(name=name, source=source, options=options, epochs=1, batch_size=32)

    return start


def test_a_cluster_that_everybody_reaches_is_refused_unless_it_is_said_to_be_open(
    new_cluster, trains, monkeypatch
):
    cluster = new_cluster([{}], address=EVERYWHERE)
    words = (
        f"the Ray cluster at {EVERYWHERE} lets everybody who reaches it run programs as you",
        "RAY_AUTH_MODE=token",
    )
    trains("refused").fails("SourceError", *words, "PENSTOCK_RAY_OPEN=1")
    assert not cluster.makers()
    monkeypatch.setenv("PENSTOCK_RAY_OPEN", "1")
    accepted = trains("accepted")
    accepted.has_all(400, 1)
    assert "the Ray cluster makes the blocks: 1 worker on 1 node" in accepted.output


def test_a_cluster_with_a_token_is_used_by_who_has_that_token_only(new_cluster, trains, monkeypatch):
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 40}
    cluster = new_cluster([{}], address=EVERYWHERE, **token)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "b" * 40)
    with_another = trains("with another")
    with_another.has_all(400, 1)
    assert "AuthenticationError" in with_another.output
    assert not cluster.makers()
    monkeypatch.setenv("RAY_AUTH_TOKEN", token["RAY_AUTH_TOKEN"])
    with_this = trains("with this")
    with_this.has_all(400, 1)
    assert "the Ray cluster makes the blocks: 1 worker on 1 node" in with_this.output
