"""The seams of Penstock, one Protocol each; ``penstock.testing`` ships a test suite for each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from penstock.errors import ReadFailed

Tree = Any
"""A block's or batch's tree: tuples, lists, dicts, namedtuples, dataclasses; leaves at the ends."""

ByteArray = npt.NDArray[np.uint8]


class Cursor(NamedTuple):
    """A position in a feed: the next sample of a cycle. Cursors compare in feed order."""

    cycle: int
    sample: int

    def after(self, rows: int, samples: int | None) -> Cursor:
        """The position ``rows`` rows on, where a cycle has ``samples``; within the cycle if that is unknown."""
        sample = self.sample + rows
        if samples is None:
            return Cursor(self.cycle, sample)
        return Cursor(self.cycle + sample // samples, sample % samples)

    def next_segment(self, starts: Sequence[int]) -> Cursor:
        """The first start of a segment at or after this position."""
        i = bisect_left(starts, self.sample)
        return Cursor(self.cycle, starts[i]) if i < len(starts) else Cursor(self.cycle + 1, 0)


class SourceBlock(NamedTuple):
    """What a source yields: ``rows`` samples of one cycle, the first of them number ``sample``."""

    sample: int
    rows: int
    tree: Tree


class Source(Protocol):
    """Where samples come from, pass after pass.

    A block never crosses the start of a segment, and block boundaries do not
    depend on where a cycle was opened. Every segment holds the same samples in
    every cycle.

    What a cycle gives, and in which order, depends on the cycle alone, whatever
    was opened before and in whichever process: a feeder that replaces another
    goes on in it.

    One whose blocks are made by workers may be a ``penstock.memory.slots.SlotSource`` too.
    Two more attributes may be there:

    - ``drop_last: bool``, False where it is absent: every sample is in the
      cycle, and each trainer is to leave out of each of its epochs what does
      not fill a batch of its own.
    - ``order: str``, empty where it is absent: a short digest of what decides
      the order, equal in every process. Feeds of different digests do not
      continue one another.
    """

    @property
    def description(self) -> str:
        """What it is, in a few words, for a person."""
        ...

    @property
    def samples(self) -> int | None:
        """Samples in a cycle; None when only a pass can tell."""
        ...

    @property
    def batches(self) -> int | None:
        """Blocks in a cycle, if the source says; a hint where ``samples`` is None."""
        ...

    @property
    def batch_size(self) -> int | None:
        """Rows of a full block; None when blocks have no usual size."""
        ...

    @property
    def segment_starts(self) -> tuple[int, ...]:
        """The first sample of each segment; ``(0,)`` when there is only one."""
        ...

    @property
    def seekable(self) -> bool:
        """Whether ``open`` reaches any position without reading what lies before it."""
        ...

    def open(self, at: Cursor) -> Iterator[SourceBlock]:
        """Yield the rest of cycle ``at.cycle``, beginning with the block that holds ``at.sample``.

        Closing the iterator early releases what it holds (workers, files).
        """
        ...

    def close(self) -> None:
        """Release what outlives a pass, such as workers that persist."""
        ...


DeviceBytes = Any
"""Memory of a GPU as an array of bytes that can be sliced; a torch tensor of uint8."""


class Event(Protocol):
    """A point in a GPU's copies (an event)."""

    def passed(self) -> bool:
        """Whether everything before it is done."""
        ...

    def wait(self) -> None:
        """Sleep until it has passed."""
        ...


class Gpu(Protocol):
    """A GPU as one process sees it.

    Its copies run one after the other on a stream of their own, beside what
    the process computes; only ``Event.wait`` and ``synchronize`` wait for them.
    """

    @property
    def name(self) -> str:
        """As a person names it: ``"cuda:0"``."""
        ...

    @property
    def uuid(self) -> str:
        """Which one it is, whatever its number in this process."""
        ...

    def pin(self, memory: ByteArray) -> None:
        """Register host memory, so that copies from it and to it are asynchronous.

        Its pages must be writable while this is called (docs/decisions/0013-pinning.md), and no private
        mapping of a file: the device would read copies of them from then on.

        Raises:
            PinningRefused: the system does not allow it; the message says why.
        """
        ...

    def unpin(self, memory: ByteArray) -> None:
        """Give up a registration; no copy from or to the memory may be under way."""
        ...

    def empty(self, nbytes: int) -> DeviceBytes:
        """New memory on the device, of arbitrary content."""
        ...

    def copy(self, to: DeviceBytes, origin: ByteArray, *, pinned: bool) -> None:
        """Begin to copy host bytes to the device; ``origin`` must stay as it is until a later mark has passed."""
        ...

    def copy_within(self, to: DeviceBytes, origin: DeviceBytes) -> None:
        """Begin to copy from a ring on a GPU, which must stay as it is until a later mark has passed."""
        ...

    def copy_out(self, to: ByteArray, origin: DeviceBytes) -> None:
        """Begin to copy from the device to host memory, where the bytes are once a later mark has passed."""
        ...

    def share(self, nbytes: int) -> tuple[DeviceBytes, int]:
        """New memory that other processes can map, and a descriptor of it.

        Raises:
            DeviceUnavailable: there is not so much; the message says how much there is.
        """
        ...

    def open_shared(self, fd: int, nbytes: int) -> DeviceBytes:
        """Map memory that another process shares; for reading only, where the driver can see to that.

        Raises:
            DeviceUnavailable: this GPU cannot reach it, or would read a copy of it.
        """
        ...

    def lend(self, memory: DeviceBytes, offset: int, nbytes: int, ended: Callable[[], None]) -> DeviceBytes:
        """Lend a range of mapped memory to somebody who keeps it.

        ``collect`` calls ``ended`` when nothing refers to the range any more and what was launched on it is
        done. It knows of the stream that is current where the last reference dies, and of no other. The
        mapping lives until then.
        """
        ...

    def collect(self) -> None:
        """Call what is due of the loans that have ended."""
        ...

    def collect_all(self) -> None:
        """Wait for the loans that have ended; one that ends later is waited for by itself, as it does."""
        ...

    def mark(self) -> Event:
        """The point after all copies begun so far."""
        ...

    def synchronize(self) -> None:
        """Sleep until all copies begun so far are done."""
        ...

    def wait_for_copies(self, memory: Sequence[DeviceBytes], mark: Event) -> None:
        """Whatever this thread launches on the device from now on runs after the mark, and may use this memory."""
        ...

    def wait_for_compute(self, memory: Sequence[DeviceBytes]) -> None:
        """Copies begun from now on run after what this thread has launched, and may read this memory."""
        ...

    def holds(self, tensor: Any) -> bool:
        """Whether a tensor lies on this GPU."""
        ...


