"""A reader that finds in a cache what was kept, and adds what was not."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from penstock.contracts import ByteArray, Completed, Extents, Opened, Reader
from penstock.errors import ReadFailed
from penstock.fingerprint.file_versions import FileVersion
from penstock.io.cache.admission import Admitted
from penstock.io.cache.keys import hash64, keys_of, origin_of
from penstock.io.cache.slab import Item
from penstock.io.cache.tiers import DISK, Found, Tiers


class _Pending(NamedTuple):
    """An extent under way."""

    extent: Extents  # it, as the caller asked for it
    key: int
    row: int | None  # its record in the cache's folder, from which it is read; None if it is read where it lies
    tier: int | None  # where it is to be kept; None for nowhere


class CachedReader:
    """Reads extents from a cache, and through another reader those that it lacks; it closes both with itself.

    What lies in the cache's folder goes through the other reader, too, straight to its place. ``admitted`` is the
    part of all extents that is kept.
    """

    def __init__(self, reader: Reader, memory: ByteArray, tiers: Tiers, admitted: Admitted) -> None:
        self.mech, self.depth = reader.mech, reader.depth
        self._reader, self._memory, self._tiers, self._admitted = reader, memory, tiers, admitted
        self._slab = -1 if tiers.data_path is None else reader.open(tiers.data_path).file
        self._hashes: dict[int, int] = {}  # of each file: that of its path
        self._origins: dict[int, int] = {}  # of each file: its version
        self._asked: dict[int, _Pending] = {}
        self._copied: list[int] = []  # tags of extents that came from memory
        self._new: list[tuple[Item, int]] = []  # what was given last, which the caller may still refuse

    @property
    def path_taken(self) -> str:
        return f"{self._reader.path_taken}, by way of a cache"

    def open(self, path: str) -> Opened:
        origin = 0
        with suppress(OSError):  # which the reader names
            origin = origin_of(FileVersion.of(os.stat(path)))  # before it is opened: what is read is no older
        opened = self._reader.open(path)
        self._hashes.setdefault(opened.file, hash64(path))
        self._origins.setdefault(opened.file, origin)
        return opened

    def submit(self, extents: Extents) -> int:
        self._accept()
        if not self._asked:  # a pass begins
            self._tiers.flush()
        extents = extents.part(0, self.depth - len(self._asked) - len(self._copied))
        keys = keys_of([self._hashes[file] for file in extents.files.tolist()], extents.offsets, extents.nbytes)
        wanted, found = self._tiers.wanted(keys, self._admitted), self._tiers.find(keys)
        files, offsets = extents.files.copy(), extents.offsets.copy()
        copied: list[int] = []
        asked: list[_Pending] = []
        for i, (key, hit) in enumerate(zip(keys.tolist(), found, strict=True)):
            row = None
            if hit is not None and (hit.tier != DISK or self._slab < 0):
                if self._copy(hit, extents, i):
                    copied.append(i)
                    continue
            elif hit is not None and self._tiers.is_of(hit, self._origin(extents, i)):
                row, files[i], offsets[i] = hit.row, self._slab, self._tiers.place(hit)[0]
            asked.append(_Pending(extents.part(i, i + 1), key, row, wanted[i]))
        through = np.ones(len(keys), bool)
        through[copied] = False
        read = Extents(*(field[through] for field in extents._replace(files=files, offsets=offsets)))
        begun = self._reader.submit(read)
        self._asked.update(zip(read.tags[:begun].tolist(), asked, strict=False))
        stop = len(keys) if begun == len(asked) else int(np.flatnonzero(through)[begun])
        self._copied += [int(extents.tags[i]) for i in copied if i < stop]
        return stop

    def completed(self, at_least: int = 1) -> Completed:
        self._accept()
        done, self._copied = self._copied, []
        failures: dict[int, ReadFailed] = {}
        while len(done) < at_least and self._asked:
            came = self._reader.completed(at_least - len(done))
            again: list[Extents] = []
            for tag in came.tags.tolist():
                asked = self._asked.pop(tag)
                failure = came.failures.get(tag)
                if asked.row is not None and (failure or not self._is_whole(asked)):
                    again.append(asked.extent)
                    self._asked[tag] = asked._replace(row=None)
                    continue
                if failure:
                    failures[tag] = failure
                elif asked.row is None:
                    self._missed(asked)
                done.append(tag)
            if again:
                self._reader.submit(Extents(*(np.concatenate(field) for field in zip(*again, strict=True))))
        return Completed(np.array(done, np.int64), failures)

    def close(self) -> None:
        self._reader.close()
        self._tiers.flush()
        self._tiers.close()

    def _accept(self) -> None:
        """Keep what was given before: who asks for more has found no fault in it."""
        for item, tier in self._new:
            self._tiers.keep(item, tier)
        self._new.clear()

    def _origin(self, extents: Extents, i: int = 0) -> int:
        return self._origins[int(extents.files[i])]

    def _place(self, extents: Extents, i: int = 0) -> ByteArray:
        to = int(extents.to[i])
        return self._memory[to : to + int(extents.nbytes[i])]

    def _copy(self, found: Found, extents: Extents, i: int) -> bool:
        hit = self._tiers.read(found, self._origin(extents, i))
        if hit is None:
            return False
        self._place(extents, i)[:] = hit.content
        return True

    def _is_whole(self, asked: _Pending) -> bool:
        assert asked.row is not None
        return self._tiers.took(Found(DISK, asked.row), self._place(asked.extent))

    def _missed(self, asked: _Pending) -> None:
        self._tiers.counts.missed += 1
        origin = self._origin(asked.extent)
        if asked.tier is not None and origin:
            self._new.append((Item(asked.key, origin, self._place(asked.extent).copy()), asked.tier))
