"""Which node of a cluster makes which block, and which nodes are set aside: a state machine, which knows no Ray.

Ray left alone stands still for 13 to 60 s when a node dies, freezes or is cut off. So each block is asked of one
worker, within a deadline. A node that is late is set aside, and others make its blocks; it is good again when
an answer comes. Whatever comes twice counts once. Pure: a model of clusters in random histories drives it
(``tests/sources/remote/test_nodes.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

QUEUED = 3
"""Blocks that a worker has: one on its way here, the one at hand, and the next."""
_LEAST_S = 1.0
_TIMES_USUAL = 5.0
_FIRST_S = 2.0
"""Time for a node's first block, of which nothing is known."""
_STARTS_S = 60.0
"""Time for a worker to start: where cores are taken it never does, and others could."""
_USUAL_OF = 0.2
"""Weight of the newest block in what is usual."""
_AGAIN_S = 1.0
_MOST_AGAIN_S = 30.0
_MOST_DOUBLINGS = 5
_MOST_FAILURES = 3
"""A node with this many failures in a row is set aside for a while."""
_MOST_RAISED = 2
"""A block that failed on this many nodes is made by the feeder, which finds out why."""


class WorkerId(NamedTuple):
    """One worker of a node; a worker that replaces it has another ``turn``."""

    node: str
    place: int
    turn: int


class NodeReport(msgspec.Struct, frozen=True):
    """How a node stands."""

    node: str
    workers: int  # workers that are ready there
    blocks: int  # blocks that it made
    usual_s: float | None  # time that it usually takes for one; None if it made none
    aside: str  # why it makes none now; empty if it does


@dataclass(eq=False)
class Usual:
    """How long something usually takes, in seconds; None before the first time."""

    s: float | None = None

    def add(self, took_s: float) -> None:
        """Learn how long it took; what was frozen once is not slow ever after."""
        if self.s is None:
            self.s = took_s
        else:
            self.s += _USUAL_OF * (min(took_s, _TIMES_USUAL * self.s) - self.s)

    def patience_s(self, least_s: float, first_s: float = 0.0) -> float:
        """Return how long it may take at least, and how long the first time, before it is late."""
        return first_s if self.s is None else max(least_s, _TIMES_USUAL * self.s)


@dataclass(eq=False)
class _NodeWorker:
    id: WorkerId
    state: str = "wanted"
    """``"wanted"``, ``"starting"`` or ``"ready"``."""
    start_s: float = 0.0
    """Not started before that."""
    has: deque[int] = field(default_factory=deque[int])
    since_s: float = 0.0
    """When it began with the first of these, or to start."""


@dataclass(eq=False)
class _RayNode:
    workers: list[_NodeWorker]
    usual: Usual = field(default_factory=Usual)
    blocks: int = 0
    aside: str = ""
    until_s: float | None = None
    """When it is tried again, if nothing else shows before that it is good."""
    failures: int = 0
    """Workers that failed, and blocks that did, since it last made one."""


