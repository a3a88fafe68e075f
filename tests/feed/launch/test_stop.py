"""``stop`` ends a feed on purpose: its trainers are told so, and nobody starts another in its place."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest

import penstock


def numbers() -> penstock.ArraySource:
    return penstock.ArraySource({"id": np.arange(1000)}, batch_size=10)


JOINS: dict[str, Callable[[], penstock.Loader]] = {
    "attach": lambda: penstock.attach("feed", 10),
    "share": lambda: penstock.share(numbers, "feed", 10),
}


@pytest.mark.parametrize("join", JOINS.values(), ids=list(JOINS))
def test_a_trainer_of_a_feed_that_is_stopped_is_told_by_whom_and_goes_on_when_it_is_started_again(join):
    with penstock.share(numbers, "feed", 10, linger=1.0) as starter, join() as loader:
        batches = iter(loader)
        before = [next(batches)["id"] for _ in range(3)]
        state = loader.state_dict()
        feeder = starter.statistics().feeder_pid
        assert penstock.stop("feed") == (feeder, ())
        with pytest.raises(penstock.FeedStopped) as told:
            list(batches)
        assert f"process {feeder}" in str(told.value)
        assert f"was stopped by process {os.getpid()}" in str(told.value)
        assert "start the feed again and load the last state_dict()" in str(told.value)
        assert loader.statistics().failovers == 0
        assert penstock.feeds() == []
    with penstock.share(numbers, "feed", 10, linger=0.0) as again:
        again.load_state_dict(state)
        ids = np.concatenate(before + [batch["id"] for batch in again])
    assert sorted(ids) == list(range(1000))


def test_who_catches_a_lost_feeder_catches_a_stopped_feed_too(serve):
    serve(numbers())
    with penstock.attach("feed") as loader:
        penstock.stop("feed")
        with pytest.raises(penstock.FeederLost):
            list(loader)
