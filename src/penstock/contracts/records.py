"""Data sets of files or objects: where each sample lies, which part of an image is wanted, what decodes it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from penstock.contracts.memory import ByteArray, Ids
from penstock.errors import ReadFailed


class Place(NamedTuple):
    """Where a sample's bytes lie: a part of a file or object, or all of it if ``nbytes`` is None.

    Attributes:
        path: The file, or the object's URL.
        offset: First byte.
        nbytes: Number of bytes.
        etag: Version of what it is a part of, if that is known; of an object, its ETag.
        name: What it is called in errors, if not by its path.
    """

    path: str
    offset: int = 0
    nbytes: int | None = None
    etag: str = ""
    name: str = ""

    @property
    def where(self) -> str:
        """Where it lies, for errors."""
        return self.name or (self.path if self.nbytes is None else f"{self.path}, at byte {self.offset:,}")


class Stored(Protocol):
    """A data set of files or objects."""

    @property
    def root(self) -> str:
        """The folder or the files that it lies in: the name of the data set in a cache."""
        ...

    @property
    def parts(self) -> Sequence[tuple[str, int]]:
        """Each file that holds several samples, or rows: its name, and how many; empty if none does."""
        ...

    @property
    def description(self) -> str:
        """The data set in a few words, for a person."""
        ...


class Records(Stored, Protocol):
    """Where the samples of a data set lie; any process may read them, in any order."""

    @property
    def names(self) -> Sequence[str]:
        """A name for each sample: its path within a folder, or its key in a shard."""
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


class FieldParser(Protocol):
    """From a sample's bytes to its fields, in any process.

    Values are NumPy's, text, bytes, or what JSON holds; arrays may not be written to. It raises ``ValueError`` for
    damaged bytes, and nothing else.
    """

    def __call__(self, sample: bytes, /) -> dict[str, Any]: ...

    def only(self, fields: Collection[str], /) -> FieldParser:
        """Return one that parses these fields alone; the bytes of others are not looked at."""
        ...


class FieldRecords(Records, Protocol):
    """Records whose samples have named fields: one row of a table each."""

    @property
    def fields(self) -> Mapping[str, str]:
        """The type of each field, in a word for people; each sample has them all."""
        ...

    @property
    def parse(self) -> FieldParser:
        """What parses a sample."""
        ...


class Tables(Stored, Protocol):
    """Files whose rows lie in groups, each of which is read whole; any thread may read.

    A column is named as in the schema, a field of a struct as ``struct.field``.
    """

    @property
    def schema(self) -> Any:
        """The ``pyarrow.Schema`` of the columns that all files have alike."""
        ...

    @property
    def unlike(self) -> Mapping[str, str]:
        """The other columns, and what each is in which files."""
        ...

    @property
    def group_rows(self) -> Ids:
        """Rows of each group; none is empty."""
        ...

    def group_bytes(self, column: str) -> Ids:
        """Return the bytes of a column in each group, as far as the files say."""
        ...

    def ranges(self, column: str) -> list[tuple[Any, Any]] | None:
        """Return the least and the greatest value of each group; None if the files do not say."""
        ...

    def may_hold(self, expression: Any) -> list[bool]:
        """Return whether each group may hold rows of which a ``pyarrow.compute.Expression`` is true."""
        ...

    def read(self, group: int, columns: Sequence[str]) -> Any:
        """Return a ``pyarrow.Table`` of columns of a group.

        Raises:
            ReadFailed: it cannot be read, or a file was replaced or written to since it was opened.
        """
        ...

    def where(self, group: int) -> str:
        """Return where a group lies, for errors."""
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
