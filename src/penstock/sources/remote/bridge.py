"""The process between a feeder and a Ray cluster, and the only one of the two that imports Ray.

Ray ends the process that it lives in when its cluster has been gone for a minute, or its own raylet has died: then
this process ends, and the feeder loads by itself. It ends with its feeder.
"""

from __future__ import annotations

import os
import pickle
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from penstock.errors import BadSetting
from penstock.memory.slots import Placement, Slot
from penstock.sources.order import Planned
from penstock.sources.remote.maker import BlockMaker, MadeBlock
from penstock.sources.remote.nodes import NodeReport, Nodes, WorkerId
from penstock.sources.workers.block_maker import MemoryFile

OPEN = "PENSTOCK_RAY_OPEN"
_LOOK_S = 1.0
"""Time between two looks at the nodes that Ray knows; so often, too, the feeder hears how they stand."""
_ANSWERS_S = 5.0
_NAMESPACE = "penstock"
_LOOPBACK = {"127.0.0.1", "::1"}
"""Addresses that Ray binds to alone; for any other, 127.0.0.2 too, it listens everywhere."""


class Setup(NamedTuple):
    """What the bridge is started with.

    Attributes:
        commission: How nodes make blocks, pickled.
        most: Most workers; None for one on each core.
        ring: Where slots lie; None if the feed has none.
    """

    commission: bytes
    most: int | None
    ring: MemoryFile | None


class Task(NamedTuple):
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


class Standing(NamedTuple):
    """How the nodes stand.

    Attributes:
        workers: Workers that can be asked.
        reports: The nodes.
        why: Why there are no workers; empty while some start for the first time.
    """

    workers: int
    reports: list[NodeReport]
    why: str = ""


class Refused(NamedTuple):
    """The cluster is not used, whatever becomes of it."""

    why: str


Answer = InSlot | Whole | Unmade | Standing | Refused
FORGET = "forget"
"""The feeder gives up all blocks that it has asked for."""


class _Bridge:
    """Asks nodes for blocks, and hands these on."""

    def __init__(self, ray: Any, connection: Connection[Any, Any], setup: Setup) -> None:
        self._ray = ray
        self._connection = connection
        self._commission = setup.commission
        self._ring = None if setup.ring is None else setup.ring.map()
        self._nodes = Nodes(setup.most)
        self._tasks: dict[int, Task] = {}
        self._events = SimpleQueue[Callable[[], None]]()
        self._actors: dict[WorkerId, Any] = {}
        self._under_way: dict[tuple[WorkerId, int | None], Any] = {}  # a reference that is given up ends Ray
        self._said: Standing | None = None
        self._said_s = 0.0

    def run(self) -> None:
        self._maker = self._ray.remote(BlockMaker)
        self._sent = self._ray.put(pickle.loads(self._commission))
        self._connection.send(Standing(0, []))  # from now on it is heard often
        for work in (self._hear, self._watch):
            threading.Thread(target=work, daemon=True).start()
        while True:
            due_s = self._nodes.due_s()
            wait_s = _LOOK_S if due_s is None else min(_LOOK_S, max(0.0, due_s - time.monotonic()))
            try:
                event = self._events.get(timeout=wait_s)
                while True:
                    event()
                    event = self._events.get_nowait()
            except Empty:
                pass
            self._act(time.monotonic())

    def _act(self, now_s: float) -> None:
        """Do what follows from what has happened."""
        self._nodes.look(now_s)
        for id in self._nodes.to_start(now_s):
            self._start(id)
        for id, number in self._nodes.to_ask(now_s):
            task = self._tasks[number]
            self._await(id, number, self._actors[id].make.remote(task.plan, task.cycle))
        for number, why in self._nodes.unmade():
            del self._tasks[number]
            self._connection.send(Unmade(number, why))
        reports = self._nodes.reports()
        why = "; ".join(f"{each.node}: {each.aside}" for each in reports if each.aside)
        standing = Standing(self._nodes.ready_workers, reports, why)
        if self._said is None or _differ(standing, self._said) or now_s >= self._said_s + _LOOK_S:
            self._said, self._said_s = standing, now_s
            self._connection.send(standing)

    def _start(self, id: WorkerId) -> None:
        strategies = import_module("ray.util.scheduling_strategies")
        where = strategies.NodeAffinitySchedulingStrategy(_node_id(id.node), soft=False)
        options = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": where}
        self._actors[id] = actor = self._maker.options(**options).remote(self._sent)
        self._await(id, None, actor.check.remote())

    def _await(self, id: WorkerId, number: int | None, reference: Any) -> None:
        self._under_way[id, number] = reference

        def done(future: Any) -> None:
            self._events.put(partial(self._came, id, number, future))

        reference.future().add_done_callback(done)

    def _came(self, id: WorkerId, number: int | None, future: Any) -> None:
        """Take in what a worker has answered."""
        self._under_way.pop((id, number), None)
        now_s, error = time.monotonic(), future.exception()
        if error is not None and not isinstance(error, self._ray.exceptions.RayTaskError):
            self._lost(id, _in_words(error), now_s)
        elif number is None:
            why = _in_words(error) if error else future.result()
            if why:
                self._lost(id, why, now_s)
            else:
                self._nodes.ready(id)
        elif error is not None:
            self._nodes.raised(id, number, _in_words(error), now_s)
        elif self._nodes.came(id, number, now_s):
            self._give(self._tasks.pop(number), future.result())

    def _lost(self, id: WorkerId, why: str, now_s: float) -> None:
        self._nodes.failed(id, why, now_s)
        if (actor := self._actors.pop(id, None)) is not None:
            self._ray.kill(actor)

    def _give(self, task: Task, made: Any) -> None:
        fits = isinstance(made, MadeBlock) and task.slot is not None and made.placement.nbytes <= task.slot.nbytes
        if fits and task.slot is not None and self._ring is not None:
            self._ring[task.slot.offset : task.slot.offset + made.placement.nbytes] = made.memory
            self._connection.send(InSlot(task.number, made.placement))
        else:
            self._connection.send(Whole(task.number, made))

    def _hear(self) -> None:
        """Take what the feeder sends, until it ends."""
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                os._exit(0)
            self._events.put(partial(self._forget if message == FORGET else self._take, message))

    def _take(self, task: Task) -> None:
        self._tasks[task.number] = task
        self._nodes.add(task.number)

    def _forget(self, _message: str) -> None:
        self._tasks.clear()
        self._nodes.forget()
        self._connection.send(FORGET)

    def _watch(self) -> None:
        """Look which nodes Ray knows: that may take long, or fail, while its head is gone."""
        while True:
            with suppress(Exception):
                found = [node for node in self._ray.nodes() if node["Alive"]]
                cores = {_name(node): int(node["Resources"].get("CPU", 0)) for node in found}
                self._events.put(partial(self._see, cores))
            time.sleep(_LOOK_S)

    def _see(self, cores: dict[str, int]) -> None:
        for id in self._nodes.see(cores):
            self._actors.pop(id, None)


