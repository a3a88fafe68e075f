"""The process between a feeder and a Ray cluster, and the only one of the two that imports Ray.

Ray ends the process that it lives in when its cluster has been gone for a minute, or its own raylet has died: then
this process ends, and the feeder loads by itself. It ends with its feeder.
"""

from __future__ import annotations

import os
import pickle
from functools import partial
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, NamedTuple

from penstock.contracts import Cursor
from penstock.errors import BadSetting
from penstock.linux.process import die_with_parent
from penstock.memory.slots import Placement, Slot
from penstock.sources.order import Planned
from penstock.sources.remote.conductor import SharedEngine
from penstock.sources.remote.connecting import connected
from penstock.sources.remote.fetching import Engine, in_words
from penstock.sources.remote.maker import MadeBlock, MakerSpec
from penstock.sources.remote.status import ClusterStanding
from penstock.sources.samples.worker import MemoryFile


class Setup(NamedTuple):
    """What the bridge is started with."""

    maker_spec: MemoryFile  # how nodes make blocks, pickled
    most: int | None  # most workers; None for one on each core
    across: str | None  # name of the feeds that share the blocks, on several machines; None if none does
    ring: MemoryFile | None  # where slots lie; None if the feed has none


class BlockTask(NamedTuple):
    """A block that the feeder asks for, and the slot that it goes to."""

    number: int
    plan: Planned
    cycle: int
    slot: Slot | None


class InSlot(NamedTuple):
    """A block was written to its slot."""

    number: int
    placement: Placement


class Whole(NamedTuple):
    """A block, which its slot does not hold."""

    number: int
    made: Any


class Unmade(NamedTuple):
    """Nodes failed at a block."""

    number: int
    why: str


class Connected(NamedTuple):
    """There is a cluster."""

    frontier: Cursor | None
    """The furthest block that the feeds of this name on other machines have asked for; None if there are none."""


class NotSafe(NamedTuple):
    """The cluster is not used, whatever becomes of it."""

    why: str


Answer = InSlot | Whole | Unmade | Connected | ClusterStanding | NotSafe
FORGET = "forget"
"""The feeder gives up all blocks that it has asked for."""


class _Bridge:
    """Hands the feeder what nodes make."""

    def __init__(self, ray: Any, connection: Connection[Any, Any], setup: Setup) -> None:
        self._connection = connection
        self._ring = None if setup.ring is None else setup.ring.map()
        self._tasks: dict[int, BlockTask] = {}
        maker_spec: MakerSpec = pickle.loads(setup.maker_spec.map().data)
        frontier = None
        if setup.across is not None:
            self._engine: Engine = SharedEngine(ray, maker_spec, setup.most, self, setup.across)
            frontier = self._engine.frontier
        else:
            self._engine = Engine(ray, maker_spec, setup.most, self, fetches=True)
        connection.send(Connected(frontier))

    def run(self) -> None:
        """Serve the feeder until it ends."""
        Thread(target=self._hear, daemon=True).start()
        self._engine.run()

    def made(self, number: int, made: Any) -> None:
        task = self._tasks.pop(number)
        fits = isinstance(made, MadeBlock) and task.slot is not None and made.placement.nbytes <= task.slot.nbytes
        if fits and task.slot is not None and self._ring is not None:
            self._ring[task.slot.offset : task.slot.offset + made.placement.nbytes] = made.memory
            self._connection.send(InSlot(number, made.placement))
        else:
            self._connection.send(Whole(number, made))

    def unmade(self, number: int, why: str) -> None:
        del self._tasks[number]
        self._connection.send(Unmade(number, why))

    def stands(self, standing: ClusterStanding) -> None:
        self._connection.send(standing)

    def _hear(self) -> None:
        """Take what the feeder sends, until it ends."""
        try:
            while True:
                message = self._connection.recv()
                self._engine.do(self._forget if message == FORGET else partial(self._take, message))
        finally:
            os._exit(0)

    def _take(self, task: BlockTask) -> None:
        self._tasks[task.number] = task
        self._engine.ask(task.number, task.plan, task.cycle)

    def _forget(self) -> None:
        self._tasks.clear()
        self._engine.forget()
        self._connection.send(FORGET)


def main(fd: int) -> None:
    """Be the bridge of the feeder at the other end of a socket."""
    die_with_parent(None)
    connection: Connection[Any, Any] = Connection(fd)
    setup: Setup = connection.recv()
    try:
        bridge = _Bridge(connected(), connection, setup)
    except BadSetting as error:
        connection.send(NotSafe(str(error)))
        os._exit(0)
    except Exception as error:  # whatever Ray raises where there is no cluster
        connection.send(ClusterStanding(0, why=in_words(error)))
        os._exit(0)
    bridge.run()
