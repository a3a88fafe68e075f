"""Makes a feed's blocks on a node of a cluster: the same source, made there once, loads any block by its plan."""

from __future__ import annotations

import math
import pickle
import platform
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import islice
from time import monotonic
from typing import Any, NamedTuple, cast

import numpy as np

from penstock._version import __version__
from penstock.basics.packages import import_path
from penstock.contracts import ByteArray, Cursor, Ids, SourceBlock, Tree
from penstock.errors import BadSetting, UnsupportedLeaf, Untravelled
from penstock.fingerprint.batch import LeafDigest, difference, leaves_of
from penstock.memory.host_ring import WritableHostRing
from penstock.memory.slots import Filled, Placement, Slot, Slots, SlotSource, place
from penstock.sources.adapt import adapt
from penstock.sources.order import Planned
from penstock.sources.pickling import SourcePickler
from penstock.sources.pure import PureSource
from penstock.tree import Array, array_nodes, bytes_of, describe

_OF_A_BLOCK = 8
_MOST_WITNESSES = 64
_WITNESSED_S = 1.0
"""After the first block, as many others are compared as are made here in this time."""
_PAGE = 4096
_MOST_BLOCKS = 1 << 16
"""Witnesses are of the first so many blocks: planning more takes too long."""
_UNKNOWN_BYTES = 1 << 20
"""Taken for the size of a block whose leaves are not all arrays."""

Leaves = tuple[LeafDigest, ...]


class MakerSpec(NamedTuple):
    """What a node needs to make a feed's blocks."""

    loader: bytes  # what is fed, pickled
    segments: int | None  # as the feed has them
    seed: int  # seed of the feed
    order: str  # the source's order
    path: list[str]  # where the feeder finds modules
    versions: tuple[str, ...]  # what runs in the feeder
    witness: list[Planned]  # blocks of few samples, from all over a cycle
    leaves: list[Leaves]  # digests of these samples, as the feeder makes them


class MadeBlock(NamedTuple):
    """A block of arrays in one piece of memory."""

    rows: int
    placement: Placement
    memory: ByteArray


