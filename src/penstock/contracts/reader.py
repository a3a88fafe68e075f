"""Reading from storage: which pieces of files go where, and what moves them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from penstock.errors import ReadFailed

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
