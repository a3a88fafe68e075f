"""A source whose blocks are made by a cluster, and by this process while the cluster makes none."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from penstock.basics.packages import require
from penstock.contracts import NO_JOINTS, Cursor, Joints, SourceBlock, Wanted
from penstock.errors import BadSetting
from penstock.memory.slots import Slots, SlotSource
from penstock.sources.order import Planned
from penstock.sources.pure import PureSource
from penstock.sources.remote.bridge import Task
from penstock.sources.remote.maker import commission_of
from penstock.sources.remote.workers import NodesLost, NodeWorkers, NotMade, in_words

_SLOTS = 256
"""Most slots of use: workers are not counted before the cluster is asked."""
_ATTRIBUTES = (
    "samples",
    "batches",
    "batch_size",
    "segment_starts",
    "seekable",
    "selects",
    "joins",
    "shuffled",
    "starts",
    "drop_last",
    "slot_bytes",
    "block_bytes",
)


class RemoteSource:
    """Feeds what another source does, made by workers of a Ray cluster.

    Each block is a function of its plan: whoever makes it, and how often, it is the same. While no node of the
    cluster makes blocks, this process loads them.

    Args:
        loader: What is fed.
        source: The source that was made of it.
        most: Most workers; None for one on each core of the cluster.
        segments: Segments that were asked for.
        seed: Seed of the feed.

    Raises:
        BadSetting: a block of this source is no function of its plan; the message says why.
        PackageMissing: Ray is not installed; the message has the command.
    """

    def __init__(self, loader: Any, source: Any, most: int | None, *, segments: int | None, seed: int) -> None:
        if not isinstance(source, PureSource):
            raise BadSetting(
                f'workers="ray": the blocks of {source.description} cannot be made one by one, each from the '
                "numbers of its samples. Give a DataLoader over a map-style data set without a sampler of its "
                "own, an ImageSource, a RecordSource, a TokenSource or a PackedSource, or leave workers out"
            )
        require('workers="ray"', "ray", "ray")
        self._source = source
        self._workers = NodeWorkers(commission_of(loader, source, segments, seed), most)
        self._waited = False
        self._numbers = count()
        self._slots: Slots | None = None
        for name in _ATTRIBUTES:
            if hasattr(source, name):
                setattr(self, name, getattr(source, name))
        self.order: str = getattr(source, "order_by_block", source.order)

    @property
    def description(self) -> str:
        standing = self._workers.standing
        who = "made by" if standing.workers else "loaded by the feeder itself:"
        return f"{self._source.description}, {who} {in_words(standing)}"

    def open(self, at: Cursor, wanted: Wanted | None = None, joints: Joints = NO_JOINTS) -> Iterator[SourceBlock]:
        if not self._waited:
            self._waited = True
            self._workers.wait()
        plans = _Plans(self._source.plans(at, wanted, joints))
        while plans.any_left():
            if self._workers.usable():
                yield from self._from_nodes(plans, at.cycle)
            else:
                yield from self._source.load(plans.until(self._workers.usable), at.cycle)

    def fill(self, slots: Slots) -> int:
        self._slots = slots
        self._workers.use(slots)
        own = self._source.fill(slots) if isinstance(self._source, SlotSource) else 0
        return max(own, _SLOTS)

    def close(self) -> None:
        self._workers.close()
        self._source.close()

    def _from_nodes(self, plans: _Plans, cycle: int) -> Iterator[SourceBlock]:
        """Yield blocks that the cluster makes, until it makes none."""
        begun: deque[Task] = deque()
        try:
            while True:
                while len(begun) <= self._workers.capacity and (plan := next(plans, None)) is not None:
                    slot = None if self._slots is None or not len(plan.ids) else self._slots.take()
                    if slot is None and self._slots is not None and begun and len(plan.ids):
                        plans.put_back([plan])  # a slot comes free when one of these has been given
                        break
                    begun.append(Task(next(self._numbers), plan, cycle, slot))
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
                    yield from self._source.load(iter([task.plan]), cycle)
                    continue
                begun.popleft()
                if getattr(tree, "slot", None) is None:
                    self._offer(task)
                yield task.plan.block(tree)
        except NodesLost:
            pass
        finally:
            self._workers.settle()
            for task in begun:
                self._offer(task)
            plans.put_back([task.plan for task in begun])

    def _offer(self, task: Task) -> None:
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