def maker_spec_of(loader: Any, source: PureSource, segments: int | None, seed: int) -> MakerSpec:
    """Write down how a node makes the blocks of a source; this makes a few samples here.

    ``source`` was made of ``loader``, and nothing was loaded from it yet.
    """
    try:
        data = SourcePickler.pickled(loader)
    except Untravelled:
        raise BadSetting(
            f'workers="ray": a {type(loader).__name__} has its files open or mapped, and reads them faster than '
            "other machines could send them: leave workers out"
        ) from None
    except Exception as error:  # whatever a user's object raises
        raise BadSetting(
            f'workers="ray": a {type(loader).__name__} cannot be sent to other machines: {error}. Let it open '
            "what it needs (files, locks, connections) where it reads, not where it is made"
        ) from error
    plans = [*islice(source.plans(Cursor(0, 0), _few), _MOST_BLOCKS)]
    witness = plans[:: -(-len(plans) * len(plans[0].ids) // _MOST_WITNESSES)]
    leaves: list[Leaves] = []
    until_s = math.inf
    try:
        for found in _witnessed(source, witness):
            leaves.append(found)
            until_s = until_s if len(leaves) > 1 else monotonic() + _WITNESSED_S
            if monotonic() >= until_s:
                break
    except Exception:  # whatever a user's data set raises of a bad sample, which is said where it comes up
        if not leaves:
            raise
    source.close()
    return MakerSpec(data, segments, seed, source.order, import_path(), versions(), witness[: len(leaves)], leaves)


def versions() -> tuple[str, ...]:
    """Return what must be equal on all nodes, in words."""
    return f"Penstock {__version__}", f"Python {platform.python_version()}", f"NumPy {np.__version__}"


def other_versions(some: tuple[str, ...], others: tuple[str, ...], whose: str) -> str:
    """Return which of some ``versions`` are not those of somebody else; empty if all are."""
    pairs = zip(some, others, strict=True)
    return " and ".join(f"{one} where {whose} has {other}" for one, other in pairs if one != other)


class NodeMaker:
    """Makes blocks of a source in this process."""

    def __init__(self, maker_spec: MakerSpec) -> None:
        self._maker_spec = maker_spec
        self._source: Any = None
        self._ring: WritableHostRing | None = None
        self._slots: Slots | None = None
        self._slot = Slot(0, 0)

    def check(self) -> str:
        """Return what hinders this process from making the feeder's blocks; empty if nothing does."""
        if differ := other_versions(versions(), self._maker_spec.versions, "the feeder"):
            return f"it runs {differ}"
        sys.path[:] = [*self._maker_spec.path, *(each for each in sys.path if each not in self._maker_spec.path)]
        try:
            loader, segments, seed = self._maker_spec[:3]
            source = adapt(pickle.loads(loader), segments=segments, seed=seed)
            assert isinstance(source, PureSource)
            if source.order != self._maker_spec.order:
                return "its data are others, or fewer, than the feeder's"
            source.work_here()
            self._source = source
            witness = self._maker_spec.witness
            own, again = ([*_witnessed(source, some)] for some in (witness, witness[:1]))
        except Exception as error:  # whatever a user's loader raises
            return f"it cannot load the data: {type(error).__name__}: {error}"
        if found := self._first_difference(own, again):
            return f"it makes {found} otherwise each time: its draws are not those of global generators"
        if found := self._first_difference(own, self._maker_spec.leaves):
            return f"it makes {found} otherwise than the feeder"
        return ""

    def make(self, plan: Planned, cycle: int) -> MadeBlock | Tree:
        """Return a block: in one piece if all of it are arrays."""
        if self._slots is not None:
            while self._slots.take() is not None:  # left by a block that failed
                pass
            self._slots.offer(self._slot)
        (block,) = self._source.load(iter([plan]), cycle)
        if isinstance(block.tree, Filled):
            assert self._slots is not None
            memory = self._slots.memory(self._slot)[: block.tree.placement.nbytes]
            return MadeBlock(block.tree.rows, block.tree.placement, memory)
        made = in_one_piece(block.tree)
        if isinstance(made, MadeBlock) and self._slots is None and isinstance(self._source, SlotSource):
            self._fill(made)
        return made

    def make_apart(self, plan: Planned, cycle: int) -> tuple[int, MadeBlock | Tree]:
        """Return the size of a block as well, which travels by itself."""
        made = self.make(plan, cycle)
        return made.memory.nbytes if isinstance(made, MadeBlock) else _UNKNOWN_BYTES, made

    def close(self) -> None:
        """Close the source, and free the memory that blocks are made in."""
        if self._source is not None:
            self._source.close()
        if self._slots is not None and self._ring is not None:
            self._slots.close()
            self._ring.close()

    def _fill(self, made: MadeBlock) -> None:
        """Have blocks of this size made in memory that is sent as it is."""
        full = max(made.rows, self._source.batch_size or 1)
        leaf_bytes = [nbytes // made.rows * full for nbytes in made.placement.leaf_bytes]
        nbytes = getattr(self._source, "slot_bytes", 0) or place(made.placement.layout, leaf_bytes).nbytes
        self._slot = Slot(0, -(-nbytes // _PAGE) * _PAGE)
        self._ring = WritableHostRing.create(self._slot.nbytes)
        self._slots = Slots(self._ring)
        self._source.fill(self._slots)

    def _first_difference(self, own: Sequence[Leaves], others: Sequence[Leaves]) -> str:
        """Return what of which sample differs; empty if nothing does."""
        for plan, mine, other in zip(self._maker_spec.witness, own, others, strict=False):
            if (found := difference(mine, other)) is not None:
                leaf, row = found
                return f"{leaf} of sample {plan.ids[row]:,}"
        return ""


def in_one_piece(tree: Tree) -> MadeBlock | Tree:
    """Return a block's arrays side by side; the tree itself if it has other leaves, or arrays without rows."""
    try:
        layout, rows, leaves = describe(tree)
    except UnsupportedLeaf:
        return tree
    if not leaves or not all(isinstance(node, Array) for node in array_nodes(layout)):
        return tree
    parts = [bytes_of(node, leaf) for node, leaf in zip(array_nodes(layout), leaves, strict=True)]
    placement = place(layout, [part.nbytes for part in parts])
    memory = np.empty(placement.nbytes, np.uint8)
    for room, part in zip(placement.leaves_in(memory), parts, strict=True):
        room[:] = part
    return MadeBlock(rows, placement, memory)


def _few(sample: int, ids: Ids) -> Any:
    return np.arange(len(ids)) < _OF_A_BLOCK


def _witnessed(source: PureSource, witness: Sequence[Planned]) -> Iterator[Leaves]:
    with closing(cast("Generator[SourceBlock]", source.load(iter(witness), 0))) as blocks:
        for block in blocks:
            yield leaves_of(block.tree, block.stored)
