"""What a mechanism offers at its lowest: plain reads, many at once."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from penstock.contracts import Numbers, Opened

CPU_SERVED = "CPU-served"
"""In ``path_taken`` where no disk served the queues of ``"gpu"``, but a thread: that is for tests."""


class Reads(NamedTuple):
    """Reads to be begun; every field has one entry a read.

    Attributes:
        ids: From 0 to below the queue's depth, none of them under way.
        files: What ``Queue.open`` gave.
        offsets: In the file, a multiple of the queue's alignment.
        nbytes: The same.
        addresses: In this process, or on the device; the same.
    """

    ids: Numbers
    files: Numbers
    offsets: Numbers
    nbytes: Numbers
    addresses: Numbers


class Results(NamedTuple):
    """Reads that are done.

    Attributes:
        ids: As they were begun with.
        nbytes: How many bytes came, or the negative error number.
        reasons: By id, why a read failed, where the storage says more than a number.
    """

    ids: Numbers
    nbytes: Numbers
    reasons: Mapping[int, str] = MappingProxyType({})


class Queue(Protocol):
    """Reads as a mechanism does them: nothing is repeated, cut or aligned; ``QueueReader`` sees to that."""

    @property
    def mech(self) -> str: ...

    @property
    def depth(self) -> int: ...

    @property
    def alignment(self) -> int:
        """What offsets, sizes and addresses must be multiples of, in bytes; 1 where anything goes.

        A power of two. It may rise when a file is opened that wants more.
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
        """Begin to read; never more than ``depth`` at once."""
        ...

    def pop(self, at_least: int) -> Results:
        """Wait for so many results; that many reads are under way."""
        ...

    def close(self) -> None:
        """Nothing is under way any more."""
        ...