class Ring(Protocol):
    """Bytes that one process writes and several read, as one of the readers maps them.

    A ring knows nothing of blocks: ``memory.room`` says which bytes are free, and
    the feed's state who still reads them.
    """

    @property
    def kind(self) -> str:
        """The path taken, as ``statistics()`` names it: ``"host memfd"``."""
        ...

    @property
    def capacity_bytes(self) -> int:
        """The window."""
        ...

    @property
    def fd(self) -> int:
        """The descriptor by which it was mapped, which is the ring's own until ``close``."""
        ...

    def readable(self, offset: int, nbytes: int) -> Any:
        """Give a range as an array of bytes. It keeps the mapping; the bytes may be reused once released."""
        ...

    def lend(self, offset: int, nbytes: int, ended: Callable[[], None]) -> Any:
        """Give a range to somebody who keeps it; ``ended`` is called when nobody uses it any longer."""
        ...

    def close(self) -> None:
        """Give the mapping up; it goes when the last view of it does."""
        ...


class WritableRing(Ring, Protocol):
    """A ring as the process that made it writes it."""

    @property
    def path(self) -> str:
        """How blocks come there, as ``statistics()`` names it."""
        ...

    @property
    def twin(self) -> WritableRing:
        """The ring on the host that holds equal bytes at equal offsets: of a ring on the host, itself."""
        ...

    def write(self, offset: int, part: ByteArray | DeviceBytes) -> None:
        """Copy bytes there; readers find them after ``flush``."""
        ...

    def written_in_place(self, offset: int, nbytes: int) -> None:
        """Take over what others have written into the twin; readers find it after ``flush``."""
        ...

    def flush(self) -> None:
        """Wait until all that was written can be read."""
        ...

    def open_for_readers(self) -> int:
        """A new descriptor by which another process attaches; the caller closes it."""
        ...


Numbers = npt.NDArray[np.int64]


class Extents(NamedTuple):
    """Pieces of files or objects, and where their bytes are to go; every field has one entry a piece.

    Attributes:
        tags: The caller's own numbers, by which it hears of each piece.
        files: What ``Reader.open`` gave for the file.
        offsets: In bytes from the file's beginning.
        nbytes: At least 1 each.
        to: In bytes from the beginning of the reader's memory.
    """

    tags: Numbers
    files: Numbers
    offsets: Numbers
    nbytes: Numbers
    to: Numbers

    def part(self, start: int, stop: int | None = None) -> Extents:
        """Some of them, as a slice."""
        return Extents(*(field[start:stop] for field in self))


class Completed(NamedTuple):
    """Extents that are done, in the order in which that happened.

    Attributes:
        tags: Theirs.
        failures: Those of them whose bytes did not come, and why; all others lie where they were to go.
    """

    tags: Numbers
    failures: dict[int, ReadFailed]


class Opened(NamedTuple):
    """A file or object that can be read."""

    file: int
    nbytes: int


class Reader(Protocol):
    """A mechanism that moves bytes from storage into one memory, many extents at once.

    Each extent comes whole or fails alone. One thread uses a reader.
    """

    @property
    def mech(self) -> str:
        """Its name: ``"posix"``, ``"direct"``, ``"uring"``, ``"gds"``, ``"gpu"``, ``"object"``."""
        ...

    @property
    def depth(self) -> int:
        """How many extents may be under way."""
        ...

    @property
    def path_taken(self) -> str:
        """What carries the bytes, in words for a person."""
        ...

    def open(self, path: str) -> Opened:
        """Open a file for reading; the same path gives the same file again.

        Raises:
            ReadFailed: it is not there, or must not be read.
            ReaderUnavailable: this mechanism cannot read it; the message says why.
        """
        ...

    def submit(self, extents: Extents) -> int:
        """Begin to read as many as there is room for, from the first on, and say how many those are.

        Raises:
            BadSetting: an extent has no bytes, or leaves the memory; none is begun.
        """
        ...

    def completed(self, at_least: int = 1) -> Completed:
        """Wait for so many extents, or for all that are under way if those are fewer; may give more."""
        ...

    def close(self) -> None:
        """Wait for what is under way, then close the files; nothing is written any more."""
        ...
