"""Reads what a record is made of."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

from penstock.contracts import Place
from penstock.errors import BadSetting, ReadFailed
from penstock.fingerprint.files import FileVersion
from penstock.io.object_store import ObjectStores

_AHEAD_BYTES = 16 << 10


@cache
def stores() -> ObjectStores:
    """Return this process's connections to object stores.

    Raises:
        ReaderUnavailable: obstore is not installed.
    """
    return ObjectStores()


def is_remote(path: str) -> bool:
    """Whether a path is the URL of an object."""
    return "://" in path


def check_once(paths: Sequence[str]) -> None:
    """Raise BadSetting if a file is named twice, by another path too."""
    real = Counter(map(os.path.realpath, paths))
    if twice := [path for path in paths if real[os.path.realpath(path)] > 1]:
        raise BadSetting(f"{twice[0]} is named twice, so its samples would come twice in each epoch")


def objects_like(pattern: str) -> list[str]:
    """Return the URLs of objects that a pattern names, sorted; ``*`` stands for anything but a slash.

    Raises:
        BadSetting: the store refuses, or there are none.
    """
    fixed = pattern[: pattern.index("*")].rpartition("/")[0]
    parts = ("[^/]*".join(map(re.escape, part.split("*"))) for part in pattern.split("**"))
    like = re.compile(".*".join(parts))
    try:
        found = sorted(each.url for each in stores().listed(f"{fixed}/") if like.fullmatch(each.url))
    except OSError as error:
        raise BadSetting(f"{pattern} cannot be listed: {error.strerror}") from None
    if not found:
        raise BadSetting(f"{pattern}: there is no such object")
    return found


def version_of(path: str) -> FileVersion:
    """Return the version of a file or an object as it is now.

    Raises:
        ReadFailed: it is not there any more, or the store refuses.
    """
    try:
        if is_remote(path):
            found = stores().head(path)
            return FileVersion(found.nbytes, etag=found.etag)
        return FileVersion.of(os.stat(path))
    except OSError as error:
        raise ReadFailed(f"{path} cannot be read: {error.strerror}", path, 0, error.errno or 0) from None


def read(place: Place) -> bytes:
    """Return the bytes of a place.

    Raises:
        ReadFailed: they cannot be read, or the file ended too early.
    """
    path, offset, nbytes, etag = place
    try:
        if is_remote(path):
            return stores().read(path, offset, nbytes or 0, etag)
        with open(path, "rb", buffering=0) as file:
            if nbytes is None:
                return file.read()
            data = os.pread(file.fileno(), nbytes, offset)
    except OSError as error:
        raise ReadFailed(f"{path} cannot be read: {error.strerror}", path, offset, error.errno or 0) from None
    if len(data) < nbytes:
        raise ReadFailed(f"{path} ended {nbytes - len(data):,} bytes too early", path, offset)
    return data


def read_ahead(whole: Place) -> Callable[[int, int], bytes]:
    """Return a function of (size, offset) that reads parts of an object, one after another, with few requests."""
    assert whole.nbytes is not None
    end, held, start = whole.nbytes, b"", 0

    def pread(nbytes: int, at: int) -> bytes:
        nonlocal held, start
        if not start <= at <= at + nbytes <= start + len(held):
            start = at
            held = read(whole._replace(offset=at, nbytes=min(max(nbytes, _AHEAD_BYTES), end - at)))
        return held[at - start : at - start + nbytes]

    return pread
