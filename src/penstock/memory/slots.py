"""How a block lies in memory, and room that is reserved in a ring before it exists, for a worker to write it."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from io import FileIO
from itertools import accumulate, chain
from multiprocessing.reduction import DupFd
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

from penstock.contracts import ByteArray, Tree
from penstock.memory.host_ring import WritableHostRing
from penstock.memory.room import aligned
from penstock.tree import Array, Constant, Node, array_nodes, build, leaf_from_bytes


class Placement(NamedTuple):
    """A block's tree, and where in the block each leaf lies."""

    layout: Node
    leaf_offsets: tuple[int, ...]  # bytes from the block's beginning, for each leaf in order
    leaf_bytes: tuple[int, ...]  # the size of each leaf
    nbytes: int  # size of the block

    @property
    def end(self) -> int:
        """Offset of the end of the last leaf."""
        return end_of_leaves(self.leaf_offsets, self.leaf_bytes)

    def leaves_in(self, memory: Any) -> list[Any]:
        """Slice a block's memory, on the host or on a GPU, into its leaves."""
        return [memory[start : start + n] for start, n in zip(self.leaf_offsets, self.leaf_bytes, strict=True)]

    def copied(self, memory: ByteArray, rows: int) -> Tree:
        """Return the tree of a block of arrays alone, made of copies of them."""
        leaves = zip(array_nodes(self.layout), self.leaves_in(memory), strict=True)
        return build(
            self.layout, [leaf_from_bytes(cast("Array", node), leaf.copy(), rows) for node, leaf in leaves]
        )


def place(layout: Node, leaf_bytes: Sequence[int]) -> Placement:
    """Place leaves one after the other, each aligned."""
    offsets = 0, *accumulate(map(aligned, leaf_bytes))
    return Placement(layout, offsets[:-1], tuple(leaf_bytes), offsets[-1])


EMPTY = place(Constant(None), ())
"""How a block lies that has no rows."""


def end_of_leaves(leaf_offsets: Sequence[int], leaf_bytes: Sequence[int]) -> int:
    """Return the offset of the end of the last leaf; 0 if there is none."""
    return max(map(sum, zip(leaf_offsets, leaf_bytes, strict=True)), default=0)


_RECORD = struct.Struct("=QQ")


class Slot(NamedTuple):
    """Reserved bytes of a ring."""

    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Filled:
    """Stands in place of a block's tree: the block lies in a slot."""

    slot: Slot
    rows: int
    placement: Placement


@runtime_checkable
class SlotSource(Protocol):
    """A source whose workers can write blocks straight into the ring."""

    def fill(self, slots: Slots) -> int:
        """Use these slots from the next pass on: a block that lies in one has its ``Filled`` as tree.

        When a pass is closed, no worker may write any more. Returns how many
        slots are of use at once; 0 if no block can lie in one.
        """
        ...


@runtime_checkable
class SizedSlotSource(SlotSource, Protocol):
    """A slot source that knows before its first block how large a slot it needs."""

    @property
    def slot_bytes(self) -> int: ...  # size of a slot, wherever it begins

    @property
    def block_bytes(self) -> int: ...  # size of a full block in a ring


class OwnSlots:
    """Slots of one size in a process's own memory, side by side from its beginning on."""

    def __init__(self, count: int, nbytes: int) -> None:
        self._free = [Slot(i * nbytes, nbytes) for i in range(count)]

    def take(self) -> Slot | None:
        return self._free.pop() if self._free else None

    def offer(self, slot: Slot) -> None:
        self._free.append(slot)


class Slots:
    """The slots on offer, shared by a feeder and its loader's workers.

    They wait in a pipe: a record is written and read in one piece, a killed
    worker leaves no lock behind, and no message passes through the feeder. An
    instance may be passed to a process that is being spawned.
    """

    def __init__(self, ring: WritableHostRing) -> None:
        self._ring = ring  # ring in which slots lie
        # In C: were Ctrl-C to come between, nobody would close the pipe.
        ends = chain.from_iterable(map(os.pipe2, (os.O_NONBLOCK | os.O_CLOEXEC,)))
        self._reading, self._writing = map(FileIO, ends, "rw")

    def offer(self, slot: Slot) -> None:
        """Offer a slot; the worker that takes it may write there."""
        os.write(self._writing.fileno(), _RECORD.pack(*slot))

    def take(self) -> Slot | None:
        """Take a slot, until it is offered again or given as ``Filled``; None if there is none."""
        try:
            return Slot(*_RECORD.unpack(os.read(self._reading.fileno(), _RECORD.size)))
        except BlockingIOError:
            return None

    @property
    def ring_memory(self) -> ByteArray:
        """All bytes of the ring, which may be registered; only those of a slot that was taken may be written."""
        self._ring.registered = True
        return self._ring.writable(0, self._ring.capacity_bytes)

    @property
    def ring_file(self) -> tuple[int, int]:
        """The descriptor by which another process may map the ring to write to slots, and the ring's size."""
        return self._ring.fd, self._ring.capacity_bytes

    def memory(self, slot: Slot) -> ByteArray:
        """Return the bytes of a slot, for its taker to write."""
        return self._ring.writable(slot.offset, slot.nbytes)

    def close(self) -> None:
        """Close the pipe; the feeder does, once no worker is left. The ring stays open."""
        self._reading.close()
        self._writing.close()

    def __reduce__(self) -> Any:
        pipe = DupFd(self._reading.fileno()), DupFd(self._writing.fileno())
        parts = DupFd(self._ring.fd), self._ring.capacity_bytes, *pipe
        return _in_spawned_process, parts


def _in_spawned_process(ring_fd: Any, capacity_bytes: int, reading: Any, writing: Any) -> Slots:
    slots = Slots.__new__(Slots)
    slots.__dict__.update(
        _ring=WritableHostRing(FileIO(ring_fd.detach(), "r+"), capacity_bytes),
        _reading=FileIO(reading.detach(), "r"),
        _writing=FileIO(writing.detach(), "w"),
    )
    return slots
