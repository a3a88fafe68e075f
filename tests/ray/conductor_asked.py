"""Asks a conductor for blocks, in a process of its own: Ray is one for all of a process, and so is its end."""

from __future__ import annotations

import os
import sys
from concurrent.futures import Future
from threading import Thread
from typing import Any

import torch
from tests.forked import eventually
from torch.utils.data import DataLoader, TensorDataset

from penstock.contracts import Cursor
from penstock.sources.adapt import adapt
from penstock.sources.order import Planned
from penstock.sources.pure import PureSource
from penstock.sources.remote.conductor import Conducted, Conductor
from penstock.sources.remote.connecting import connected
from penstock.sources.remote.maker import commission_of
from penstock.sources.remote.passing import Across

LOADER = DataLoader(TensorDataset(torch.arange(64)), batch_size=8)
SOURCE = adapt(LOADER, segments=None, seed=7)
assert isinstance(SOURCE, PureSource)
COMMISSION = commission_of(LOADER, SOURCE, None, 7)
PLANS = list(SOURCE.plans(Cursor(0, 0)))


def asks_again(ray: Any) -> None:
    """A feed that asks again gets the same copy, unless it could not fetch that."""
    conductor = ray.remote(Conductor).options(num_cpus=0).remote(COMMISSION, 1, False)

    def copy(feed: str, plan: Planned, lost: str = "") -> str:
        """What Ray calls the copy that a feed is handed, which can be fetched."""
        asked = conductor.make.remote(feed, plan, 0, Cursor(0, plan.sample), lost)
        reference = ray.get(asked, timeout=60).block
        assert ray.get(reference, timeout=60).rows == 8
        return reference.hex()

    for feed in ("here", "there"):
        stands = conductor.stand.remote(feed, SOURCE.order, COMMISSION.leaves)
        assert not isinstance(ray.get(stands, timeout=60), str)
    first = copy("here", PLANS[0])
    assert copy("here", PLANS[0]) == copy("there", PLANS[0]) == first
    second = copy("here", PLANS[0], lost=first)
    assert second != first
    late = copy("there", PLANS[0], lost=first)
    assert late == copy("there", PLANS[0]) == second, "who hears late of it gets the new one"
    passed = ray.get(conductor.score.remote(), timeout=60).passed
    assert (passed.made, passed.again, passed.handed) == (2, 1, 6)


class Losing(Conducted):
    """An engine that cannot fetch the first copy that it is handed."""

    lost = ""

    def _came(self, id: Any, number: int | None, future: Any) -> None:
        if number in self._copies and not self.lost:
            self.lost = self._copies[number].name
            future = Future[Any]()
            future.set_exception(self._ray.exceptions.ObjectLostError(self.lost, None, ""))
        super()._came(id, number, future)


class Client:
    """Notes how many rows an engine's blocks have."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}

    def made(self, number: int, made: Any) -> None:
        self.rows[number] = made.rows

    def unmade(self, number: int, why: str) -> None:
        raise AssertionError(f"{number}: {why}")

    def stands(self, standing: Any) -> None:
        pass


def loses_a_copy(ray: Any) -> None:
    """A feed names the copy that is gone, and gets another."""
    client = Client()
    engine = Losing(ray, COMMISSION, 2, client, Across("losing", False))
    Thread(target=engine.run, daemon=True).start()
    eventually(lambda: engine.standing().workers == 2, f"{engine.standing()}")
    for number, plan in enumerate(PLANS[:4]):
        engine.do(lambda number=number, plan=plan: engine.ask(number, plan, 0))
    eventually(lambda: len(client.rows) == 4, f"{client.rows}")
    assert set(client.rows.values()) == {8}
    passed = eventually(lambda: now if (now := engine.standing().passed).again else None, "handed the same again")
    assert (passed.made, passed.again) == (5, 1)


if __name__ == "__main__":
    {"asks again": asks_again, "loses a copy": loses_a_copy}[sys.argv[1]](connected())
    os._exit(0)  # engines know no end but their process's
