"""A source of batches from anything that can be iterated again and again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.contracts import Cursor, SourceBlock, Tree
from penstock.errors import BadSetting, SourceError
from penstock.sources.length import length
from penstock.sources.order import digest
from penstock.sources.seeds import order_seed, seed_process
from penstock.tree import describe


class IterableSource:
    """Feeds the batches of a re-iterable, pass after pass, as it gives them.

    It has one segment, and a position is reached by reading what lies before it.
    The generators of Python, NumPy and torch are seeded at the beginning of each
    pass, so that an order drawn from them can be repeated.

    Args:
        batches: Each ``iter()`` of it begins a new pass.
        seed: Random seed of what it draws in the first pass; later passes' seeds derive from it.

    Raises:
        BadSetting: it can be iterated only once.
    """

    seekable = False
    samples = None
    batch_size = None
    segment_starts = (0,)

    def __init__(self, batches: Iterable[Tree], *, seed: int = 0) -> None:
        if isinstance(batches, Iterator):
            raise BadSetting(
                f"a {type(batches).__name__} can be iterated only once, a feed is read pass after pass: "
                "give a list, or an object whose __iter__ starts afresh"
            )
        self._batches = batches
        self._seed = seed
        self.batches = length(batches)
        self.order = digest("batches", type(batches).__qualname__, self.batches, seed)
        self.description = f"batches of a {type(batches).__name__}"

    def open(self, at: Cursor) -> Iterator[SourceBlock]:
        seed_process(order_seed(self._seed, at.cycle))
        yield from counted(self._batches, at)

    def close(self) -> None:
        """There is nothing to release."""


def counted(batches: Iterable[Tree], at: Cursor) -> Iterator[SourceBlock]:
    """Number the samples of a pass, and leave out blocks that end at or before ``at.sample``."""
    sample = 0
    for tree in batches:
        rows = describe(tree, whole=True).rows
        if rows and sample + rows > at.sample:
            yield SourceBlock(sample, rows, tree)
        sample += rows
    if sample == 0:
        raise SourceError(
            f"the source gave no sample in cycle {at.cycle}: it is empty, or can be iterated only once"
        )
