"""Sources whose blocks can be made anywhere: each is a function of the source, the cycle and its plan alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from penstock.contracts import NO_JOINTS, Cursor, Joints, Source, SourceBlock, Wanted
from penstock.errors import BadSetting
from penstock.memory.slots import Slots, SlotSource
from penstock.sources.order import Planned, digest


@runtime_checkable
class PureSource(Source, Protocol):
    """A source that plans its blocks, and loads any of them by itself.

    What ``load`` yields for a plan is bit for bit the same in every process that has the source and its data,
    whatever was loaded there before. Where blocks that are loaded one by one get other random draws than those of
    ``open``, as those of a ``DataLoader`` do, ``order_by_block`` is the source's ``order`` then.
    ``penstock.testing.SourceContract`` tests it.
    """

    @property
    def order(self) -> str:
        """Digest of what decides the order."""
        ...

    def plans(self, at: Cursor, wanted: Wanted | None = None, joints: Joints = NO_JOINTS) -> Iterator[Planned]:
        """Plan the rest of a cycle; arguments and order are those of ``open``."""
        ...

    def load(self, plans: Iterator[Planned], cycle: int) -> Iterator[SourceBlock]:
        """Yield the blocks of some plans of one cycle, in their order."""
        ...

    def work_here(self) -> None:
        """Load in this process from now on, without workers. It may be called once, before anything is loaded."""
        ...


class ByBlock:
    """A source each of whose blocks is loaded by itself: the same on every machine that has the data.

    ``asked`` is the argument that asks for it, for the error.
    """

    def __init__(self, source: Any, asked: str, *, joins: bool) -> None:
        if not isinstance(source, PureSource):
            raise BadSetting(
                f"{asked}: the blocks of {source.description} cannot be made one by one, each from the numbers of "
                "its samples. Give arrays, a DataLoader over a map-style data set without a sampler of its own, "
                f"or an Image-, Record- or PackedSource; or leave {asked} out"
            )
        self._source = source
        for name in _ATTRIBUTES:
            if hasattr(source, name):
                setattr(self, name, getattr(source, name))
        self.joins = joins  # whether epochs may begin at any block of it, and then decide later orders
        own = getattr(source, "order_by_block", source.order)
        self.order = own if joins else digest("without joints", own)

    @property
    def description(self) -> str:
        return self._source.description

    def open(self, at: Cursor, wanted: Wanted | None = None, joints: Joints = NO_JOINTS) -> Iterator[SourceBlock]:
        return self._source.load(self._source.plans(at, wanted, joints), at.cycle)

    def fill(self, slots: Slots) -> int:
        return self._source.fill(slots) if isinstance(self._source, SlotSource) else 0

    def close(self) -> None:
        self._source.close()


_ATTRIBUTES = (
    "samples",
    "batches",
    "batch_size",
    "segment_starts",
    "seekable",
    "selects",
    "shuffled",
    "starts",
    "drop_last",
    "slot_bytes",
    "block_bytes",
)
