"""Keys of samples: hashes, which also say who keeps a sample, and where."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.contracts import Numbers
from penstock.fingerprint.files import FileVersion

Keys = npt.NDArray[np.uint64]


def hash64(text: str) -> int:
    """Hash text, alike in every process on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=8).digest(), "little")


def keys_of(
    files: Sequence[int] | Keys, offsets: Sequence[int] | Numbers, nbytes: Sequence[int] | Numbers
) -> Keys:
    """Return keys of parts of files: of the hash of each file's path, and the part's offset and size in it."""
    key = _mixed(np.asarray(nbytes, np.int64).view(np.uint64))
    key = _mixed(key ^ np.asarray(offsets, np.int64).view(np.uint64))
    return _mixed(key ^ np.asarray(files, np.uint64))


def origin_of(version: FileVersion) -> int:
    """Return a number that differs where a file was written to or replaced."""
    return hash64(repr(version))


def parts_of(keys: Keys) -> npt.NDArray[np.float64]:
    """Return for each key a number from 0 up to 1: in a cache of C of N bytes lie those below C/N."""
    return (keys >> np.uint64(11)).astype(np.float64) * 2.0**-53


def owners(keys: Keys, nodes: Sequence[str]) -> npt.NDArray[np.intp]:
    """Return which node owns each key, by rendezvous hashing: one more node moves its own share alone.

    Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998.
    """
    return np.argmax([_mixed(keys ^ np.uint64(hash64(node))) for node in nodes], axis=0)


def _mixed(words: Keys) -> Keys:
    """Mix the bits of each word (splitmix64's finalizer; Steele, Lea and Flood, 2014)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
