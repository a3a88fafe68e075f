"""What a conductor hands a feed that asks again, and what becomes of copies that cannot be fetched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from penstock.contracts import Cursor
from penstock.sources.adapt import adapt
from penstock.sources.order import Planned
from penstock.sources.pure import PureSource
from penstock.sources.remote.conductor import Conductor
from penstock.sources.remote.connecting import connected
from penstock.sources.remote.maker import commission_of


@pytest.fixture
def ray(cluster: Any) -> Iterator[Any]:
    ray = connected()
    yield ray
    ray.shutdown()


def test_a_feed_that_asks_again_gets_the_same_copy_unless_it_could_not_fetch_that(ray):
    loader = DataLoader(TensorDataset(torch.arange(64)), batch_size=8)
    source = adapt(loader, segments=None, seed=7)
    assert isinstance(source, PureSource)
    commission = commission_of(loader, source, None, 7)
    conductor = ray.remote(Conductor).options(num_cpus=0).remote(commission, 1, False)
    plan = next(iter(source.plans(Cursor(0, 0))))

    def copy(feed: str, plan: Planned, lost: str = "") -> str:
        """What Ray calls the copy that a feed is handed, which can be fetched."""
        asked = conductor.make.remote(feed, plan, 0, Cursor(0, plan.sample), lost)
        reference = ray.get(asked, timeout=60).block
        assert ray.get(reference, timeout=60).rows == 8
        return reference.hex()

    for feed in ("here", "there"):
        assert not isinstance(
            ray.get(conductor.stand.remote(feed, source.order, commission.leaves), timeout=60), str
        )
    first = copy("here", plan)
    assert copy("here", plan) == copy("there", plan) == first
    second = copy("here", plan, lost=first)
    assert second != first
    assert copy("there", plan, lost=first) == copy("there", plan) == second, (
        "who hears late of it gets the new one"
    )
    passed = ray.get(conductor.score.remote(), timeout=60).passed
    assert (passed.made, passed.again, passed.handed) == (2, 1, 6)
