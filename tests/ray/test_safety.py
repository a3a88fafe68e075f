"""Clusters that let everybody in are not used, unless that is said; one with a token is used by who has it."""

from __future__ import annotations

import pytest

EVERYWHERE = "127.0.0.2"
"""Ray listens everywhere if its nodes have this address, as with any but 127.0.0.1."""


def test_a_cluster_that_everybody_reaches_is_refused_unless_it_is_said_to_be_open(
    new_cluster, training, monkeypatch
):
    cluster = new_cluster([{}], address=EVERYWHERE)
    for trainer in training().trainers:
        trainer.fails(
            "SourceError",
            f"the Ray cluster at {EVERYWHERE} lets everybody who reaches it run programs as you",
            "RAY_AUTH_MODE=token",
            "PENSTOCK_RAY_OPEN=1",
        )
    assert not cluster.makers()
    monkeypatch.setenv("PENSTOCK_RAY_OPEN", "1")
    run = training()
    run.is_made_by(1, 1)
    run.end()


@pytest.mark.parametrize("where", ["variable", "file", "home"])
def test_an_open_cluster_is_refused_by_who_has_a_token_for_it(where, new_cluster, training, monkeypatch, tmp_path):
    cluster = new_cluster([{}], address=EVERYWHERE, RAY_AUTH_MODE="disabled")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    (tmp_path / ".ray").mkdir()
    (token := tmp_path / ".ray" / "auth_token").write_text("a" * 64)
    variables = {
        "variable": ("RAY_AUTH_TOKEN", "a" * 64),
        "file": ("RAY_AUTH_TOKEN_PATH", token),
        "home": ("HOME", tmp_path),
    }
    name, value = variables[where]
    monkeypatch.setenv(name, str(value))
    for trainer in training().trainers:
        trainer.fails(
            "SourceError", f"the Ray cluster at {EVERYWHERE} lets everybody who reaches it run programs as you"
        )
    assert not cluster.makers()


def test_a_cluster_with_a_token_is_used_by_who_has_that_token_only(new_cluster, training, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a" * 40)
    cluster = new_cluster([{}], address=EVERYWHERE)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "b" * 40)
    run = training()
    run.is_loaded_by_the_feeder("that RAY_AUTH_TOKEN here")
    run.end()
    assert not cluster.makers()
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a" * 40)
    run = training()
    run.is_made_by(1, 1)
    run.end()
