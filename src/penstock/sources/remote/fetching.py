"""Has the workers of a Ray cluster make blocks: starts them, asks them within deadlines, and asks others."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Protocol

from penstock.sources.order import Planned
from penstock.sources.remote.connecting import on_node
from penstock.sources.remote.maker import MakerSpec, NodeMaker
from penstock.sources.remote.nodes import Nodes, WorkerId
from penstock.sources.remote.status import ClusterStanding

LOOK_S = 1.0
"""Time between two looks at the nodes that Ray knows."""


@dataclass(eq=False, frozen=True)
class Inquiry:
    """What a worker was asked, and has not answered: Ray ends where a reference is given up before that."""

    id: WorkerId
    number: int | None  # the block that it is to make; None to ask whether it is good
    reference: Any  # what Ray will answer
    block: Any = None  # where the block will lie, if the answer is its size alone


class Client(Protocol):
    """Who asks an engine for blocks. All of this is called in the engine's thread."""

    def made(self, number: int, made: Any) -> None:
        """A block was made; of ``fetches=False``, its size and a reference to it."""
        ...

    def unmade(self, number: int, why: str) -> None:
        """Nodes failed at a block."""
        ...

    def stands(self, standing: ClusterStanding) -> None:
        """Other workers can be asked than before, or a second has passed."""
        ...


class Engine:
    """Asks nodes for blocks; if it ``fetches``, they are brought here, else the client gets references."""

    def __init__(
        self, ray: Any, maker_spec: MakerSpec, most: int | None, client: Client, *, fetches: bool
    ) -> None:
        self._ray = ray  # Ray, connected
        self._maker: Any = ray.remote(NodeMaker)
        self._maker_spec, self._sent = maker_spec, None
        self._client, self._fetches = client, fetches
        self._nodes = Nodes(most)
        self._asked: dict[int, tuple[Planned, int]] = {}
        self._events = SimpleQueue[Callable[[], None]]()
        self._ids: dict[str, str] = {}  # what Ray calls each node
        self._actors: dict[WorkerId, Any] = {}
        self._under_way: set[Inquiry] = set()
        self._said, self._said_s = ClusterStanding(-1), 0.0

    def do(self, event: Callable[[], None]) -> None:
        """Have something done in the engine's thread."""
        self._events.put(event)

    def ask(self, number: int, plan: Planned, cycle: int) -> None:
        """Have a block made; in the engine's thread."""
        self._asked[number] = plan, cycle
        self._nodes.add(number)

    def forget(self) -> None:
        """Give up all blocks; in the engine's thread."""
        self._asked.clear()
        self._nodes.forget()

    def standing(self) -> ClusterStanding:
        """Return how the nodes stand; in the engine's thread."""
        nodes = tuple(self._nodes.reports())
        why = "; ".join(f"{each.node}: {each.aside}" for each in nodes if each.aside)
        return ClusterStanding(self._nodes.ready_workers, nodes, why)

    def run(self) -> None:
        """Ask nodes for blocks, for ever."""
        Thread(target=self._watch, daemon=True).start()
        while True:
            due_s = self._nodes.due_s()
            wait_s = LOOK_S if due_s is None else min(LOOK_S, max(0.0, due_s - time.monotonic()))
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
        for id in self._nodes.starting_too_long(now_s):
            self._lost(id, "no core came free for a worker, or it does not answer", now_s)
        for id in self._nodes.to_start(now_s):
            self._start(id)
        for id, number in self._nodes.to_ask(now_s):
            self._request(id, number, *self._asked[number])
        for number, why in self._nodes.unmade():
            del self._asked[number]
            self._client.unmade(number, why)
        standing = self.standing()
        others = (standing.workers, standing.why) != (self._said.workers, self._said.why)
        if others or now_s >= self._said_s + LOOK_S:
            self._said, self._said_s = standing, now_s
            self._client.stands(standing)

    def _request(self, id: WorkerId, number: int, plan: Planned, cycle: int) -> None:
        """Ask a worker for a block."""
        actor = self._actors[id]
        if self._fetches:
            self._await(Inquiry(id, number, actor.make.remote(plan, cycle)))
        else:
            size, block = actor.make_apart.options(num_returns=2).remote(plan, cycle)
            self._await(Inquiry(id, number, size, block))

    def _start(self, id: WorkerId) -> None:
        options = {
            "num_cpus": 1,
            "max_restarts": 0,
            "max_task_retries": 0,
            **on_node(self._ids[id.node]),
        }
        self._sent = self._sent or self._ray.put(self._maker_spec)
        self._actors[id] = actor = self._maker.options(**options).remote(self._sent)
        self._await(Inquiry(id, None, actor.check.remote()))

    def _await(self, inquiry: Inquiry) -> None:
        self._under_way.add(inquiry)

        def done(future: Any) -> None:
            self._events.put(partial(self._answered, inquiry, future))

        inquiry.reference.future().add_done_callback(done)

    def _answered(self, inquiry: Inquiry, future: Any) -> None:
        self._under_way.remove(inquiry)
        self._came(inquiry, future)

    def _came(self, inquiry: Inquiry, future: Any) -> None:
        """Take in what a worker has answered."""
        id, number = inquiry.id, inquiry.number
        now_s, error = time.monotonic(), future.exception()
        if error is not None and not isinstance(error, self._ray.exceptions.RayTaskError):
            self._lost(id, in_words(error), now_s)
        elif number is None:
            why = in_words(error) if error else future.result()
            if why:
                self._lost(id, why, now_s)
            else:
                self._nodes.ready(id)
        elif error is not None:
            self._nodes.raised(id, number, in_words(error), now_s)
        elif self._nodes.came(id, number, now_s):
            del self._asked[number]
            self._client.made(number, future.result() if self._fetches else (future.result(), inquiry.block))

    def _lost(self, id: WorkerId, why: str, now_s: float) -> None:
        self._nodes.failed(id, why, now_s)
        if (actor := self._actors.pop(id, None)) is not None:
            self._ray.kill(actor)

    def _watch(self) -> None:
        """Look which nodes Ray knows: that may take long, or fail, while its head is gone."""
        while True:
            with suppress(Exception):
                cores: dict[str, int] = {}
                for node in self._ray.nodes():
                    name, count = f"{node['NodeName']} {node['NodeID'][:6]}", int(node["Resources"].get("CPU", 0))
                    if node["Alive"] and count:
                        self._ids[name], cores[name] = node["NodeID"], count
                self._events.put(partial(self._see, cores))
            time.sleep(LOOK_S)

    def _see(self, cores: dict[str, int]) -> None:
        for id in self._nodes.see(cores):
            self._actors.pop(id, None)


_PLAIN = {
    "ActorDiedError": "its worker has died",
    "ActorUnavailableError": "its worker cannot be reached",
    "ActorUnschedulableError": "it has no cores for a worker",
    "OutOfMemoryError": "its memory has run out",
}


def in_words(error: BaseException) -> str:
    """Return the first line of what went wrong."""
    if (plain := _PLAIN.get(type(error).__name__)) is not None:
        return plain
    cause = getattr(error, "cause", None) or error
    text = str(cause).strip().partition("\n")[0]
    return f"{type(cause).__name__}: {text}"
