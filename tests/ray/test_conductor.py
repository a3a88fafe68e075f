"""What a conductor hands a feed that asks again, and what becomes of copies that cannot be fetched."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from threading import Thread
from typing import Any

import pytest
import torch
from tests.forked import eventually
from torch.utils.data import DataLoader, TensorDataset

from penstock.contracts import Cursor
from penstock.sources.adapt import adapt
from penstock.sources.order import Planned
from penstock.sources.pure import PureSource
from penstock.sources.remote.conductor import Conducted, Conductor
from penstock.sources.remote.connecting import connected
from penstock.sources.remote.maker import Commission, commission_of
from penstock.sources.remote.passing import Across

LOADER = DataLoader(TensorDataset(torch.arange(64)), batch_size=8)


@pytest.fixture
def ray(cluster: Any) -> Iterator[Any]:
    ray = connected()
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def source() -> PureSource:
    source = adapt(LOADER, segments=None, seed=7)
    assert isinstance(source, PureSource)
    return source


@pytest.fixture(scope="module")
def commission(source: PureSource) -> Commission:
    return commission_of(LOADER, source, None, 7)


def test_a_feed_that_asks_again_gets_the_same_copy_unless_it_could_not_fetch_that(ray, source, commission):
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


class Losing(Conducted):
    """An engine that cannot fetch the first copy that it is handed."""

    def _came(self, id: Any, number: int | None, future: Any) -> None:
        if number in self._copies and not client.lost:
            client.lost.append(self._copies[number].name)
            future = Future[Any]()
            future.set_exception(self._ray.exceptions.ObjectLostError(client.lost[0], None, ""))
        super()._came(id, number, future)


class Client:
    """Notes what an engine's blocks came to."""

    def __init__(self) -> None:
        self.came: dict[int, int] = {}
        self.lost: list[str] = []

    def made(self, number: int, made: Any) -> None:
        self.came[number] = made.rows

    def unmade(self, number: int, why: str) -> None:
        raise AssertionError(why)

    def stands(self, standing: Any) -> None:
        pass


client = Client()


def test_a_feed_names_the_copy_that_is_gone_and_gets_another(ray, source, commission):
    engine = Losing(ray, commission, 2, client, Across("losing", False))
    Thread(target=engine.run, daemon=True).start()
    eventually(lambda: engine.standing().workers == 2, f"{engine.standing()}")
    for number, plan in enumerate(list(source.plans(Cursor(0, 0)))[:4]):
        engine.do(lambda number=number, plan=plan: engine.ask(number, plan, 0))
    eventually(lambda: len(client.came) == 4, f"{client.came}")
    assert set(client.came.values()) == {8}
    passed = eventually(lambda: now if (now := engine.standing().passed).again else None, "handed the same again")
    assert (passed.made, passed.again) == (5, 1)
