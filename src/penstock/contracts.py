"""The seams of Penstock, one Protocol each; ``penstock.testing`` ships a test suite for each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from penstock.errors import ReadFailed

Tree = Any
"""A block's or batch's tree: tuples, lists, mappings, namedtuples, dataclasses; leaves at the ends."""

ByteArray = npt.NDArray[np.uint8]
Ids = npt.NDArray[np.int64]
"""Samples by their number in the data set: ``dataset[id]`` is the sample."""


class Cursor(NamedTuple):
    """A position in a feed: the next sample of a cycle. Cursors compare in feed order."""

    cycle: int
    sample: int

    def after(self, rows: int, samples: int | None) -> Cursor:
        """Return the position ``rows`` rows on in cycles of ``samples``; in this cycle if that is None."""
        sample = self.sample + rows
        if samples is None:
            return Cursor(self.cycle, sample)
        return Cursor(self.cycle + sample // samples, sample % samples)

    def next_segment(self, starts: Sequence[int]) -> Cursor:
        """Return the first start of a segment at or after this position."""
        i = bisect_left(starts, self.sample)
        return Cursor(self.cycle, starts[i]) if i < len(starts) else Cursor(self.cycle + 1, 0)


class SourceBlock(NamedTuple):
    """What a source yields: ``rows`` samples of one cycle, the first of which is number ``sample``.

    Attributes:
        ids: Which samples of the data set the tree holds; None if the source does not know.
        kept: Which of the rows these are, rising; None for all. With none of them, the tree is None.
    """

    sample: int
    rows: int
    tree: Tree
    ids: Ids | None = None
    kept: Ids | None = None

    @property
    def stored(self) -> int:
        """How many samples the tree holds."""
        return self.rows if self.kept is None else len(self.kept)


Wanted = Callable[[int, Ids], npt.NDArray[np.bool_] | None]
"""Says, of a block's first sample and the ids of its rows, which of these are wanted; None for all."""


class Source(Protocol):
    """Where samples come from, pass after pass.

    A block never crosses the start of a segment, and block boundaries do not
    depend on where a cycle was opened. A segment's samples are fixed; only their
    order may change from cycle to cycle.

    What a cycle gives, and in which order, depends on the cycle alone, not on
    what was opened before or in which process: a feeder that replaces another
    goes on within it.

    A source whose blocks are made by workers may be a ``penstock.memory.slots.SlotSource`` too.
    Two more attributes are optional:

    - ``drop_last: bool``, by default False: every sample is in the cycle, and
      each trainer leaves out of each of its epochs what does not fill one of
      its batches.
    - ``order: str``, by default empty: a short digest of what decides the
      order, equal in every process. Feeds with different digests do not
      continue one another.

    A source with a third one, ``selects = True``, names its samples (``SourceBlock.ids``,
    from 0 to ``samples`` - 1, each once a cycle), and its ``open(at, wanted, salt)`` loads of
    each block only what is wanted. It asks once a block, in order, when it plans to load it.
    A ``salt`` other than 0 is mixed into the seeds of random draws, unless these belong to a sample's place in the
    cycle.
    """

    @property
    def description(self) -> str:
        """The source in a few words, for a person."""
        ...

    @property
    def samples(self) -> int | None:
        """Samples in a cycle; None if only a pass can tell."""
        ...

    @property
    def batches(self) -> int | None:
        """Blocks in a cycle, if the source says; only a hint if ``samples`` is None."""
        ...

    @property
    def batch_size(self) -> int | None:
        """Rows of a full block; None if blocks have no usual size."""
        ...

    @property
    def segment_starts(self) -> tuple[int, ...]:
        """The first sample of each segment; ``(0,)`` if there is only one."""
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


class Place(NamedTuple):
    """Where a sample's bytes lie: a part of a file or object, or all of it if ``nbytes`` is None.

    Attributes:
        path: The file, or the object's URL.
        offset: First byte.
        nbytes: Number of bytes.
        etag: Version of what it is a part of, if that is known; of an object, its ETag.
    """

    path: str
    offset: int = 0
    nbytes: int | None = None
    etag: str = ""


