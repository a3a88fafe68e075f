"""The controller where there is no disk under BaM's module: a thread that serves the queues by plain reads."""

from __future__ import annotations

import errno
import threading
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.contracts import ByteArray, Numbers, Opened
from penstock.io.nvme import queue_memory as layout
from penstock.io.nvme.queue_memory import MAX_READ_BYTES, PAGE_BYTES, READ, SUCCESS, Array, QueueMemory
from penstock.io.queue import CPU_SERVED, Queue, Reads, Results

_SHORTEST_NAP_S, _LONGEST_NAP_S = 20e-6, 1e-3


class EmulatedController:
    """Serves the queues as a solid-state disk would; a file stands for a namespace.

    It sleeps while ``busy`` is clear. While it is set, it waits in the backend
    for reads, or without any naps between looks at the doorbells.
    """

    max_read_bytes = MAX_READ_BYTES

    def __init__(self, memory: QueueMemory, backend: Queue) -> None:
        self.memory = memory
        self.depth = min(memory.ids, backend.depth)
        self.busy = threading.Event()  # set while there are commands that it has not completed
        self._backend = backend
        """Reads; only the controller's thread uses it, except for ``open``. Closed with this."""
        self._mask = memory.entries - 1
        self._words = memory.cq.view("u8").reshape(memory.queues, memory.entries, 2)
        self._files, self._sizes = np.zeros(0, np.int64), np.zeros(0, np.int64)
        # Of each queue: where the next command lies, the completions so far, and those that find no room.
        self._heads = [0] * memory.queues
        self._tails = [0] * memory.queues
        self._waiting = [np.zeros(0, np.uint64) for _ in range(memory.queues)]
        # Of each read: whose it is, and what is asked of the backend.
        self._queue, self._id, self._file, self._offset, self._address, self._span, self._wanted, self._reached = (
            np.zeros(backend.depth, np.int64) for _ in range(8)
        )
        self._free = np.arange(backend.depth, dtype=np.int64)
        self._free_count = backend.depth
        self._stopping = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-nvme-controller", daemon=True)
        self._thread.start()

    @property
    def path_taken(self) -> str:
        return f"{CPU_SERVED}: {self._backend.path_taken}"

    def open(self, path: str) -> Opened:
        """Open a file in the backend as a namespace."""
        opened = self._backend.open(path)
        # Sizes last: until then no command finds the namespace.
        self._files = np.append(self._files, opened.file)
        self._sizes = np.append(self._sizes, opened.nbytes)
        return Opened(len(self._sizes), opened.nbytes)

    def map(self, memory: ByteArray) -> None:
        """Do nothing: the thread sees all memory of this process."""

    def wake(self) -> None:
        self.busy.set()

    def rest(self) -> None:
        self.busy.clear()

    def check(self, waited_s: float) -> None:
        """Raise what ended the thread, if anything did; the backend may take any time."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        self._stopping = True
        self.busy.set()
        self._thread.join()
        self._backend.close()

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as failure:  # raised in the thread that waits for a completion
            self._failure = failure
            self.memory.gone[0] = 1

    def _serve(self) -> None:
        nap_s = _SHORTEST_NAP_S
        while not self._stopping:
            moved = False
            for queue in range(self.memory.queues):
                moved |= self._fetch(queue)
                moved |= self._post(queue)
            if self._free_count < len(self._free):
                self._settle(self._backend.pop(1))
                moved = True
            nap_s = _SHORTEST_NAP_S if moved else min(2 * nap_s, _LONGEST_NAP_S)
            if not moved:
                self.busy.wait()
                time.sleep(nap_s)

    def _fetch(self, queue: int) -> bool:
        """Fetch as many commands as the backend has room for, and begin to read."""
        tail = int(self.memory.doorbells[queue + 1, 0])
        assert tail <= self._mask, f"doorbell of submission queue {queue + 1} says {tail}"
        head = self._heads[queue]
        count = min((tail - head) & self._mask, self._free_count)
        if count == 0:
            return False
        commands = self.memory.sq[queue, (head + np.arange(count)) & self._mask]
        self._heads[queue] = (head + count) & self._mask
        status, offsets, nbytes, wanted, files = self._examine(commands)
        wrong = status != SUCCESS
        self._complete(queue, commands["id"][wrong], status[wrong])
        if (good := np.flatnonzero(~wrong)).size:
            self._free_count -= good.size
            reads = self._free[self._free_count : self._free_count + good.size].copy()
            self._queue[reads], self._id[reads], self._reached[reads] = queue, commands["id"][good], 0
            self._file[reads], self._offset[reads] = files[good], offsets[good]
            self._address[reads] = commands["prp1"][good].astype(np.int64)
            self._span[reads], self._wanted[reads] = nbytes[good], wanted[good]
            self._read(reads)
        return True

    def _examine(self, commands: Array) -> tuple[Numbers, Numbers, Numbers, Numbers, Numbers]:
        """Return what each command asks for: status, offset, bytes in blocks, bytes in the file, and file."""
        block = self.memory.block_bytes
        sizes = self._sizes
        nsid = commands["nsid"].astype(np.int64)
        known = (nsid >= 1) & (nsid <= len(sizes))
        size = np.concatenate(([0], sizes))[nsid * known]
        file = np.concatenate(([0], self._files))[nsid * known]
        count = commands["last_block"].astype(np.int64) + 1
        room = -(-size // block) - np.minimum(commands["lba"], np.uint64(1 << 53)).astype(np.int64)
        status = np.select(
            [
                commands["opcode"] != READ,
                (commands["flags"] != 0) | (count * block > MAX_READ_BYTES),
                ~known,
                room < count,
                ~self._is_one_piece(commands, count * block),
            ],
            [
                layout.INVALID_OPCODE,
                layout.INVALID_FIELD,
                layout.INVALID_NAMESPACE,
                layout.LBA_OUT_OF_RANGE,
                layout.PRP_OFFSET_INVALID,
            ],
            SUCCESS,
        )
        offset = np.where(status == SUCCESS, commands["lba"].astype(np.int64), 0) * block
        return status, offset, count * block, np.minimum(count * block, size - offset), file

    def _is_one_piece(self, commands: Array, nbytes: Numbers) -> npt.NDArray[np.bool_]:
        """Whether each command's pages are contiguous, as the backend needs them."""
        prp1, prp2 = commands["prp1"].astype(np.int64), commands["prp2"].astype(np.int64)
        second = (prp1 & -PAGE_BYTES) + PAGE_BYTES
        rest = prp1 + nbytes - second
        right = (prp1 > 0) & (prp1 % self._backend.alignment == 0)
        right &= (rest <= 0) | (rest > PAGE_BYTES) | (prp2 == second)
        for i in np.flatnonzero(right & (rest > PAGE_BYTES) & (nbytes <= MAX_READ_BYTES)).tolist():
            pages = np.arange(-(-int(rest[i]) // PAGE_BYTES)) * PAGE_BYTES + second[i]
            right[i] = np.array_equal(self._list(int(prp2[i]), len(pages)), pages)
        return right

    def _list(self, address: int, count: int) -> Numbers:
        """Return entries of a PRP list; empty at an address where an IOMMU would refuse a disk."""
        memory = self.memory.memory
        at = address - memory.ctypes.data
        if address % PAGE_BYTES or not 0 <= at < memory.nbytes:
            return np.zeros(0, np.int64)
        return memory[at : at + 8 * count].view(np.int64)

    def _read(self, reads: Numbers) -> None:
        ahead = self._reached[reads]
        offsets, spans, addresses = self._offset[reads], self._span[reads], self._address[reads]
        self._backend.push(Reads(reads, self._file[reads], offsets + ahead, spans - ahead, addresses + ahead))

    def _settle(self, results: Results) -> None:
        """Complete the commands whose reads are done; continue partial reads."""
        reads, came = results.ids, results.nbytes
        before = self._reached[reads]
        reached = before + np.maximum(came, 0)
        there = reached >= self._wanted[reads]
        whole = reached - reached % self._backend.alignment
        more = ~there & ((whole > before) | np.isin(came, (-errno.EINTR, -errno.EAGAIN)))
        status = np.select(
            [there, (came >= 0) | (came == -errno.EIO), came == -errno.EFAULT],
            [SUCCESS, layout.UNRECOVERED_READ_ERROR, layout.DATA_TRANSFER_ERROR],
            layout.INTERNAL_ERROR,
        )
        self._reached[reads] = whole
        if more.any():
            self._read(reads[more])
        done, status = reads[~more], status[~more]
        self._free[self._free_count : self._free_count + done.size] = done
        self._free_count += done.size
        for queue in np.unique(self._queue[done]).tolist():
            mine = self._queue[done] == queue
            self._complete(queue, self._id[done[mine]], status[mine])
            self._post(queue)

    def _complete(self, queue: int, ids: npt.NDArray[Any], status: Numbers) -> None:
        """Queue completions, to be posted when there is room."""
        entries = ids.astype(np.uint64) << np.uint64(32) | status.astype(np.uint64) << np.uint64(49)
        self._waiting[queue] = np.concatenate((self._waiting[queue], entries))

    def _post(self, queue: int) -> bool:
        tail = self._tails[queue]
        taken = int(self.memory.doorbells[queue + 1, 1])
        count = min(len(self._waiting[queue]), self._mask - ((tail - taken) & self._mask))
        if count == 0:
            return False
        counters = tail + np.arange(count)
        phase = (counters // self.memory.entries + 1) & 1
        same = self._heads[queue] | (queue + 1) << 16
        entries = self._waiting[queue][:count] | phase.astype(np.uint64) << np.uint64(48) | np.uint64(same)
        # One word holds id, status and phase: a thread that sees the phase change sees the rest.
        self._words[queue, counters & self._mask, 1] = entries
        self._waiting[queue] = self._waiting[queue][count:]
        self._tails[queue] = tail + count
        return True
