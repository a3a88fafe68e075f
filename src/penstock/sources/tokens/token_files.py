"""Token files as nanoGPT, llm.c and NumPy write them, and as Megatron does, mapped."""

from __future__ import annotations

import functools
import glob
import io
import math
import mmap
import os
import time
from collections.abc import Callable, Sequence
from errno import EACCES, ENOENT
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from penstock.basics.packages import require
from penstock.basics.sizes import size_text
from penstock.contracts import Numbers, Place
from penstock.errors import BadSetting, ReadFailed, Untravelled
from penstock.fingerprint.file_versions import FileVersion
from penstock.io.cache.cache import Cache
from penstock.io.cache.slab import Slab
from penstock.io.cache.whole import WholeFile, slab_of
from penstock.sources.records.files import check_once, is_remote, objects_like, read, version_of
from penstock.sources.sharding import UNTRAVELLED
from penstock.sources.tokens import megatron

_HEADER_INTS = 256
_HEADER_BYTES = 64 << 10
_JUST_WRITTEN_S = 0.1
_SUFFIXES = (".bin", ".npy")
_LLM_C = {(20240520, 1): "uint16", (20240801, 7): "uint32"}
"""Magic number and version of llm.c's files, and what their tokens are (its dev/data/data_common.py)."""

_DATES = range(20200101, 21000101)
"""What llm.c's magic numbers are, of weights and evaluations too."""
_FEW, _NEGATIVE = 3, 65535
"""What stands in the upper half of a token's 32 bits: more than 3 in no vocabulary; the most in negative ones."""
_FIELDS = 32
"""Numbers of such a header; the rest of it is 0."""

Tokens = npt.NDArray[Any]
Keep = Callable[[str, FileVersion], WholeFile]
"""Brings a version of a file into a cache, and maps it there; opens each folder's slab once."""