class Records(Protocol):
    """Where the samples of a data set lie; any process may read them, in any order."""

    @property
    def names(self) -> Sequence[str]:
        """A name for each sample: its path within a folder, or its key in a shard."""
        ...

    @property
    def root(self) -> str:
        """The folder or the shards that they lie in: the name of the data set in a cache."""
        ...

    @property
    def labels(self) -> Sequence[str]:
        """Labels that lie beside the samples; empty if none do."""
        ...

    @property
    def description(self) -> str:
        """The records in a few words, for a person."""
        ...

    def places(self, records: Ids) -> list[Place]:
        """Return where these samples lie."""
        ...

    def check_unchanged(self, records: Ids) -> None:
        """Check that these samples still lie there, after they were read.

        Raises:
            ReadFailed: what holds them was written to or replaced.
        """
        ...


class Region(NamedTuple):
    """A part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


class Decoder(Protocol):
    """Decodes JPEGs; equal bytes and regions give equal pixels from every decoder. Only one thread uses it."""

    @property
    def name(self) -> str:
        """What decodes, with its version, for a person."""
        ...

    def size(self, encoded: bytes) -> tuple[int, int]:
        """Return height and width, which the header says.

        Raises:
            ValueError: it is no JPEG that can be decoded.
        """
        ...

    def decode(self, encoded: bytes, region: Region) -> ByteArray:
        """Return a region's pixels, rows x columns x RGB, which may be reused by the next call.

        Raises:
            ValueError: it cannot be decoded.
        """
        ...


DeviceBytes = Any
"""Memory of a GPU: a flat torch tensor of uint8."""


class Event(Protocol):
    """A point in a GPU's work, such as a CUDA event."""

    def passed(self) -> bool:
        """Whether everything before it is done."""
        ...

    def wait(self) -> None:
        """Sleep until it has passed."""
        ...


class Gpu(Protocol):
    """A GPU as one process sees it.

    Its copies run one after the other on a separate stream, beside what the
    process computes; only ``Event.wait`` and ``synchronize`` wait for them.
    """

    @property
    def name(self) -> str:
        """Name for a person: ``"cuda:0"``."""
        ...

    @property
    def uuid(self) -> str:
        """UUID, which does not depend on the GPU's number in this process."""
        ...

    def pin(self, memory: ByteArray) -> None:
        """Register host memory, so that copies from and to it are asynchronous.

        Its pages must be writable during the call (docs/decisions/0013-pinning.md), and must not be a private
        mapping of a file, of which the device would read copies from then on.

        Raises:
            PinningRefused: the system does not allow it; the message says why.
        """
        ...

    def unpin(self, memory: ByteArray) -> None:
        """Give up a registration; no copy from or to the memory may be under way."""
        ...

    def empty(self, nbytes: int) -> DeviceBytes:
        """Allocate memory on the device, with arbitrary content."""
        ...

    def copy(self, to: DeviceBytes, origin: ByteArray, *, pinned: bool) -> None:
        """Begin to copy host bytes to the device; pinned ones must not change until a later mark has passed."""
        ...

    def copy_within(self, to: DeviceBytes, origin: DeviceBytes) -> None:
        """Begin to copy from a ring on a GPU; ``origin`` must not change until a later mark has passed."""
        ...

    def copy_out(self, to: ByteArray, origin: DeviceBytes) -> None:
        """Begin to copy from the device to host memory; the bytes are there once a later mark has passed."""
        ...

    def share(self, nbytes: int) -> tuple[DeviceBytes, int]:
        """Allocate memory that other processes can map; return it and its descriptor.

        Raises:
            DeviceUnavailable: too little memory is free; the message says how much.
        """
        ...

    def open_shared(self, fd: int, nbytes: int) -> DeviceBytes:
        """Map memory that another process shares, read-only if the driver can enforce that.

        Raises:
            DeviceUnavailable: this GPU cannot reach it, or would read a copy of it.
        """
        ...

    def lend(self, memory: DeviceBytes, offset: int, nbytes: int, ended: Callable[[], None]) -> DeviceBytes:
        """Lend a range of mapped memory to a trainer that keeps it.

        ``collect`` calls ``ended`` when nothing refers to the range any more and what was launched on it is
        done; it knows only of the stream that is current where the last reference dies. The mapping lives
        until then.
        """
        ...

    def collect(self) -> None:
        """Call ``ended`` for the loans that are over."""
        ...

    def collect_all(self) -> None:
        """Wait for the loans that are over, and from now on for each loan when it ends."""
        ...

    def mark(self) -> Event:
        """Return the point after all copies begun so far."""
        ...

    def synchronize(self) -> None:
        """Sleep until all copies begun so far are done."""
        ...

    def wait_for_copies(self, memory: Sequence[DeviceBytes], mark: Event) -> None:
        """Let what this thread launches from now on run after the mark, and use this memory."""
        ...

    def wait_for_compute(self, memory: Sequence[DeviceBytes]) -> None:
        """Let copies begun from now on run after what this thread has launched, and read this memory."""
        ...

    def holds(self, tensor: Any) -> bool:
        """Whether a tensor lies on this GPU."""
        ...


