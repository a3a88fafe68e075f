"""A reader on top of a mechanism's queue: extents come whole, at any alignment, or fail one by one.

A disk gets a list of the pieces of memory to write, and scattered pages are separate pieces: a read of 1 MiB into
pages of 4 KiB has 256 of them, more than many disks take at once. On huge pages it has one
(docs/decisions/0009-readers.md)."""

from __future__ import annotations

import errno
import mmap
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import cast

import numpy as np

from penstock.contracts import ByteArray, Completed, DeviceBytes, Extents, Numbers, Opened
from penstock.errors import BadSetting, ReadFailed
from penstock.io.queue import Queue, Reads, Results


def host_memory(nbytes: int) -> ByteArray:
    """Allocate zeroed memory, on huge pages where the kernel has some to give."""
    mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapping, np.uint8)


def smaps_of(memory: ByteArray) -> Iterator[tuple[bool, str]]:
    """Yield the kernel's lines on the mappings that hold memory, each with whether that one is shared."""
    start, stop = memory.ctypes.data, memory.ctypes.data + memory.nbytes
    inside = shared = False
    with open("/proc/self/smaps", encoding="ascii", errors="replace") as smaps:
        for line in smaps:
            if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ...([ps]) ", line):
                inside = int(bounds[1], 16) < stop and int(bounds[2], 16) > start
                shared = bounds[3] == "s"
            elif inside:
                yield shared, line


def lies_on_huge_pages(memory: ByteArray) -> bool | None:
    """Whether most of the resident pages are huge (``/proc/PID/smaps``, proc(5)); None if none is resident.

    The kernel walks this process's pages for it, which takes milliseconds.
    """
    huge = present = 0
    for _, line in smaps_of(memory):
        if line.startswith("Rss:"):
            present += int(line.split()[1])
        elif line.startswith(("AnonHugePages:", "ShmemPmdMapped:")):
            huge += int(line.split()[1])
    return 2 * huge > present if present else None


_AGAIN = frozenset({errno.EINTR, errno.EAGAIN})