class TokenFile:
    """A file of tokens, mapped read-only; ``keep`` keeps it in a cache, None to map it where it lies.

    ``dtype`` is the type of tokens without a header; None for uint16, as of nanoGPT, if it looks so.
    """

    def __init__(self, path: str, dtype: str | None, keep: Keep | None = None) -> None:
        self.path = path
        """A ``.bin`` without a header or with llm.c's, an ``.npy``, or Megatron's ``.bin`` beside its ``.idx``."""
        self.documents: Numbers | None = None
        """The first token of each document, and the number of tokens; None if the file has no index."""
        self._whole: WholeFile | None = None
        self._first_byte = 0
        try:
            self._version = version_of(path) if keep is None else _settled(path)
            if not self._version.nbytes:
                raise BadSetting(f"{path} is empty")
            if keep is None:
                with open(path, "rb") as file:
                    self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            else:
                self._whole = keep(path, self._version)
                self._mapped = self._whole.mapped
            kind, count, self._first_byte = self._described(dtype, keep)
        except ReadFailed as error:
            raise BadSetting(str(error)) from None
        except OSError as error:
            raise BadSetting(f"{path} cannot be read: {error.strerror}") from None
        self.tokens: Tokens = np.frombuffer(self._mapped, kind, count, self._first_byte)  # all tokens, one axis

    def __reduce__(self) -> NoReturn:
        raise Untravelled(UNTRAVELLED.format(self.path))

    @property
    def is_copy(self) -> bool:
        """Whether what is mapped lies in a cache, with checksums."""
        return self._whole is not None

    def check_unchanged(self) -> None:
        """Raise ReadFailed if the file was written to, replaced or removed since it was mapped."""
        if self._whole is not None:  # a copy
            return
        try:
            now = version_of(self.path)
        except ReadFailed as error:
            raise ReadFailed(f"{error}; it was there when the feed began", self.path) from None
        if self._version.difference(now):
            raise ReadFailed(
                f"{self.path} has changed since the feed began ({self._version.nbytes:,} bytes then, "
                f"{now.nbytes:,} now): its epochs would mix old tokens with new ones. Start the feed again",
                self.path,
            )

    def check_whole(self, firsts: Numbers, count: int | Numbers) -> None:
        """Compare ``count`` tokens of a copy from each of ``firsts`` on with its checksums, if not done before."""
        if self._whole is not None:
            size = self.tokens.itemsize
            self._whole.check(firsts * size + self._first_byte, count * size)

    def will_need(self, first: int, count: int) -> None:
        """Have the kernel read some tokens ahead."""
        start = self.tokens.itemsize * first + self._first_byte
        page = start // mmap.PAGESIZE * mmap.PAGESIZE
        self._mapped.madvise(mmap.MADV_WILLNEED, page, start - page + count * self.tokens.itemsize)

    def _described(self, dtype: str | None, keep: Keep | None) -> tuple[str, int, int]:
        """Return the type of the tokens, how many they are, and the offset of the first."""
        stem, suffix = os.path.splitext(self.path)
        if self._whole is not None:
            self._whole.check(np.zeros(1, np.int64), min(_HEADER_BYTES, self._version.nbytes), again=True)
        if suffix != ".npy" and (raw := _index(f"{stem}.idx", dtype, keep)) is not None:
            found = megatron.read_index(f"{stem}.idx", raw, self._version.nbytes)
            self.documents = found.documents
            return self._agreed(found.dtype, dtype), int(found.documents[-1]), 0
        if self._mapped[:6] == b"\x93NUMPY":
            return self._of_npy(dtype)
        header = np.frombuffer(self._mapped[: 4 * _HEADER_INTS].ljust(4 * _HEADER_INTS, b"\0"), "<i4")
        magic, version, count = header[:3].tolist()
        if (kind := _LLM_C.get((magic, version))) is not None:
            self._check_size(count, kind)
            return self._agreed(kind, dtype), count, 4 * _HEADER_INTS
        body = self._version.nbytes - header.nbytes
        looks_so = magic in _DATES and body >= 0 and not header[_FIELDS:].any()
        if looks_so or magic in {magic for magic, _ in _LLM_C} or (body and body in (2 * count, 4 * count)):
            known = " or ".join(f"magic {magic} of version {version}" for magic, version in _LLM_C)
            raise BadSetting(
                f"{self.path} has a header like llm.c's, of magic {magic} and version {version}; those of tokens "
                f"have {known}. Write it again with llm.c's dev/data, or without a header"
            )
        kind = dtype or "uint16"
        if dtype is None and (wide := _wider(self._mapped[:_HEADER_BYTES])):
            raise BadSetting(
                f"{self.path} has no header, and is no uint16, as which it would be read: at every second place "
                f"stands almost nothing, as in {wide}. Pass dtype={wide!r}, or dtype='uint16' if it is that"
            )
        count, rest = divmod(self._version.nbytes, np.dtype(kind).itemsize)
        if rest:
            raise BadSetting(
                f"{self.path} has {self._version.nbytes:,} bytes, which are no whole number of {kind}"
            )
        return np.dtype(kind).newbyteorder("<").str, count, 0

    def _of_npy(self, dtype: str | None) -> tuple[str, int, int]:
        header = io.BytesIO(self._mapped[:_HEADER_BYTES])
        try:
            version = np.lib.format.read_magic(header)
            read = (
                np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            )
            shape, _, kind = read(header)
            if header.tell() + math.prod(shape) * kind.itemsize > len(self._mapped):
                raise ValueError("it was cut short")
        except ValueError as error:
            raise BadSetting(f"{self.path} cannot be read: {error}") from None
        if len(shape) != 1 or kind.kind not in "iu" or kind.str.startswith(">"):
            raise BadSetting(
                f"{self.path} holds {kind.str} of shape {shape}; tokens are whole numbers in a row, little-endian"
            )
        return self._agreed(kind.str, dtype), shape[0], header.tell()

    def _check_size(self, count: int, kind: str) -> None:
        wanted = 4 * _HEADER_INTS + count * np.dtype(kind).itemsize
        if wanted != self._version.nbytes:
            raise BadSetting(
                f"{self.path} has {self._version.nbytes:,} bytes, but its header is of {count:,} tokens "
                f"({kind}), which makes {wanted:,}: it was cut short, or is still being written"
            )

    def _agreed(self, found: str, asked: str | None) -> str:
        kind = np.dtype(found).newbyteorder("<")
        if asked is not None and np.dtype(asked).newbyteorder("<") != kind:
            raise BadSetting(f"dtype={asked!r}: {self.path} says that its tokens are {kind.name}; leave dtype out")
        return kind.str


