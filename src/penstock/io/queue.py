"""The lowest level of a mechanism: plain reads, many at once."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from penstock.contracts import Numbers, Opened

CPU_SERVED = "CPU-served"
"""Says in ``path_taken`` that a thread served the queues of ``"gpu"``, not a disk."""


class Reads(NamedTuple):
    """Reads to begin; every field has one entry per read.

    Attributes:
        ids: Numbers below the queue's depth, none of them under way.
        files: Files as ``Queue.open`` numbered them.
        offsets: Offsets in the file, multiples of the queue's alignment.
        nbytes: Bytes to read, multiples of the queue's alignment.
        addresses: Addresses in this process or on the device, multiples of the queue's alignment.
    """

    ids: Numbers
    files: Numbers
    offsets: Numbers
    nbytes: Numbers
    addresses: Numbers


class Results(NamedTuple):
    """Reads that are done.

    Attributes:
        ids: Ids of the reads.
        nbytes: How many bytes came, or the negative error number.
        reasons: By id, why a read failed, if the storage says more than a number.
    """

    ids: Numbers
    nbytes: Numbers
    reasons: Mapping[int, str] = MappingProxyType({})


class Queue(Protocol):
    """A mechanism's plain reads; ``QueueReader`` repeats, cuts and aligns them."""

    @property
    def mech(self) -> str: ...

    @property
    def depth(self) -> int: ...

    @property
    def alignment(self) -> int:
        """Unit of offsets, sizes and addresses, in bytes; 1 if any will do.

        A power of two. It may rise when a file is opened that needs more.
        """
        ...

    @property
    def path_taken(self) -> str: ...

    def open(self, path: str) -> Opened:
        """Open a file that has not been opened here before.

        Raises:
            OSError: the system refuses.
            ReaderUnavailable: this mechanism cannot read it.
        """
        ...

    def push(self, reads: Reads) -> None:
        """Begin to read; never more than ``depth`` are under way."""
        ...

    def pop(self, at_least: int) -> Results:
        """Wait for ``at_least`` results; that many reads must be under way."""
        ...

    def close(self) -> None:
        """Close all files, when nothing is under way any more."""
        ...
