"""Has each block made once for all feeds of a name on a cluster, and hands it to each of them.

A conductor is a Ray actor of the feeder that came first, and ends with that one's bridge: the others then start
another, and load by themselves meanwhile. It holds references to blocks, which lie where they were made: each feed
fetches them from there.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import count
from threading import Thread
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec

from penstock.contracts import Cursor
from penstock.fingerprint.batch import difference
from penstock.sources.order import Planned
from penstock.sources.remote.connecting import on_node
from penstock.sources.remote.fetching import LOOK_S, Client, Engine, Inquiry, in_words
from penstock.sources.remote.maker import Leaves, MakerSpec
from penstock.sources.remote.nodes import Usual, WorkerId
from penstock.sources.remote.retention import BlockRetention, Key
from penstock.sources.remote.status import ClusterStanding, Passed

_MOST_BYTES = 1 << 30
"""Size of the blocks that are kept for feeds which have not had them."""
_MOST_OF_STORES = 0.25
"""They fill at most this part of the nodes' object stores: what does not fit there, Ray writes to disk."""
_MOST_CALLS = 10_000
_ANSWER_S = 2.0
_MOST_SILENCES = 5
_FETCHED_S = 3.0
"""A block that was handed and has not come after this long, or five times what is usual, is left to the feeder."""
_USUAL_FETCH_S = 0.5
_MOST_FETCHED_S = 30.0
_MOST_UNFETCHED = 64
"""With so many under way that were given up, no more are asked for: Ray keeps each until it comes."""
_UNFETCHED = "its blocks cannot be fetched from where they lie"


def conductor_of(feed: str) -> str:
    """Return the name of a feed's conductor on a cluster."""
    return f"conductor of {feed}"


class Score(NamedTuple):
    """How a conductor stands."""

    standing: ClusterStanding
    frontier: Cursor | None  # the furthest block that a feed has asked for; None if none has
    passed: Passed  # what became of the blocks


class LeftThere(NamedTuple):
    """Stands for a block that lies elsewhere: a reference to it."""

    block: Any


class _Waited(NamedTuple):
    """A block that is being made, and the feeds that wait for it."""

    block: asyncio.Future[Any]
    by: set[str]


class Conductor:
    """Has blocks made for the feeds of one name, by ``most`` workers at most; None for one on each core."""

    def __init__(self, maker_spec: MakerSpec, most: int | None) -> None:
        self._maker_spec = maker_spec  # how they are made; that of the first feed
        ray = import_module("ray")
        stores_bytes = ray.cluster_resources().get("object_store_memory", 0)
        self._retention = BlockRetention(min(_MOST_BYTES, int(_MOST_OF_STORES * stores_bytes) or _MOST_BYTES))
        self._kept: dict[Key, Any] = {}
        self._waited: dict[Key, _Waited] = {}
        self._keys: dict[int, Key] = {}
        self._numbers = count()
        self._standing = ClusterStanding(0)
        self._engine = Engine(ray, maker_spec, most, self, fetches=False)
        Thread(target=self._run, daemon=True).start()

    async def stand(self, feed: str, order: str, leaves: list[Leaves]) -> Score | str:
        """A feed lives: return how the nodes stand, or why it gets nothing from here."""
        own = self._maker_spec
        if order != own.order or any(map(difference, leaves, own.leaves)):
            return "the feed of this name on another machine has other data, another order or another recipe"
        self._drop(self._retention.hear(feed, time.monotonic()))
        return await self.score()

    async def score(self) -> Score:
        """Return how the nodes stand, and what became of the blocks."""
        return Score(self._standing, self._retention.frontier, self._retention.counts)

    async def make(self, feed: str, plan: Planned, cycle: int, oldest: Cursor) -> LeftThere:
        """Return a reference to a block, which stays where it is; ``oldest`` is the first that the feed lacks."""
        key = Key(Cursor(cycle, plan.sample), plan.ids.tobytes())
        self._drop(self._retention.asks(feed, key, oldest))
        if (block := self._kept.get(key)) is None:
            if key not in self._waited:
                self._loop = asyncio.get_running_loop()
                self._waited[key] = _Waited(self._loop.create_future(), set())
                self._engine.do(partial(self._ask, key, plan, cycle))
            self._waited[key].by.add(feed)
            block = await asyncio.shield(self._waited[key].block)
        self._retention.handed(feed, key)
        return LeftThere(block)

    def _run(self) -> None:
        """Run the engine; if that fails, this process ends, and feeds start another conductor."""
        try:
            self._engine.run()
        finally:
            os._exit(1)

    def _ask(self, key: Key, plan: Planned, cycle: int) -> None:
        number = next(self._numbers)
        self._keys[number] = key
        self._engine.ask(number, plan, cycle)

    def made(self, number: int, made: Any) -> None:
        nbytes, block = made
        self._loop.call_soon_threadsafe(self._take, self._keys.pop(number), nbytes, block)

    def unmade(self, number: int, why: str) -> None:
        self._loop.call_soon_threadsafe(self._refuse, self._keys.pop(number), why)

    def stands(self, standing: ClusterStanding) -> None:
        self._standing = standing

    def _take(self, key: Key, nbytes: int, block: Any) -> None:
        self._kept[key] = block
        waited = self._waited.pop(key)
        self._drop(self._retention.made(key, nbytes, waited.by))
        waited.block.set_result(block)

    def _refuse(self, key: Key, why: str) -> None:
        self._waited.pop(key).block.set_exception(RuntimeError(why))

    def _drop(self, keys: list[Key]) -> None:
        for key in keys:
            del self._kept[key]