class Ring(Protocol):
    """Bytes that one process writes and several read, as a reader maps them.

    A ring knows nothing of blocks: ``memory.room`` knows which bytes are free, and
    the feed's state who still reads them.
    """

    @property
    def kind(self) -> str:
        """The path taken, as ``statistics()`` names it: ``"host memfd"``."""
        ...

    @property
    def capacity_bytes(self) -> int:
        """Size of the window, in bytes."""
        ...

    @property
    def fd(self) -> int:
        """The descriptor by which it was mapped, which the ring owns until ``close``."""
        ...

    def readable(self, offset: int, nbytes: int) -> Any:
        """Return a range as an array of bytes. It keeps the mapping; the bytes may be reused once released."""
        ...

    def lend(self, offset: int, nbytes: int, ended: Callable[[], None]) -> Any:
        """Return a range for keeping; ``ended`` is called when nothing uses it any more."""
        ...

    def close(self) -> None:
        """Give up the mapping, which lasts until its last view dies."""
        ...


class WritableRing(Ring, Protocol):
    """A ring, as the process that made it writes it."""

    @property
    def path(self) -> str:
        """How blocks get into the ring, as ``statistics()`` names it."""
        ...

    @property
    def twin(self) -> WritableRing:
        """The host ring with equal bytes at equal offsets; a host ring is its own twin."""
        ...

    def write(self, offset: int, part: ByteArray | DeviceBytes) -> None:
        """Copy bytes into the ring; readers see them after ``flush``."""
        ...

    def written_in_place(self, offset: int, nbytes: int) -> None:
        """Take over what workers have written into the twin; readers see it after ``flush``."""
        ...

    def flush(self) -> None:
        """Wait until all that was written can be read."""
        ...

    def open_for_readers(self) -> int:
        """Open a descriptor by which another process attaches; the caller closes it."""
        ...


Numbers = npt.NDArray[np.int64]


class Extents(NamedTuple):
    """Pieces of files or objects, and where their bytes are to go; every field has one entry per piece.

    Attributes:
        tags: The caller's numbers for the pieces, returned in ``Completed``.
        files: Files as ``Reader.open`` numbered them.
        offsets: Offsets in the files, in bytes.
        nbytes: Sizes in bytes, at least 1.
        to: Offsets in the reader's memory, in bytes.
    """

    tags: Numbers
    files: Numbers
    offsets: Numbers
    nbytes: Numbers
    to: Numbers

    def part(self, start: int, stop: int | None = None) -> Extents:
        """Return the pieces [start, stop)."""
        return Extents(*(field[start:stop] for field in self))


class Completed(NamedTuple):
    """Extents that are done, in order of completion.

    Attributes:
        tags: Tags of the extents.
        failures: By tag, why an extent failed; the bytes of all others are in place.
    """

    tags: Numbers
    failures: dict[int, ReadFailed]


class Opened(NamedTuple):
    """A file or object that can be read."""

    file: int
    nbytes: int


class Reader(Protocol):
    """A mechanism that moves bytes from storage into one memory, many extents at once.

    Each extent comes whole or fails by itself. Only one thread uses a reader.
    """

    @property
    def mech(self) -> str:
        """Name of the mechanism: ``"posix"``, ``"direct"``, ``"uring"``, ``"gds"``, ``"gpu"``, ``"object"``."""
        ...

    @property
    def depth(self) -> int:
        """Most extents that may be under way."""
        ...

    @property
    def path_taken(self) -> str:
        """What carries the bytes, in words for a person."""
        ...

    def open(self, path: str) -> Opened:
        """Open a file for reading; a path that is open already gives its file again.

        Raises:
            ReadFailed: it is not there, or must not be read.
            ReaderUnavailable: this mechanism cannot read it; the message says why.
        """
        ...

    def submit(self, extents: Extents) -> int:
        """Begin to read as many extents as there is room for, from the first on; return their number.

        Raises:
            BadSetting: an extent has no bytes, or exceeds the memory; none is begun.
        """
        ...

    def completed(self, at_least: int = 1) -> Completed:
        """Wait for ``at_least`` extents, or all under way if those are fewer; may return more."""
        ...

    def close(self) -> None:
        """Wait for reads under way, then close the files; nothing is written after that."""
        ...