class QueueReader:
    """Reads extents through a queue.

    An extent whose offset, size or destination is not a multiple of the queue's
    alignment is read with its surroundings into a buffer, then copied.
    """

    def __init__(
        self,
        queue: Queue,
        memory: ByteArray | DeviceBytes,
        new_buffer: Callable[[int], ByteArray] = lambda nbytes: np.frombuffer(mmap.mmap(-1, nbytes), np.uint8),
    ) -> None:
        self.mech = queue.mech
        self.depth = queue.depth
        self._queue = queue  # the mechanism; closed with the reader
        self._memory = memory  # where bytes go; on a device only if the queue's alignment is 1
        self._new_buffer = new_buffer  # makes a buffer of a size in bytes that begins on a page
        on_device = not isinstance(memory, np.ndarray)
        assert not on_device or queue.alignment == 1
        self._address = int(memory.data_ptr() if on_device else memory.ctypes.data)
        self._host_memory = None if on_device else cast("ByteArray", memory)
        self._on_huge_pages: bool | None = None
        self._opened: dict[str, Opened] = {}
        self._paths: dict[int, str] = {}
        # Of each id: what is asked of the queue, and of the extent.
        self._tags, self._files, self._starts, self._spans, self._targets, self._done = (
            np.zeros(self.depth, np.int64) for _ in range(6)
        )
        self._free = np.arange(self.depth, dtype=np.int64)
        self._free_count = self.depth
        self._detours: dict[int, _Detour] = {}
        self._buffers: defaultdict[int, list[ByteArray]] = defaultdict(list)  # free for reuse, by size

    @property
    def path_taken(self) -> str:
        if self._on_huge_pages is None and self._host_memory is not None:
            self._on_huge_pages = lies_on_huge_pages(self._host_memory)
        pages = ", huge pages" if self._on_huge_pages else ""
        return self._queue.path_taken + pages

    def open(self, path: str) -> Opened:
        asked = cast("object", path)  # of any type: it comes from a user
        if not isinstance(asked, str):
            raise BadSetting(f"path={path!r}: a reader opens a path that is text, such as str(path)")
        if path not in self._opened:
            try:
                opened = self._queue.open(path)
            except OSError as error:
                raise ReadFailed(
                    f"{path} cannot be opened by {self.mech}: {error.strerror}", path, errno=error.errno or 0
                ) from None
            self._opened[path] = opened
            self._paths[opened.file] = path
        return self._opened[path]

    def submit(self, extents: Extents) -> int:
        check(extents, self._memory.nbytes)
        count = min(len(extents.tags), self._free_count)
        if count == 0:
            return 0
        ids = self._free[self._free_count - count : self._free_count].copy()
        try:
            self._begin(ids, extents.part(0, count))
        except BaseException:
            for i in ids.tolist():
                self._detours.pop(i, None)
            raise
        self._free_count -= count
        return count

    def _begin(self, ids: Numbers, extents: Extents) -> None:
        tags, files, offsets, nbytes, to = extents
        targets = self._address + to
        self._tags[ids], self._files[ids], self._done[ids] = tags, files, 0
        self._starts[ids], self._spans[ids], self._targets[ids] = offsets, nbytes, targets
        if self._queue.alignment > 1:
            odd = (offsets | nbytes | targets) & (self._queue.alignment - 1)
            for i in np.flatnonzero(odd).tolist():
                self._detour(int(ids[i]), int(nbytes[i]))
            if self._detours:
                offsets, nbytes, targets = self._starts[ids], self._spans[ids], self._targets[ids]
        self._queue.push(Reads(ids, files, offsets, nbytes, targets))

    def completed(self, at_least: int = 1) -> Completed:
        done: list[Numbers] = []
        failures: dict[int, ReadFailed] = {}
        missing = min(at_least, self.depth - self._free_count)
        while missing > 0:
            ids = self._settle(self._queue.pop(missing), failures)
            missing -= len(ids)
            done.append(self._tags[ids])
            self._free[self._free_count : self._free_count + len(ids)] = ids
            self._free_count += len(ids)
        return Completed(np.concatenate(done) if done else np.zeros(0, np.int64), failures)

    def close(self) -> None:
        try:
            self.completed(self.depth)
        finally:
            self._queue.close()

    def _settle(self, results: Results, failures: dict[int, ReadFailed]) -> Numbers:
        """Return the ids that are done; continue partial reads."""
        ids, nbytes, reasons = results
        if not self._detours and (nbytes == self._spans[ids]).all():
            return ids
        done: list[int] = []
        more: list[int] = []
        for i, came in zip(ids.tolist(), nbytes.tolist(), strict=True):
            (done if self._is_done(i, came, reasons.get(i, ""), failures) else more).append(i)
        if more:
            again = np.array(more, np.int64)
            ahead = self._done[again]
            starts, spans, targets = self._starts[again], self._spans[again], self._targets[again]
            self._queue.push(Reads(again, self._files[again], starts + ahead, spans - ahead, targets + ahead))
        return np.array(done, np.int64)

    def _is_done(self, i: int, came: int, reason: str, failures: dict[int, ReadFailed]) -> bool:
        """Whether an id needs no further read: its bytes are there, or it has failed."""
        if -came in _AGAIN:
            return False
        detour = self._detours.get(i)
        reached = int(self._done[i]) + came
        wanted = int(self._spans[i]) if detour is None else detour.skip + detour.nbytes
        if 0 < came and reached < wanted:
            before, self._done[i] = self._done[i], reached - reached % self._queue.alignment
            if self._done[i] > before:
                return False
        if reached < wanted or came < 0:
            failures[int(self._tags[i])] = self._failure(i, detour, came, reached, reason)
        elif detour is not None:
            start = detour.to - self._address
            self._memory[start : start + detour.nbytes] = detour.buffer[detour.skip : wanted]
        if detour is not None:
            del self._detours[i]
            self._buffers[detour.buffer.nbytes].append(detour.buffer)
        return True

    def _failure(self, i: int, detour: _Detour | None, came: int, reached: int, reason: str) -> ReadFailed:
        path = self._paths[int(self._files[i])]
        skip, nbytes = (0, int(self._spans[i])) if detour is None else (detour.skip, detour.nbytes)
        offset = int(self._starts[i]) + skip
        what = f"{nbytes:,} bytes at {offset:,} of {path}"
        if came < 0:
            return ReadFailed(f"{what}: {reason or os.strerror(-came)} ({self.mech})", path, offset, -came)
        return ReadFailed(
            f"{what}: only {max(0, reached - skip):,} are there; has it been cut short?", path, offset
        )

    def _detour(self, i: int, nbytes: int) -> None:
        unit = self._queue.alignment
        start = int(self._starts[i])
        skip = start % unit
        span = -(-(skip + nbytes) // unit) * unit
        room = 1 << (span - 1).bit_length()
        # Used pages cost far less than new ones, which the kernel clears.
        used = self._buffers[room]
        buffer = used.pop() if used else self._new_buffer(room)
        self._detours[i] = _Detour(buffer, skip, nbytes, int(self._targets[i]))
        self._starts[i], self._spans[i], self._targets[i] = start - skip, span, buffer.ctypes.data


def check(extents: Extents, memory_bytes: int) -> None:
    """Raise BadSetting if an extent has no bytes, or exceeds the memory."""
    _, _, offsets, nbytes, to = extents
    if len(to) and (nbytes.min() < 1 or to.min() < 0 or offsets.min() < 0):
        raise BadSetting("an extent has at least 1 byte, and no position in a file or memory is negative")
    if len(to) and (to + nbytes).max() > memory_bytes:
        raise BadSetting(f"an extent ends at byte {(to + nbytes).max():,} of a memory of {memory_bytes:,} bytes")


class _Detour:
    """A buffer for an extent that is not aligned as the mechanism needs it."""

    __slots__ = ("buffer", "nbytes", "skip", "to")

    def __init__(self, buffer: ByteArray, skip: int, nbytes: int, to: int) -> None:
        self.buffer, self.skip, self.nbytes, self.to = buffer, skip, nbytes, to