def conducting(ray: Any, feed: str, maker_spec: MakerSpec, most: int | None) -> Any:
    """Return the conductor of a name, as a Ray actor, which is started on this node if there is none."""
    here = on_node(ray.get_runtime_context().get_node_id())
    options = {"name": conductor_of(feed), "get_if_exists": True, "num_cpus": 0, **here}
    made = ray.remote(Conductor).options(**options, max_concurrency=_MOST_CALLS)
    return made.remote(maker_spec, most)


class _Look(NamedTuple):
    """What an engine last saw of its conductor: how it stands, or in words why the engine gets nothing."""

    conductor: Any
    score: Score | str


@dataclass(eq=False, frozen=True)
class _Fetch(Inquiry):
    """A block is brought here, since a time."""

    number: int
    since_s: float = 0.0


class SharedEngine(Engine):
    """Asks the conductor of a name instead of nodes; starts it if there is none."""

    def __init__(self, ray: Any, maker_spec: MakerSpec, most: int | None, client: Client, across: str) -> None:
        super().__init__(ray, maker_spec, None, client, fetches=True)
        self._limit, self._across = most, across  # most workers of a conductor; name of the feeds
        self._feed = f"{socket.gethostname()} {uuid4().hex}"
        self._coming: set[_Fetch] = set()
        self._fetching = Usual(_USUAL_FETCH_S)
        self._gone: set[Any] = set()  # references to copies that were given up, and may still come
        self._handle: Any = None
        self._silences = 0
        self._seen = self._look()

    @property
    def frontier(self) -> Cursor | None:
        """The furthest block that another feed has asked for; None if none has."""
        return None if isinstance(self._seen.score, str) else self._seen.score.frontier

    def standing(self) -> ClusterStanding:
        if isinstance(score := self._seen.score, str):
            return ClusterStanding(0, why=score)
        workers = min(self._nodes.ready_workers, score.standing.workers)
        if len(self._gone) >= _MOST_UNFETCHED:
            return ClusterStanding(0, why=_UNFETCHED)
        if score.standing.workers and not workers:
            return ClusterStanding(0, why="the cluster's conductor does not answer in time")
        return msgspec.structs.replace(score.standing, workers=workers, passed=score.passed)

    def _start(self, id: WorkerId) -> None:
        """A worker of the conductor's was made ready by it."""
        self._actors[id] = self._seen.conductor
        self._nodes.ready(id)

    def _act(self, now_s: float) -> None:
        patience_s = min(_MOST_FETCHED_S, self._fetching.patience_s(_FETCHED_S))
        for fetch in [each for each in self._coming if now_s >= each.since_s + patience_s]:
            self._gone.add(fetch.reference)
            self._leave(fetch, now_s)
        super()._act(now_s)

    def _request(self, id: WorkerId, number: int, plan: Planned, cycle: int) -> None:
        oldest = min(Cursor(cycle, plan.sample) for plan, cycle in self._asked.values())
        self._await(Inquiry(id, number, self._actors[id].make.remote(self._feed, plan, cycle, oldest)))

    def _came(self, inquiry: Inquiry, future: Any) -> None:
        now_s, failed = time.monotonic(), future.exception() is not None
        if isinstance(inquiry, _Fetch):
            self._gone.discard(inquiry.reference)
            if failed:
                self._leave(inquiry, now_s)
                return
            self._coming.discard(inquiry)
            self._fetching.add(now_s - inquiry.since_s)
        elif inquiry.number in self._asked and not failed:
            fetch = _Fetch(inquiry.id, inquiry.number, future.result().block, since_s=now_s)
            if fetch.reference in self._gone:
                self._leave(fetch, now_s)
            else:
                self._coming.add(fetch)
                self._await(fetch)
            return
        super()._came(inquiry, future)

    def _leave(self, fetch: _Fetch, now_s: float) -> None:
        """Leave a block to the feeder whose copy does not come; several in a row set the conductor aside."""
        self._coming.discard(fetch)
        self._nodes.raised(fetch.id, fetch.number, _UNFETCHED, now_s)
        if self._nodes.came(fetch.id, fetch.number, now_s):
            del self._asked[fetch.number]
            self._client.unmade(fetch.number, _UNFETCHED)

    def _lost(self, id: WorkerId, why: str, now_s: float) -> None:
        self._nodes.failed(id, why, now_s)
        self._actors.pop(id, None)

    def _look(self) -> _Look:
        """Ask the conductor how it stands, and whether it is there; start it if it is not."""
        own = self._maker_spec
        try:
            if self._handle is None:
                self._handle = conducting(self._ray, self._across, own, self._limit)
            asked = self._handle.stand.remote(self._feed, own.order, own.leaves)
            look = _Look(self._handle, self._ray.get(asked, timeout=_ANSWER_S))
            self._silences = 0
        except Exception as error:  # whatever Ray raises of one that has died, or does not answer
            look = _Look(None, in_words(error))
            self._silences += 1
            if self._silences >= _MOST_SILENCES or not isinstance(error, self._ray.exceptions.GetTimeoutError):
                self._handle = None  # the last of its starter's handles: it ends
        return look

    def _watch(self) -> None:
        while True:
            self.do(partial(self._take_look, self._look()))
            time.sleep(LOOK_S)

    def _take_look(self, look: _Look) -> None:
        self._seen = look
        workers = 0 if isinstance(look.score, str) else look.score.standing.workers
        self._see({f"worker {i}": 1 for i in range(workers)})