class Nodes:
    """The nodes of a cluster, their workers, and the blocks that are under way."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most  # most workers on all nodes together; None for one on each core
        self._nodes: dict[str, _RayNode] = {}
        self._waiting: set[int] = set()  # blocks that no worker has
        self._open: set[int] = set()  # blocks that have not come
        self._raised: dict[int, dict[str, str]] = {}
        self._unmade: list[tuple[int, str]] = []
        self._turn = 0

    def see(self, cores: Mapping[str, int]) -> list[WorkerId]:
        """Learn which nodes there are, and their cores; return the workers of those that have gone."""
        gone = [worker for name in self._nodes.keys() - cores.keys() for worker in self._nodes.pop(name).workers]
        for worker in gone:
            self._take_back(worker)
        for name, count in cores.items():
            if name not in self._nodes:
                self._nodes[name] = _RayNode([self._new(name, place) for place in range(count)])
        return [worker.id for worker in gone]

    def to_start(self, now_s: float) -> list[WorkerId]:
        """Return workers that are to be started now, spread over the nodes."""
        due = [each for each in self._wanted() if each.start_s <= now_s]
        due.sort(key=lambda each: each.id.place)
        del due[self._room(len(due)) :]
        for worker in due:
            worker.state, worker.since_s = "starting", now_s
        return [worker.id for worker in due]

    def starting_too_long(self, now_s: float) -> list[WorkerId]:
        """Return workers that should have started by now, and have failed in that."""
        return [each.id for each in self._starting() if now_s >= each.since_s + _STARTS_S]

    def ready(self, id: WorkerId) -> None:
        """A worker has started, and makes the same samples as the feeder."""
        if (worker := self._worker(id)) is not None:
            worker.state = "ready"
            self._look_idle(self._nodes[id.node])

    def failed(self, id: WorkerId, why: str, now_s: float) -> None:
        """A worker has died, cannot start, or cannot be asked; another takes its place a little later.

        The block at hand may be why, so this counts as its failure on that node.
        """
        worker = self._worker(id)
        if worker is None:
            return
        node = self._nodes[id.node]
        if worker.has:
            self._blame(worker.has[0], id.node, why)
        self._take_back(worker)
        new = self._new(*id[:2])
        if node.failures:
            new.start_s = now_s + min(_MOST_AGAIN_S, _AGAIN_S * 2 ** min(node.failures, _MOST_DOUBLINGS))
        node.failures += 1
        node.workers[id.place] = new
        if not any(each.state == "ready" for each in node.workers):
            node.aside, node.until_s = why, None
        else:
            self._look_idle(node)

    def add(self, number: int) -> None:
        """Have a block made; those of smaller numbers are asked for first."""
        self._open.add(number)
        self._waiting.add(number)

    def forget(self) -> None:
        """Give up all blocks; workers may still be at them."""
        self._open.clear()
        self._waiting.clear()
        self._raised.clear()
        self._unmade.clear()

    def to_ask(self, now_s: float) -> list[tuple[WorkerId, int]]:
        """Return which workers are to be asked for which blocks now."""
        asked: list[tuple[WorkerId, int]] = []
        good = list(self._good())
        for number in sorted(self._waiting):
            failed_on = self._raised.get(number, {})
            others = [each for each in good if each.id.node not in failed_on]
            if failed_on and not others:
                self._give_up(number)
                continue
            free = [each for each in others if len(each.has) < QUEUED and number not in each.has]
            if not free:
                continue
            worker = min(free, key=lambda each: (len(each.has), self._nodes[each.id.node].usual.s or 0.0))
            self._waiting.remove(number)
            if not worker.has:
                worker.since_s = now_s
            worker.has.append(number)
            asked.append((worker.id, number))
        return asked

    def came(self, id: WorkerId, number: int, now_s: float) -> bool:
        """A worker's answer has come; return whether that block was still missing."""
        if (worker := self._worker(id)) is not None and number in worker.has:
            node = self._nodes[id.node]
            node.usual.add(now_s - worker.since_s)
            node.aside, node.until_s, node.failures = "", None, 0
            node.blocks += 1
            self._done(worker, number, now_s)
        if number not in self._open:
            return False
        self._open.discard(number)
        self._raised.pop(number, None)
        self._waiting.discard(number)
        return True

    def raised(self, id: WorkerId, number: int, why: str, now_s: float) -> None:
        """What a worker was to make raised an error there."""
        if (worker := self._worker(id)) is not None and number in worker.has:
            node = self._nodes[id.node]
            node.aside, node.until_s, node.failures = "", None, node.failures + 1
            self._done(worker, number, now_s)
            if node.failures >= _MOST_FAILURES:
                node.aside, node.until_s = why, now_s + _MOST_AGAIN_S
                for each in node.workers:
                    self._have_made_elsewhere(each)
        self._blame(number, id.node, why)
        if number in self._open and not any(number in each.has for each in self._good()):
            self._waiting.add(number)

    def unmade(self) -> list[tuple[int, str]]:
        """Return blocks that nodes could not make, since this was called last, and what went wrong there."""
        found, self._unmade = self._unmade, []
        return found

    def look(self, now_s: float) -> None:
        """Set nodes aside that are late, and try others again."""
        for node in self._nodes.values():
            if node.until_s is not None and now_s >= node.until_s:
                node.aside, node.until_s = "", None
            late = [now_s - each.since_s for each in node.workers if each.has and now_s >= self._deadline_s(each)]
            if late and not node.aside:
                node.aside = f"it has not answered for {max(late):.1f} s"
                for worker in node.workers:
                    self._have_made_elsewhere(worker)

    def due_s(self) -> float | None:
        """Return when to look next; None if nothing is waited for."""
        times = [self._deadline_s(each) for each in self._good() if each.has]
        times += [each.start_s for each in self._wanted()] if self._room(1) else []
        times += [each.since_s + _STARTS_S for each in self._starting()]
        times += [node.until_s for node in self._nodes.values() if node.until_s is not None]
        return min(times, default=None)

    @property
    def ready_workers(self) -> int:
        """Workers that can be asked now."""
        return sum(1 for _ in self._good())

    @property
    def open_blocks(self) -> int:
        """Blocks that have not come."""
        return len(self._open)

    def reports(self) -> list[NodeReport]:
        """Return how each node stands."""
        return [
            NodeReport(
                name, sum(each.state == "ready" for each in node.workers), node.blocks, node.usual.s, node.aside
            )
            for name, node in self._nodes.items()
        ]

    def _new(self, node: str, place: int) -> _NodeWorker:
        self._turn += 1
        return _NodeWorker(WorkerId(node, place, self._turn))

    def _workers(self) -> Iterator[_NodeWorker]:
        return (worker for node in self._nodes.values() for worker in node.workers)

    def _wanted(self) -> Iterator[_NodeWorker]:
        return (worker for worker in self._workers() if worker.state == "wanted")

    def _starting(self) -> Iterator[_NodeWorker]:
        return (worker for worker in self._workers() if worker.state == "starting")

    def _room(self, wanted: int) -> int:
        """Return how many of some workers may be started."""
        if self._most is None:
            return wanted
        return min(wanted, self._most - sum(each.state != "wanted" for each in self._workers()))

    def _good(self) -> Iterator[_NodeWorker]:
        good = (node for node in self._nodes.values() if not node.aside)
        return (worker for node in good for worker in node.workers if worker.state == "ready")

    def _worker(self, id: WorkerId) -> _NodeWorker | None:
        """Return a worker, unless another has taken its place."""
        node = self._nodes.get(id.node)
        worker = None if node is None else node.workers[id.place]
        return worker if worker is not None and worker.id == id else None

    def _deadline_s(self, worker: _NodeWorker) -> float:
        return worker.since_s + self._nodes[worker.id.node].usual.patience_s(_LEAST_S, _FIRST_S)

    def _look_idle(self, node: _RayNode) -> None:
        """Take a node for good again if none of its workers has a block that could be late."""
        if node.until_s is None and not any(each.has for each in node.workers):
            node.aside = ""

    def _blame(self, number: int, node: str, why: str) -> None:
        """Note that a block failed on a node."""
        if number not in self._open:
            return
        by_node = self._raised.setdefault(number, {})
        by_node[node] = why
        if len(by_node) >= _MOST_RAISED:
            self._give_up(number)

    def _give_up(self, number: int) -> None:
        self._open.discard(number)
        self._waiting.discard(number)
        self._unmade.append((number, next(reversed(self._raised.pop(number).values()))))

    def _done(self, worker: _NodeWorker, number: int, now_s: float) -> None:
        worker.has.remove(number)
        worker.since_s = now_s

    def _take_back(self, worker: _NodeWorker) -> None:
        """Have others make what a worker that is gone has."""
        self._have_made_elsewhere(worker)
        worker.has.clear()

    def _have_made_elsewhere(self, worker: _NodeWorker) -> None:
        on_others = {number for each in self._good() if each is not worker for number in each.has}
        self._waiting |= {number for number in worker.has if number in self._open} - on_others