def _wider(head: bytes) -> str:
    """Return the type of larger numbers that the first bytes look like; empty if they look like uint16."""
    words = np.frombuffer(head[: len(head) // 8 * 8], "<u2").reshape(-1, 4)
    few = (words <= _FEW) | (words == _NEGATIVE)
    if len(words) < 2 or not few[:, 1::2].all():
        return ""
    if few.all() and (words[:, 1::2].any() or not words.any()):  # few different tokens
        return ""
    return "int64" if few[:, 1:].all() and (words[:, 2] == words[:, 3]).all() else "uint32"


def files_at(pattern: str | Path) -> list[str]:
    """Return the ``.bin`` and ``.npy`` files that a path, a folder or a pattern (``*``, ``**``) names, sorted."""
    if is_remote(str(pattern)):
        found, is_folder = _objects_at(str(pattern))
    else:
        found, is_folder = _local_files_at(pattern)
    found = sorted(file for file in found if file.endswith(_SUFFIXES))
    if not found:
        raise BadSetting(f"{pattern}: no such file of tokens (.bin or .npy)")
    parts = {part for part in ("train", "val") if any(part in Path(file).stem for file in found)}
    if is_folder and len(parts) > 1:
        raise BadSetting(f"{pattern} holds files to train with and files to validate with: name one, or a pattern")
    return found


def _local_files_at(pattern: str | Path) -> tuple[list[str], bool]:
    """Return the files that are named, and whether by their folder."""
    text = os.path.abspath(os.path.expanduser(str(pattern)))
    path = Path(text)
    if path.is_dir():
        found = list(path.iterdir())
    else:
        # Megatron names the two without their endings.
        beside = path.with_suffix(".bin") if path.suffix == ".idx" else Path(f"{text}.bin")
        one = next((file for file in (beside, path) if file.exists()), None)
        found = [Path(match) for match in glob.glob(text, recursive=True)] if one is None else [one]
    return list(map(str, found)), path.is_dir()


def opened(
    patterns: Sequence[str | Path], dtype: str | None, cache: Cache | None = None
) -> dict[str, list[TokenFile]]:
    """Map the files that each of some patterns, files or folders names.

    ``dtype`` is the type of tokens without a header, None for uint16. Files are kept in ``cache`` and mapped
    there; None to map them where they lie.
    """
    paths = {str(pattern): files_at(pattern) for pattern in patterns}
    named = [path for pattern in patterns for path in paths[str(pattern)]]
    check_once(named)
    if cache is None and (remote := [path for path in named if is_remote(path)]):
        raise BadSetting(
            f"{remote[0]} must lie on a disk of this machine. Pass cache=penstock.Cache(folder, size), into which "
            "it is fetched once"
        )
    keep = None if cache is None else _keeping(cache, named)
    files = {pattern: [TokenFile(path, dtype, keep) for path in found] for pattern, found in paths.items()}
    first, *others = (file for found in files.values() for file in found)
    for file in others:
        if file.tokens.dtype != first.tokens.dtype:
            raise BadSetting(
                f"{file.path} holds {file.tokens.dtype.name} and {first.path} {first.tokens.dtype.name}: "
                "files of one source have tokens of one type"
            )
    return files


def _objects_at(pattern: str) -> tuple[list[str], bool]:
    """Return the objects that are named, and whether by their prefix."""
    require("TokenSource of a URL", "s3", "obstore")
    if "*" in pattern:
        return objects_like(pattern), False
    if pattern.endswith(".idx"):
        return [f"{pattern.removesuffix('.idx')}.bin"], False
    if pattern.endswith(_SUFFIXES):
        return [pattern], False
    return objects_like(f"{pattern.rstrip('/')}/*"), True


def _keeping(cache: Cache, paths: Sequence[str]) -> Keep:
    cache.refuse_pixels("tokens")
    try:
        nbytes = sum(version_of(path).nbytes for path in paths)
    except ReadFailed as error:
        raise BadSetting(str(error)) from None
    if nbytes > cache.limit:
        raise BadSetting(
            f"{len(paths):,} files of {size_text(nbytes)} are kept whole, and the cache in {cache.folder} holds "
            f"{size_text(cache.limit)}: give it a larger size"
        )

    @functools.cache
    def slab_in(folder: str) -> Slab:
        return slab_of(cache.layout(folder, "tokens", None))

    def keep(path: str, version: FileVersion) -> WholeFile:
        def part(offset: int, nbytes: int) -> bytes:
            content = read(Place(path, offset, nbytes, version.etag))
            if not is_remote(path) and version_of(path) != version:  # of an object, the store compares it
                raise ReadFailed(f"{path} has changed while it was read", path, offset)
            return content

        return WholeFile(slab_in(os.path.dirname(path)), cache.limit, path, version, part)

    return keep


def _settled(path: str) -> FileVersion:
    """Return a file's version, once a write at this moment would change it."""
    version = version_of(path)
    if abs(time.time() - version.ctime_ns / 1e9) < _JUST_WRITTEN_S:
        time.sleep(_JUST_WRITTEN_S)
        version = version_of(path)
    return version


def _index(path: str, dtype: str | None, keep: Keep | None) -> bytes | None:
    """Return all that is in an index; None if there is none."""
    if keep is None:
        return Path(path).read_bytes() if os.path.exists(path) else None
    try:
        version = _settled(path)
    except ReadFailed as error:
        if error.errno == ENOENT:
            return None
        if not is_remote(path) or error.errno != EACCES:
            raise
        # A store that lists nothing to this user answers that what is not there may not be read.
        if dtype is None:
            raise BadSetting(
                f"{path} may not be read, if it is there: it would say what the tokens are. Allow it to be read, "
                "or pass dtype= if there is none ('uint16' is nanoGPT's)"
            ) from None
        return None
    if not version.nbytes:
        return b""
    whole = keep(path, version)
    whole.check(np.zeros(1, np.int64), version.nbytes)
    return whole.mapped[:]
