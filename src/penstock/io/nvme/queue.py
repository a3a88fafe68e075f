"""The mechanism ``gpu``: reads that a GPU's threads begin; the first path decides which controller serves them."""

from __future__ import annotations

import mmap
import platform
import time
from contextlib import ExitStack

import numpy as np

from penstock.contracts import ByteArray, Gpu, Opened
from penstock.errors import ReaderUnavailable
from penstock.io.files import DIRECT_ALIGNMENT, DiskPath, disk_path
from penstock.io.nvme import module
from penstock.io.nvme.controller import DiskController
from penstock.io.nvme.emulated import EmulatedController
from penstock.io.nvme.queue_memory import MAX_QUEUES, PAGE_BYTES, SUCCESS, QueueMemory, errno_of, status_text
from penstock.io.nvme.threads import DeviceThreads, HostThreads
from penstock.io.queue import Queue, Reads, Results
from penstock.io.uring import UringQueue

_SHORTEST_NAP_S, _LONGEST_NAP_S = 20e-6, 200e-6
_EMULATED_QUEUES = 2


Controller = DiskController | EmulatedController
"""Serves commands at the other end of the queues: a disk, or what stands in for one."""
Submitter = HostThreads | DeviceThreads
"""Threads that run ``penstock_serve``: write commands, ring doorbells, take completions."""


