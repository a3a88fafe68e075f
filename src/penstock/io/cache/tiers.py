"""What one process reads of a cache and adds to it: memory first, then the folder, then other nodes' folders."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from io import FileIO
from typing import NamedTuple

import msgspec
import numpy as np

from penstock.basics.sizes import size_text
from penstock.basics.terminal import say
from penstock.contracts import ByteArray
from penstock.io.cache.admission import LEAST_RECORDS, Admitted
from penstock.io.cache.folder import CacheFolder, open_to_read
from penstock.io.cache.keys import Keys, owners, parts_of
from penstock.io.cache.slab import Allowance, Item, Slab
from penstock.linux.files import memory_file
from penstock.linux.fork import close_in_children

_BATCH_BYTES = 4 << 20
_MOST_BYTES = 1 << 30

MEMORY, DISK = 0, 1


class Files(NamedTuple):
    """A slab in memory, by its descriptors."""

    data_fd: int
    index_fd: int


class CacheLayout(msgspec.Struct, frozen=True):
    """Where the samples of one data set are kept; it may be sent to other processes."""

    root: str  # what the samples are read from
    kind: str  # what is kept of them
    folder: str  # the cache's folder
    limit: int  # most bytes there
    shared: bool  # whether others of its group may use it
    memory_bytes: int = 0  # most bytes in memory
    memory: Files | None = None  # the slab in memory; None without one
    node: str = ""  # name of this node
    others: dict[str, str] = {}  # folders of other nodes, by name


class CacheCounts(msgspec.Struct):
    """What became of samples, so far."""

    memory: int = 0  # read from memory
    disk: int = 0  # read from the folder
    nodes: int = 0  # read from other nodes' folders
    missed: int = 0  # read from where they lie
    kept: int = 0  # added to the cache
    damaged: int = 0  # found in the cache with other bytes than were kept; they were read from where they lie
    stale: int = 0  # found there as they were before their files changed; they were read again, too
    unused: int = 0  # looks for a sample of processes that can neither read nor add any
    full: str = ""  # why nothing is added any more; empty as long as there is room

    @property
    def hits(self) -> int:
        return self.memory + self.disk + self.nodes

    def add(self, other: CacheCounts) -> None:
        """Count what another counts, too; say once if nothing can be kept at all."""
        if other.unused and not self.unused:
            say(f"the cache is of no use: {other.full}")
        self.full = other.full or self.full
        for name in self.__struct_fields__[:-1]:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Found(NamedTuple):
    """A sample in one of the slabs."""

    tier: int
    row: int


class Hit(NamedTuple):
    """What was kept of a sample; ``content`` may be reused by the next ``read``."""

    content: ByteArray
    height: int
    width: int


class Tiers:
    """The slabs of one data set."""

    def __init__(self, layout: CacheLayout) -> None:
        self._layout = layout  # where they lie
        self._folder = CacheFolder(layout.folder, layout.limit, shared=layout.shared)
        self._others = list(layout.others.values())
        self._slabs = [
            _slab_in_memory(layout),
            self._folder.open(layout.root, layout.kind),
            *(None for _ in self._others),
        ]
        self._nodes = sorted([layout.node, *layout.others])
        self._own = self._nodes.index(layout.node)
        self._mapped: ByteArray = np.zeros(0, np.uint8)
        self._waiting: tuple[list[Item], list[Item]] = [], []
        self._waiting_bytes = [0, 0]
        self.counts = CacheCounts()  # what became of samples since they were taken
        close_in_children(self)

    @property
    def data_path(self) -> str | None:
        """The file in the folder, for ``place``; None if there is none, and none can be made."""
        slab = self._slabs[DISK]
        return None if slab is None else slab.path

    def take_counts(self) -> CacheCounts:
        """Return what became of samples since the last call."""
        counts, self.counts = self.counts, CacheCounts()
        return counts

    def find(self, keys: Keys) -> list[Found | None]:
        """Return where each key was kept; ``read`` gives its bytes."""
        for i, other in enumerate(self._others, DISK + 1):
            if self._slabs[i] is None:
                self._slabs[i] = open_to_read(other, self._layout.root, self._layout.kind)
        found: list[Found | None] = [None] * len(keys)
        for tier in reversed(range(len(self._slabs))):
            if (slab := self._refreshed(tier)) is not None:
                rows: list[int] = slab.find(keys).tolist()
                found = [was if row < 0 else Found(tier, row) for row, was in zip(rows, found, strict=True)]
        return found

    def _refreshed(self, tier: int) -> Slab | None:
        slab = self._slabs[tier]
        if slab is not None:
            try:
                slab.refresh()
            except OSError:  # such as of another node's disk that is gone
                slab.close()
                slab = self._slabs[tier] = None
        return slab

    def read(self, found: Found, origin: int) -> Hit | None:
        """Return what was kept; None if it is damaged, or of another version of its origin than this."""
        if not self.is_of(found, origin):
            return None
        slab = self._slab(found)
        content = self._in_memory(*slab.place(found.row)) if found.tier == MEMORY else slab.read(found.row)
        self._count(found, whole=content is not None)
        return None if content is None else Hit(content, *slab.shape(found.row))

    def expect(self, found: Iterable[Found]) -> None:
        """Read samples ahead from the folder, which ``read`` is asked for in this order."""
        if (slab := self._slabs[DISK]) is not None:
            slab.expect(each.row for each in found if each.tier == DISK)

    def forget(self, found: Iterable[Found]) -> None:
        """Expect samples no more that were not read."""
        if (slab := self._slabs[DISK]) is not None:
            slab.forget(each.row for each in found if each.tier == DISK)

    def is_of(self, found: Found, origin: int) -> bool:
        """Whether a sample is of this version of its origin; one that is not is found no more."""
        slab = self._slabs[found.tier]
        if slab is None:  # its disk has gone since it was found
            return False
        same = slab.is_of(found.row, origin)
        self.counts.stale += not same
        return same

    def place(self, found: Found) -> tuple[int, int]:
        """Return offset and size of a sample in the folder's file, for readers of their own."""
        return self._slab(found).place(found.row)

    def took(self, found: Found, content: ByteArray) -> bool:
        """Return whether bytes read at ``place`` match the stored checksum; counts them."""
        whole = self._slab(found).is_whole(found.row, content)
        self._count(found, whole=whole)
        return whole

    def wanted(self, keys: Keys, admitted: Admitted) -> list[int | None]:
        """Return for each key the tier that keeps it, MEMORY or DISK; None if it is another node's, or none's."""
        if not self._adds(MEMORY) and not self._adds(DISK):
            slab = self._slabs[DISK] or self._slabs[MEMORY]
            self.counts.full = self._folder.unused if slab is None else slab.full
            self.counts.unused += slab is None
        owned = owners(keys, self._nodes) == self._own
        parts = parts_of(keys)
        in_memory = parts < (admitted.memory if self._adds(MEMORY) else 0.0)
        on_disk = parts < (admitted.all if self._adds(DISK) else 0.0)
        tiers = np.where(in_memory, MEMORY, DISK).tolist()
        return [
            tier if kept else None
            for tier, kept in zip(tiers, (owned & (in_memory | on_disk)).tolist(), strict=True)
        ]

    def keep(self, item: Item, tier: int) -> None:
        """Add a sample, soon; ``flush`` adds what waits."""
        if tier == MEMORY and item.nbytes > self._layout.memory_bytes // LEAST_RECORDS and self._adds(DISK):
            tier = DISK
        room = self._layout.memory_bytes if tier == MEMORY else self._layout.limit
        if not 0 < item.nbytes <= min(_MOST_BYTES, room // LEAST_RECORDS):
            return
        self._waiting[tier].append(item)
        self._waiting_bytes[tier] += item.nbytes
        if self._waiting_bytes[tier] >= _BATCH_BYTES:
            self._append(tier)

    def flush(self) -> None:
        for tier in (MEMORY, DISK):
            self._append(tier)

    def close(self) -> None:
        for slab in self._slabs:
            if slab is not None:
                slab.close()

    def _slab(self, found: Found) -> Slab:
        slab = self._slabs[found.tier]
        assert slab is not None
        return slab

    def _count(self, found: Found, *, whole: bool) -> None:
        where = "memory", "disk", "nodes"
        field = where[min(found.tier, len(where) - 1)] if whole else "damaged"
        setattr(self.counts, field, getattr(self.counts, field) + 1)

    def _in_memory(self, offset: int, nbytes: int) -> ByteArray:
        if offset + nbytes > len(self._mapped):
            assert self._layout.memory is not None
            self._mapped = np.frombuffer(mmap.mmap(self._layout.memory.data_fd, 0), np.uint8)
        return self._mapped[offset : offset + nbytes]

    def _adds(self, tier: int) -> bool:
        slab = self._slabs[tier]
        return slab is not None and not slab.full

    def _append(self, tier: int) -> None:
        slab = self._slabs[tier]
        if slab is not None and self._waiting[tier] and not slab.full:
            self.counts.kept += slab.append(self._waiting[tier])
        self._waiting[tier].clear()
        self._waiting_bytes[tier] = 0


def kept_bytes(layout: CacheLayout) -> int:
    """Return how many bytes a data set's slab in the folder has by now."""
    slab = open_to_read(layout.folder, layout.root, layout.kind)
    if slab is None:
        return 0
    nbytes = int(slab.records["nbytes"].sum())
    slab.close()
    return nbytes


def memory_files() -> tuple[FileIO, FileIO]:
    """Make the files of a slab in memory, which last while somebody has them open."""
    return memory_file("penstock-cache-data"), memory_file("penstock-cache-index")


def _slab_in_memory(layout: CacheLayout) -> Slab | None:
    if layout.memory is None:
        return None
    data, index = layout.memory

    def room(wanted: int) -> Allowance:
        return Allowance(
            layout.memory_bytes - os.fstat(data).st_size, f"its {size_text(layout.memory_bytes)} are full"
        )

    # A lock belongs to what was opened, and what is inherited was opened once for all processes.
    lock = os.open(f"/proc/self/fd/{index}", os.O_RDWR | os.O_CLOEXEC)
    return Slab(os.dup(data), os.dup(index), lock, room)
