"""Token files as nanoGPT, llm.c and NumPy write them, and as Megatron does, mapped."""

from __future__ import annotations

import glob
import mmap
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.contracts import Numbers
from penstock.errors import BadSetting, ReadFailed
from penstock.fingerprint.data import FileVersion
from penstock.sources.tokens import megatron

_HEADER_INTS = 256
_SUFFIXES = (".bin", ".npy")
_LLM_C = {(20240520, 1): "uint16", (20240801, 7): "uint32"}
"""Magic number and version of llm.c's files, and what their tokens are (its dev/data/data_common.py)."""

Tokens = npt.NDArray[Any]


class TokenFile:
    """A file of tokens, mapped read-only.

    Args:
        path: A ``.bin`` without a header or with llm.c's, an ``.npy``, or Megatron's ``.bin`` beside its ``.idx``.
        dtype: Type of tokens without a header; None for uint16, as nanoGPT writes them.

    Attributes:
        tokens: All tokens, one axis.
        documents: The first token of each document, and the number of tokens; None if the file has no index.

    Raises:
        BadSetting: it is no file of tokens; the message says what it is.
    """

    def __init__(self, path: Path, dtype: str | None) -> None:
        self.path = path
        self.documents: Numbers | None = None
        try:
            with path.open("rb") as file:
                self._version = FileVersion.of(os.fstat(file.fileno()))
                if not self._version.nbytes:
                    raise BadSetting(f"{path} is empty")
                self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise BadSetting(f"{path} cannot be read: {error.strerror}") from None
        kept = self._described(dtype)
        self.tokens: Tokens = np.frombuffer(self._mapped, *kept)

    def check_unchanged(self) -> None:
        """Raise ReadFailed if the file was written to, replaced or removed since it was mapped."""
        try:
            now = FileVersion.of(os.stat(self.path))
        except OSError as error:
            raise ReadFailed(f"{self.path} cannot be read any more: {error.strerror}", str(self.path)) from None
        if self._version.difference(now):
            raise ReadFailed(
                f"{self.path} has changed since the feed began ({self._version.nbytes:,} bytes then, "
                f"{now.nbytes:,} now): its epochs would mix old tokens with new ones. Start the feed again",
                str(self.path),
            )

    def will_need(self, first: int, count: int) -> None:
        """Have the kernel read some tokens ahead."""
        start = self.tokens.itemsize * first + len(self._mapped) - self.tokens.nbytes
        page = start // mmap.PAGESIZE * mmap.PAGESIZE
        self._mapped.madvise(mmap.MADV_WILLNEED, page, start - page + count * self.tokens.itemsize)

    def _described(self, dtype: str | None) -> tuple[str, int, int]:
        """Return the type of the tokens, how many they are, and the offset of the first."""
        index = self.path.with_suffix(".idx")
        if self.path.suffix != ".npy" and index.exists():
            found = megatron.read_index(index, self._version.nbytes)
            self.documents = found.documents
            return self._agreed(found.dtype, dtype), int(found.documents[-1]), 0
        if self._mapped[:6] == b"\x93NUMPY":
            return self._of_npy(dtype)
        header = np.frombuffer(self._mapped[: 4 * _HEADER_INTS].ljust(12, b"\0"), "<i4", count=3)
        magic, version, count = header.tolist()
        if (kind := _LLM_C.get((magic, version))) is not None and self._version.nbytes >= 4 * _HEADER_INTS:
            self._check_size(count, kind)
            return self._agreed(kind, dtype), count, 4 * _HEADER_INTS
        kind = dtype or "uint16"
        count, rest = divmod(self._version.nbytes, np.dtype(kind).itemsize)
        if rest:
            raise BadSetting(
                f"{self.path} has {self._version.nbytes:,} bytes, which are no whole number of {kind}"
            )
        return np.dtype(kind).newbyteorder("<").str, count, 0

    def _of_npy(self, dtype: str | None) -> tuple[str, int, int]:
        try:
            array = np.load(self.path, mmap_mode="r")
        except ValueError as error:
            raise BadSetting(f"{self.path} cannot be read: {error}") from None
        if array.ndim != 1 or array.dtype.kind not in "iu" or array.dtype.str.startswith(">"):
            raise BadSetting(
                f"{self.path} holds {array.dtype.str} of shape {array.shape}; tokens are whole numbers in a row, "
                "little-endian"
            )
        return self._agreed(array.dtype.str, dtype), len(array), array.offset

    def _check_size(self, count: int, kind: str) -> None:
        wanted = 4 * _HEADER_INTS + count * np.dtype(kind).itemsize
        if wanted != self._version.nbytes:
            raise BadSetting(
                f"{self.path} has {self._version.nbytes:,} bytes, but its header tells of {count:,} tokens "
                f"({kind}), which makes {wanted:,}: it was cut short, or is still being written"
            )

    def _agreed(self, found: str, asked: str | None) -> str:
        kind = np.dtype(found).newbyteorder("<")
        if asked is not None and np.dtype(asked).newbyteorder("<") != kind:
            raise BadSetting(f"dtype={asked!r}: {self.path} says that its tokens are {kind.name}; leave dtype out")
        return kind.str


def files_at(pattern: str | Path) -> list[Path]:
    """Return the ``.bin`` and ``.npy`` files that a path, a folder or a pattern (``*``, ``**``) names, sorted.

    Raises:
        BadSetting: there are none.
    """
    text = os.path.abspath(os.path.expanduser(str(pattern)))
    if "://" in str(pattern):
        raise BadSetting(f"{pattern}: tokens are read from files; copy them to a disk of this machine first")
    path = Path(text)
    if path.is_dir():
        found = list(path.iterdir())
    else:
        # Megatron names the two without their endings.
        beside = path.with_suffix(".bin") if path.suffix == ".idx" else Path(f"{text}.bin")
        one = next((file for file in (beside, path) if file.exists()), None)
        found = [Path(match) for match in glob.glob(text, recursive=True)] if one is None else [one]
    found = sorted(file for file in found if file.suffix in _SUFFIXES)
    if not found:
        raise BadSetting(f"{pattern}: no such file of tokens (.bin or .npy)")
    parts = {part for part in ("train", "val") if any(part in file.stem for file in found)}
    if path.is_dir() and len(parts) > 1:
        raise BadSetting(f"{pattern} holds files to train with and files to validate with: name one, or a pattern")
    return found


def opened(patterns: Sequence[str | Path], dtype: str | None) -> dict[str, list[TokenFile]]:
    """Map the files that each of some patterns names.

    Raises:
        BadSetting: there are none, one is no file of tokens or is named twice, or they differ in type.
    """
    paths = {str(pattern): files_at(pattern) for pattern in patterns}
    named = [path for pattern in patterns for path in paths[str(pattern)]]
    if twice := [path for path, times in Counter(named).items() if times > 1]:
        raise BadSetting(f"{twice[0]} is named twice, so its tokens would come twice in each epoch")
    files = {pattern: [TokenFile(path, dtype) for path in found] for pattern, found in paths.items()}
    first, *others = (file for found in files.values() for file in found)
    for file in others:
        if file.tokens.dtype != first.tokens.dtype:
            raise BadSetting(
                f"{file.path} holds {file.tokens.dtype.name} and {first.path} {first.tokens.dtype.name}: "
                "files of one source have tokens of one type"
            )
    return files
