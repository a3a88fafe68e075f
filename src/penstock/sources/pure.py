"""Sources whose blocks can be made anywhere: each is a function of the source, the cycle and its plan alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from penstock.contracts import NO_JOINTS, Cursor, Joints, Source, SourceBlock, Wanted
from penstock.sources.order import Planned


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