class GpuQueue:
    """Reads through NVMe queues."""

    mech = "gpu"

    def __init__(self, controller: Controller, submitter: Submitter) -> None:
        self.depth = controller.depth
        self.alignment = controller.memory.block_bytes
        self._memory = controller.memory
        self._submitter = submitter  # begins the reads; closed with this
        self._controller = controller  # serves them; closed with this
        self._size_of = np.zeros(1, np.int64)
        # Memory that has bus addresses: where each piece begins, and the address of its table.
        self._starts, self._tables = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._asked = np.zeros(self._memory.ids, np.int64)
        self._published = self._popped = 0

    @property
    def path_taken(self) -> str:
        count = self._memory.queues
        queues = f"{count} queue{'s' * (count != 1)} of {self._memory.entries} entries"
        return f"{self._submitter.label}, {queues}, {self._controller.path_taken}"

    def open(self, path: str) -> Opened:
        opened = self._controller.open(path)
        sizes = np.zeros(max(opened.file + 1, len(self._size_of)), np.int64)
        sizes[: len(self._size_of)] = self._size_of
        sizes[opened.file] = opened.nbytes
        self._size_of = sizes
        return opened

    def reach(self, memory: ByteArray) -> None:
        """Let reads go into this memory, until the queue is closed."""
        table = self._controller.map(memory)
        if table is None:
            return
        start = memory.ctypes.data
        at = int(np.searchsorted(self._starts, start))
        self._starts = np.insert(self._starts, at, start)
        self._tables = np.insert(self._tables, at, self._submitter.expose(table))

    def new_buffer(self, nbytes: int) -> ByteArray:
        """Allocate memory that reads can go into; it begins on a page."""
        buffer: ByteArray = np.frombuffer(mmap.mmap(-1, -(-nbytes // PAGE_BYTES) * PAGE_BYTES), np.uint8)
        self.reach(buffer)
        return buffer[:nbytes]

    def push(self, reads: Reads) -> None:
        ids, files, offsets, nbytes, addresses = reads
        block = self.alignment
        size = self._size_of[files]
        there = -(-size // block) * block - offsets
        # Reads past the end are submitted too: the controller reports them as out of range.
        span = np.minimum(np.minimum(nbytes, self._controller.max_read_bytes), np.where(there > 0, there, nbytes))
        self._asked[ids] = np.minimum(span, size - offsets)
        requests = self._memory.requests
        requests["lba"][ids], requests["address"][ids] = offsets // block, addresses
        requests["nsid"][ids], requests["blocks"][ids] = files, span // block
        if len(self._starts):
            piece = np.searchsorted(self._starts, addresses, side="right") - 1
            requests["pages"][ids] = self._tables[piece] + 8 * ((addresses - self._starts[piece]) // PAGE_BYTES)
        places = self._published + np.arange(len(ids))
        self._memory.order[places & (self._memory.ids - 1)] = ids
        self._published += len(ids)
        self._controller.wake()
        self._submitter.launch(self._published)

    def pop(self, at_least: int) -> Results:
        nap_s = _SHORTEST_NAP_S
        seen, since_s = 0, time.monotonic()
        while len(done := self._ready()) < at_least:
            now_s = time.monotonic()
            if len(done) > seen:
                seen, since_s = len(done), now_s
            self._controller.check(now_s - since_s)
            self._submitter.check()
            time.sleep(nap_s)
            nap_s = min(2 * nap_s, _LONGEST_NAP_S)
        self._popped += len(done)
        if self._popped == self._published:
            self._controller.rest()
        ids, status = (done & 0xFFFF).astype(np.int64), (done >> 16 & 0xFFFF).astype(np.int64)
        nbytes = self._asked[ids]
        reasons: dict[int, str] = {}
        for i in np.flatnonzero(status != SUCCESS).tolist():
            nbytes[i] = -errno_of(int(status[i]))
            reasons[int(ids[i])] = status_text(int(status[i]))
        return Results(ids, nbytes, reasons)

    def close(self) -> None:
        try:
            self._submitter.close()
        finally:
            self._controller.close()

    def _ready(self) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        """Return the entries of ``done`` that follow the last one popped without a gap."""
        places = np.arange(self._popped, self._published)
        entries = self._memory.done[places & (self._memory.ids - 1)]
        missing = np.flatnonzero(entries >> 32 != (places // self._memory.ids + 1) & 0xFFFFFFFF)
        return entries[: missing[0]] if missing.size else entries


class GpuOfFirstPath:
    """A disk under BaM's kernel module serves itself, files are served by the CPU; one reader reads either.

    Nothing is prepared before the first path is known: a disk needs no io_uring, and memory registered twice would
    count twice against the limit. Threads of ``gpu`` submit, or of the CPU if that is None.
    """

    mech = "gpu"

    def __init__(self, depth: int, threads: int, gpu: Gpu | None, memory: ByteArray) -> None:
        if (machine := platform.machine()) != "x86_64":
            raise ReaderUnavailable(
                f"mech='gpu' relies on the order in which x86-64 shows writes, and this is {machine}",
                "read with mech='uring'",
            )
        self.depth = depth  # reads under way at once
        self._threads, self._gpu, self._memory = threads, gpu, memory
        self._queue: GpuQueue | None = None
        self._device: str | None = None  # the disk, if one is read

    @property
    def alignment(self) -> int:
        return self._queue.alignment if self._queue else DIRECT_ALIGNMENT

    @property
    def path_taken(self) -> str:
        undecided = "NVMe queues; what serves them is decided by what is read"
        return self._queue.path_taken if self._queue else undecided

    def open(self, path: str) -> Opened:
        disk = disk_path(path)
        if self._queue is None:
            controller = self._emulated() if disk is None else self._served_by(disk)
            self._queue = queue_into(self._memory, controller, self._threads, self._gpu)
            self._device = disk and disk.device
        elif disk is not None and self._device is None:
            raise ReaderUnavailable(f"{path} is a disk, and this reader reads files", "make another for it")
        return self._queue.open(path)

    def new_buffer(self, nbytes: int) -> ByteArray:
        assert self._queue is not None
        return self._queue.new_buffer(nbytes)

    def push(self, reads: Reads) -> None:
        assert self._queue is not None
        self._queue.push(reads)

    def pop(self, at_least: int) -> Results:
        assert self._queue is not None
        return self._queue.pop(at_least)

    def close(self) -> None:
        if self._queue is not None:
            self._queue.close()

    def _emulated(self) -> EmulatedController:
        backend = UringQueue(self.depth, self._memory)
        return EmulatedController(queue_memory(backend, min(self._threads, _EMULATED_QUEUES)), backend)

    def _served_by(self, disk: DiskPath) -> DiskController:
        disk_module = module.LibnvmModule(disk.device)
        return DiskController(disk_module, disk.nsid, depth=self.depth, queues=min(self._threads, MAX_QUEUES))


def queue_into(memory: ByteArray, controller: Controller, threads: int, gpu: Gpu | None) -> GpuQueue:
    """Make a queue of reads into this memory, begun by threads of a GPU, or of the CPU without one.

    The controller is closed with the queue, or if making the queue fails.
    """
    kind, _, number = gpu.name.partition(":") if gpu else ("", "", "")
    queues = controller.memory
    with ExitStack() as undo:
        undo.callback(controller.close)
        submitter = DeviceThreads(queues, threads, int(number)) if kind == "cuda" else HostThreads(queues, threads)
        undo.callback(submitter.close)
        queue = GpuQueue(controller, submitter)
        queue.reach(memory)
        undo.pop_all()
    return queue


def queue_memory(backend: Queue, queues: int = 2, entries: int = 256) -> QueueMemory:
    """Make queues for as many reads as a backend takes, with blocks that suit any disk."""
    return QueueMemory(queues, entries, backend.depth, DIRECT_ALIGNMENT)