def main(fd: int) -> None:
    """Be the bridge of the feeder at the other end of a socket."""
    connection: Connection[Any, Any] = Connection(fd)
    setup: Setup = pickle.loads(connection.recv_bytes())
    try:
        bridge = _Bridge(_connected(), connection, setup)
    except BadSetting as error:
        connection.send(Refused(str(error)))
        os._exit(0)
    except Exception as error:  # whatever Ray raises where there is no cluster
        connection.send(Standing(0, [], _in_words(error)))
        os._exit(0)
    bridge.run()


def _connected() -> Any:
    """Connect to the cluster that ``RAY_ADDRESS`` names, or to that of this machine; return Ray.

    Raises:
        BadSetting: anybody who reaches it may run programs there.
    """
    address = os.environ.get("RAY_ADDRESS") or "auto"
    host, _, port = address.rpartition(":")
    if port.isdecimal() and "/" not in host:  # Ray would try for half a minute where nobody listens
        socket.create_connection((host.strip("[]"), int(port)), _ANSWERS_S).close()
    ray: Any = import_module("ray")
    try:
        ray.init(address=address, namespace=_NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except ConnectionError as error:
        raise ConnectionError(f"{error}: is its RAY_AUTH_TOKEN another one, or not set here?") from error
    guarded = os.environ.get("RAY_AUTH_MODE") == "token" or os.environ.get(OPEN) == "1"
    hosts = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    if not guarded and (reached := hosts - _LOOPBACK):
        raise BadSetting(
            f"the Ray cluster at {min(reached)} lets everybody who reaches it run programs as you. Start it with "
            "RAY_AUTH_MODE=token on each machine, or, for this machine alone, with "
            f"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0, which is to be set here too; {OPEN}=1 uses it as it is"
        )
    return ray


def _differ(one: Standing, other: Standing) -> bool:
    """Whether another number of workers, or another reason, is to be said."""
    return (one.workers, one.why) != (other.workers, other.why)


def _name(node: dict[str, Any]) -> str:
    return f"{node['NodeName']} ({node['NodeID']})"


def _node_id(name: str) -> str:
    return name.rpartition("(")[2].removesuffix(")")


def _in_words(error: BaseException) -> str:
    """Return the first line of what went wrong."""
    cause = getattr(error, "cause", None) or error
    text = str(cause).strip().partition("\n")[0]
    return text if isinstance(cause, BadSetting) else f"{type(cause).__name__}: {text}"
