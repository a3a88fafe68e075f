"""A source whose blocks are made by a cluster, and by this process while the cluster makes none."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from itertools import count
from typing import Any, cast

from penstock.basics.packages import require
from penstock.contracts import NO_JOINTS, Cursor, Joints, SourceBlock, Wanted
from penstock.memory.slots import Filled, Slots
from penstock.sources.order import Planned
from penstock.sources.pure import ByBlock
from penstock.sources.remote.bridge import BlockTask
from penstock.sources.remote.maker import maker_spec_of
from penstock.sources.remote.status import ClusterReport
from penstock.sources.remote.workers import NodesLost, NodeWorkers, NotMade

_ASKED = 'workers="ray"'
_SLOTS = 256
"""Most slots of use: workers are not counted before the cluster is asked."""


class RemoteSource(ByBlock):
    """Feeds what another source does, made by workers of a Ray cluster.

    Each block is a function of its plan: whoever makes it, and how often, it is the same. While no node of the
    cluster makes blocks, this process loads them.
    """

    def __init__(
        self,
        loader: Any,  # what is fed
        source: Any,  # the source that was made of it
        most: int | None,  # most workers; None for one on each core of the cluster
        *,
        segments: int | None,  # segments that were asked for
        seed: int,  # seed of the feed
        across: str | None = None,  # name of the feeds that share the blocks, on several machines
    ) -> None:
        super().__init__(source, _ASKED, joins=across is None)
        require(_ASKED, "ray", "ray")
        self._workers = NodeWorkers(maker_spec_of(loader, self._source, segments, seed), most, across)
        self._is_across, self._waited = across is not None, False
        self._numbers = count()
        self._blocks = self._own = 0
        self._slots: Slots | None = None

    @property
    def description(self) -> str:
        standing = self._workers.standing
        who = "made by" if standing.workers else "loaded by the feeder itself:"
        return f"{self._source.description}, {who} {standing.in_words}"

    @property
    def cluster(self) -> ClusterReport:
        """Who made the blocks so far."""
        return ClusterReport(self._workers.standing, self._blocks, self._workers.received_bytes, self._own)

    @property
    def begins_at(self) -> Cursor:
        """Where a feed begins that shares its blocks with others: at the next segment of theirs."""
        self._wait()
        frontier = self._workers.frontier
        return Cursor(0, 0) if frontier is None else frontier.next_segment(self._source.segment_starts)

    def open(self, at: Cursor, wanted: Wanted | None = None, joints: Joints = NO_JOINTS) -> Iterator[SourceBlock]:
        self._wait()
        plans = _Plans(self._source.plans(at, wanted, joints))
        while plans.any_left():
            if self._workers.usable():
                yield from self._from_nodes(plans, at.cycle)
            else:
                yield from self._loaded(plans.until(self._workers.usable), at.cycle)

    def _wait(self) -> None:
        """Wait, once, until it is known whether other feeds share the blocks: who shares none begins by itself."""
        if self._is_across and not self._waited:
            self._waited = True
            self._workers.wait()

    def fill(self, slots: Slots) -> int:
        self._slots = slots
        self._workers.use(slots)
        return max(super().fill(slots), _SLOTS)

    def close(self) -> None:
        self._workers.close()
        super().close()

    def _from_nodes(self, plans: _Plans, cycle: int) -> Iterator[SourceBlock]:
        """Yield blocks that the cluster makes, until it makes none."""
        begun: deque[BlockTask] = deque()
        try:
            while True:
                while len(begun) <= self._workers.capacity and (plan := next(plans, None)) is not None:
                    slot = None if self._slots is None or not len(plan.ids) else self._slots.take()
                    waits = self._slots is not None and self._workers.fills_slots and begun
                    if slot is None and waits and len(plan.ids):
                        plans.put_back([plan])  # a slot comes free when one of these has been given
                        break
                    begun.append(BlockTask(next(self._numbers), plan, cycle, slot))
                    if len(plan.ids):
                        self._workers.submit(begun[-1])
                if not begun:
                    return
                task = begun[0]
                try:
                    tree = self._workers.result(task.number) if len(task.plan.ids) else None
                except NotMade:  # which this process shows to be an error, or not
                    begun.popleft()
                    self._offer(task)
                    yield from self._loaded(iter([task.plan]), cycle)
                    continue
                begun.popleft()
                if not isinstance(tree, Filled):
                    self._offer(task)
                self._blocks += len(task.plan.ids) > 0
                yield task.plan.block(tree)
        except NodesLost:
            pass
        finally:
            self._workers.settle()
            for task in begun:
                self._offer(task)
            plans.put_back([task.plan for task in begun])

    def _loaded(self, plans: Iterator[Planned], cycle: int) -> Iterator[SourceBlock]:
        """Yield blocks that this process loads."""
        with closing(cast("Generator[SourceBlock]", self._source.load(plans, cycle))) as blocks:
            for block in blocks:
                self._own += 1
                yield block

    def _offer(self, task: BlockTask) -> None:
        if task.slot is not None and self._slots is not None:
            self._slots.offer(task.slot)


class _Plans(Iterator[Planned]):
    """Plans of blocks, which can be put back."""

    def __init__(self, plans: Iterator[Planned]) -> None:
        self._plans = plans
        self._first: deque[Planned] = deque()

    def __next__(self) -> Planned:
        return self._first.popleft() if self._first else next(self._plans)

    def put_back(self, plans: list[Planned]) -> None:
        """Have these come next."""
        self._first.extendleft(reversed(plans))

    def any_left(self) -> bool:
        """Whether there are more."""
        if not self._first and (plan := next(self._plans, None)) is not None:
            self._first.append(plan)
        return bool(self._first)

    def until(self, ends: Callable[[], bool]) -> Iterator[Planned]:
        """Yield plans until a condition holds; the others are left."""
        while not ends() and self.any_left():
            yield next(self)
