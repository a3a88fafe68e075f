"""The mechanism ``gpu`` as it is opened: the first path decides which controller serves it."""

from __future__ import annotations

import platform
from contextlib import ExitStack

from penstock.contracts import ByteArray, Gpu, Opened
from penstock.errors import ReaderUnavailable
from penstock.io.files import DIRECT_ALIGNMENT, DiskPath, disk_path
from penstock.io.nvme import module
from penstock.io.nvme.controller import DiskController
from penstock.io.nvme.cpu_threads import HostThreads
from penstock.io.nvme.emulated import EmulatedController
from penstock.io.nvme.gpu_threads import DeviceThreads
from penstock.io.nvme.queue import Controller, GpuQueue, queue_memory
from penstock.io.nvme.queue_memory import MAX_QUEUES
from penstock.io.queue import Reads, Results
from penstock.io.uring import UringQueue

_EMULATED_QUEUES = 2


class GpuOfFirstPath:
    """A disk under BaM's kernel module serves itself, files are served by the CPU; one reader reads either.

    Nothing is prepared before the first path is known: a disk needs no io_uring,
    and memory registered twice would count twice against the limit.

    Args:
        depth: Reads under way at once.
        threads: Number of threads that submit.
        gpu: GPU of these threads; None for threads of the CPU.
        memory: Where bytes go.

    Raises:
        ReaderUnavailable: this processor may show a completion before its bytes.
    """

    mech = "gpu"

    def __init__(self, depth: int, threads: int, gpu: Gpu | None, memory: ByteArray) -> None:
        if (machine := platform.machine()) != "x86_64":
            raise ReaderUnavailable(
                f"mech='gpu' relies on the order in which x86-64 shows writes, and this is {machine}",
                "read with mech='uring'",
            )
        self.depth = depth
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

    Args:
        controller: Closed with the queue, or if making the queue fails.

    Raises:
        ReaderUnavailable: there are no such threads, or the controller cannot be given the memory.
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
