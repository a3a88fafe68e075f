"""The mechanism ``gpu``: a queue whose reads are begun, and whose completions are taken, by a GPU's threads."""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np

from penstock.contracts import Opened
from penstock.io.files import DIRECT_ALIGNMENT
from penstock.io.nvme import libnvm
from penstock.io.nvme.controller import EmulatedController
from penstock.io.nvme.layout import ERRNO, MAX_READ_BYTES, SUCCESS, QueueMemory
from penstock.io.queue import Queue, Reads, Results

_SHORTEST_NAP_S, _LONGEST_NAP_S = 20e-6, 200e-6


class Submitter(Protocol):
    """Threads that run ``penstock_serve``: write commands, ring doorbells, take completions."""

    @property
    def label(self) -> str:
        """What they are, in words for a person."""
        ...

    def launch(self, limit: int) -> None:
        """Have them help until so many requests are done, of those published since the beginning."""
        ...

    def check(self) -> None:
        """Raise what ended the threads too early, if something did."""
        ...

    def close(self) -> None:
        """Nothing is under way any more."""
        ...


class GpuQueue:
    """Reads through NVMe queues; the controller behind them is emulated.

    Args:
        memory: The queues; ``queue_memory`` gives what fits the backend.
        submitter: Begins the reads.
        backend: What the controller reads with; closed with this.
    """

    mech = "gpu"

    def __init__(self, memory: QueueMemory, submitter: Submitter, backend: Queue) -> None:
        self.depth = min(memory.ids, backend.depth)
        self.alignment = memory.block_bytes
        self._memory = memory
        self._submitter = submitter
        self._backend = backend
        self._controller = EmulatedController(memory, backend)
        self._sizes = np.zeros(1, np.int64)
        self._asked = np.zeros(memory.ids, np.int64)
        self._published = self._popped = 0

    @property
    def path_taken(self) -> str:
        queues = f"{self._memory.queues} queues of {self._memory.entries} entries"
        return f"{self._submitter.label}, {queues}, CPU-served: {self._backend.path_taken}"

    def open(self, path: str) -> Opened:
        libnvm.refuse(path)
        opened = self._backend.open(path)
        nsid = self._controller.add_namespace(opened)
        self._sizes = np.append(self._sizes, opened.nbytes)
        return Opened(nsid, opened.nbytes)

    def push(self, reads: Reads) -> None:
        ids, files, offsets, nbytes, addresses = reads
        block = self.alignment
        size = self._sizes[files]
        there = -(-size // block) * block - offsets
        # What begins past the end is asked for all the same: the controller says that it is not there.
        span = np.minimum(np.minimum(nbytes, MAX_READ_BYTES), np.where(there > 0, there, nbytes))
        self._asked[ids] = np.minimum(span, size - offsets)
        requests = self._memory.requests
        requests["lba"][ids], requests["address"][ids] = offsets // block, addresses
        requests["nsid"][ids], requests["blocks"][ids] = files, span // block
        places = self._published + np.arange(len(ids))
        self._memory.order[places & (self._memory.ids - 1)] = ids
        self._published += len(ids)
        self._controller.busy.set()
        self._submitter.launch(self._published)

    def pop(self, at_least: int) -> Results:
        nap_s = _SHORTEST_NAP_S
        while len(done := self._ready()) < at_least:
            self._controller.check()
            self._submitter.check()
            time.sleep(nap_s)
            nap_s = min(2 * nap_s, _LONGEST_NAP_S)
        self._popped += len(done)
        if self._popped == self._published:
            self._controller.busy.clear()
        ids, status = (done & 0xFFFF).astype(np.int64), (done >> 16 & 0xFFFF).astype(np.int64)
        nbytes = self._asked[ids]
        for i in np.flatnonzero(status != SUCCESS).tolist():
            nbytes[i] = -ERRNO[int(status[i])]
        return Results(ids, nbytes)

    def close(self) -> None:
        try:
            self._submitter.close()
        finally:
            self._controller.close()
            self._backend.close()

    def _ready(self) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        """The entries of ``done`` that follow the last one popped without a gap."""
        places = np.arange(self._popped, self._published)
        entries = self._memory.done[places & (self._memory.ids - 1)]
        missing = np.flatnonzero(entries >> 32 != (places // self._memory.ids + 1) & 0xFFFFFFFF)
        return entries[: missing[0]] if missing.size else entries


def queue_memory(backend: Queue, queues: int = 2, entries: int = 256) -> QueueMemory:
    """Queues for as many reads as a backend takes, with blocks that it can read from any disk."""
    return QueueMemory(queues, entries, backend.depth, DIRECT_ALIGNMENT)
