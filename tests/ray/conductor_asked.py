"""Asks a conductor for blocks, in a process of its own: Ray is one for all of a process, and so is its end."""

from __future__ import annotations

import os
import sys
from concurrent.futures import Future
from functools import partial
from threading import Thread
from typing import Any

import torch
from tests.forked import eventually
from torch.utils.data import DataLoader, TensorDataset

from penstock.contracts import Cursor
from penstock.sources.adapt import adapt
from penstock.sources.order import Planned
from penstock.sources.pure import PureSource
from penstock.sources.remote.conductor import SharedEngine, conducting
from penstock.sources.remote.connecting import connected
from penstock.sources.remote.maker import maker_spec_of

LOADER = DataLoader(TensorDataset(torch.arange(64)), batch_size=8)
SOURCE = adapt(LOADER, segments=None, seed=7)
assert isinstance(SOURCE, PureSource)
COMMISSION = maker_spec_of(LOADER, SOURCE, None, 7)
PLANS = list(SOURCE.plans(Cursor(0, 0)))


def asks_again(ray: Any) -> None:
    """A feed that asks again gets the same copy."""
    conductor = conducting(ray, "asking", COMMISSION, 1)

    def copy(feed: str, plan: Planned) -> str:
        """What Ray calls the copy that a feed is handed, which can be fetched."""
        asked = conductor.make.remote(feed, plan, 0, Cursor(0, plan.sample))
        reference = ray.get(asked, timeout=60).block
        assert ray.get(reference, timeout=60).rows == 8
        return reference.hex()

    for feed in ("here", "there"):
        stands = conductor.stand.remote(feed, SOURCE.order, COMMISSION.leaves)
        assert not isinstance(ray.get(stands, timeout=60), str)
    first = copy("here", PLANS[0])
    assert copy("here", PLANS[0]) == copy("there", PLANS[0]) == first
    passed = ray.get(conductor.score.remote(), timeout=60).passed
    assert (passed.made, passed.again, passed.handed) == (1, 0, 3)


class Losing(SharedEngine):
    """An engine that cannot fetch the first copy that it is handed."""

    lost: int | None = None

    def _came(self, inquiry: Any, future: Any) -> None:
        if inquiry in self._coming and self.lost is None:
            self.lost = inquiry.number
            future = Future[Any]()
            future.set_exception(self._ray.exceptions.ObjectLostError("", None, ""))
        super()._came(inquiry, future)


class Awaiting(SharedEngine):
    """An engine to which some copies that it is handed do not come: their node is frozen."""

    to_await = 1
    frozen: tuple[Any, ...] = ()

    def _await(self, inquiry: Any) -> None:
        if inquiry in self._coming and self.to_await > 0:
            self.to_await -= 1
            self.frozen += (inquiry,)
        else:
            super()._await(inquiry)

    def thaw(self) -> None:
        """Have what was frozen come; in the engine's thread."""
        for inquiry in self.frozen:
            super()._await(inquiry)


class Client:
    """Notes how many rows an engine's blocks have, and why it has none."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.failed: dict[int, str] = {}

    def made(self, number: int, made: Any) -> None:
        self.rows[number] = made.rows

    def unmade(self, number: int, why: str) -> None:
        self.failed[number] = why

    def stands(self, standing: Any) -> None:
        pass


class Feed:
    """A feed whose engine asks a conductor that has one worker."""

    def __init__(self, kind: type[SharedEngine], ray: Any) -> None:
        self.client = Client()
        self.engine: Any = kind(ray, COMMISSION, 1, self.client, kind.__name__)
        Thread(target=self.engine.run, daemon=True).start()
        eventually(lambda: self.engine.standing().workers == 1, lambda: f"{self.engine.standing()}")

    def asks(self, *numbers: int) -> None:
        """Ask for blocks: those of 0, 8 and 16 are the same."""
        for number in numbers:
            self.engine.do(partial(self.engine.ask, number, PLANS[number % 8], 0))

    def gets(self, *numbers: int) -> None:
        """Wait until it has these blocks, and no others."""
        eventually(
            lambda: self.client.rows.keys() >= {*numbers}, lambda: f"{self.client.rows} {self.client.failed}"
        )
        assert self.client.rows == dict.fromkeys(numbers, 8)

    def lacks(self, *numbers: int) -> None:
        """Wait until these blocks are left to the feeder, and no others."""
        eventually(lambda: len(self.client.failed) == len(numbers), lambda: f"{self.client.failed}")
        assert self.client.failed == dict.fromkeys(numbers, "its blocks cannot be fetched from where they lie")

    def were_made(self, made: int) -> None:
        """Wait until so many blocks were made, none of them again."""

        def are() -> bool:
            passed = getattr(self.engine._seen.score, "passed", None)  # else it has not answered in time
            return passed is not None and (passed.made, passed.again) == (made, 0)

        eventually(are, lambda: f"{self.engine.standing()}")


def loses_a_copy(ray: Any) -> None:
    """A copy that is gone is left to the feeder at once; the cluster makes the others."""
    feed = Feed(Losing, ray)
    feed.asks(0, 1, 2, 3)
    eventually(lambda: feed.engine.lost is not None, "no copy came")
    feed.lacks(feed.engine.lost)
    feed.gets(*{0, 1, 2, 3} - {feed.engine.lost})
    assert feed.engine.standing().workers
    feed.were_made(4)


def waits_for_a_copy(ray: Any) -> None:
    """A copy that does not come is left to the feeder, again and at once while it does not; then it is handed."""
    feed = Feed(Awaiting, ray)
    feed.asks(0, 1, 2, 3)
    eventually(lambda: feed.engine.frozen, "no copy was handed")
    late = feed.engine.frozen[0].number
    others = {0, 1, 2, 3} - {late}
    feed.lacks(late)
    feed.gets(*others)
    feed.asks(late + 8)
    feed.lacks(late, late + 8)
    feed.engine.do(feed.engine.thaw)
    eventually(lambda: not feed.engine._gone, "it does not come")
    feed.asks(late + 16)
    feed.gets(*others, late + 16)
    feed.were_made(4)


def forgets_a_copy(ray: Any) -> None:
    """A copy that does not come, of a block that nobody wants any more, holds nobody back."""
    feed = Feed(Awaiting, ray)
    feed.asks(0)
    eventually(lambda: feed.engine.frozen, "no copy was handed")
    feed.engine.do(feed.engine.forget)
    feed.asks(1)
    feed.gets(1)
    eventually(lambda: feed.engine._gone, "it is waited for")
    feed.asks(2)
    feed.gets(1, 2)
    feed.lacks()
    feed.were_made(3)


def fetches_none(ray: Any) -> None:
    """Where no copy can be fetched, each is left to the feeder, and the conductor is set aside."""
    feed = Feed(Awaiting, ray)
    feed.engine.to_await = 100
    feed.asks(0, 1, 2)
    feed.lacks(0, 1, 2)
    assert not feed.engine.standing().workers
    feed.were_made(3)


if __name__ == "__main__":
    trials = (asks_again, loses_a_copy, waits_for_a_copy, forgets_a_copy, fetches_none)
    next(each for each in trials if each.__name__ == sys.argv[1].replace(" ", "_"))(connected())
    os._exit(0)  # engines know no end but their process's
