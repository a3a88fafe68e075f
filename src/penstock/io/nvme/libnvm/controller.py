"""A disk at the other end of the queues: it fetches commands from them, and writes into our memory itself."""

from __future__ import annotations

from contextlib import suppress

from penstock.contracts import ByteArray, Opened
from penstock.errors import ReaderUnavailable
from penstock.io.disk_names import disk_path
from penstock.io.nvme.libnvm import registers as at
from penstock.io.nvme.libnvm.admin import Admin
from penstock.io.nvme.libnvm.identify import Namespace, disk_from, namespace_from
from penstock.io.nvme.libnvm.module import Module
from penstock.io.nvme.queue_memory import MAX_QUEUES, PAGE_BYTES, Array, Doorbells, QueueMemory

MAX_ENTRIES = 64
"""Commands on one page: a queue of no more is in one piece for the disk too."""

_PATIENCE_S = 30.0


class DiskController:
    """Resets a disk and gives it queues; its namespaces are read, never written.

    Args:
        module: The kernel module's file of the disk; closed with this, or if this fails.
        nsid: Namespace whose block size the queues use.
        depth: Most commands under way.
        queues: Most pairs of queues, 1 to 64.
        patience_s: Time within which some read must complete.

    Raises:
        ReaderUnavailable: the disk refuses, or does not answer; it is then turned off.
    """

    def __init__(
        self, module: Module, nsid: int, *, depth: int, queues: int, patience_s: float = _PATIENCE_S
    ) -> None:
        self.depth = depth
        self._module, self._patience_s = module, patience_s
        self._failed = False
        self._created = 0
        try:
            self._admin = Admin(module)
        except BaseException:
            module.close()
            raise
        try:
            self._start(nsid, queues)
        except BaseException:
            with suppress(ReaderUnavailable):  # why it did not start says more
                self._stop()
            raise

    def _start(self, nsid: int, queues: int) -> None:
        admin, module = self._admin, self._module
        admin.reset()
        self._disk = disk_from(admin.identify(1))
        self.max_read_bytes = self._disk.max_read_bytes
        block_bytes = self._namespace(nsid).block_bytes
        entries = 1 << min(MAX_ENTRIES, admin.capabilities.entries).bit_length() - 1
        # As many as the depth fills; one entry of each stays empty.
        queues = admin.request_queues(min(queues, -(-self.depth // (entries - 1)), MAX_QUEUES))
        stride = admin.capabilities.doorbell_stride
        registers = module.registers((at.DOORBELLS + 2 * (queues + 1) * stride) * 4)
        self.memory = memory = QueueMemory(
            queues, entries, self.depth, block_bytes, Doorbells(registers, at.DOORBELLS, stride)
        )
        table = module.map_host(memory.memory)

        def bus(part: Array) -> int:
            return int(table[(part.ctypes.data - memory.memory.ctypes.data) // PAGE_BYTES])

        memory.list_pages[:] = [bus(page) for page in memory.prp_lists]
        for queue in range(queues):
            admin.create_pair(queue + 1, entries, bus(memory.sq[queue]), bus(memory.cq[queue]))
            self._created += 1

    @property
    def path_taken(self) -> str:
        return f"disk-served: {self._disk.model}, {self._module.path}, blocks of {self.memory.block_bytes} bytes"

    def open(self, path: str) -> Opened:
        named = disk_path(path)
        if named is None or named.device != self._module.path:
            raise ReaderUnavailable(
                f"{path}: this reader reads the disk {self._module.path}, and nothing else", "make another for it"
            )
        block_bytes, nbytes = self._namespace(named.nsid)
        if block_bytes != self.memory.block_bytes:
            raise ReaderUnavailable(
                f"{path} has blocks of {block_bytes} bytes, and what this reader opened first has blocks of "
                f"{self.memory.block_bytes}",
                "make another for it",
            )
        return Opened(named.nsid, nbytes)

    def map(self, memory: ByteArray) -> Array:
        return self._module.map_host(memory)

    def wake(self) -> None:
        """Do nothing: a disk is always awake."""

    def rest(self) -> None:
        """Do nothing: a disk is always awake."""

    def check(self, waited_s: float) -> None:
        status = self._admin.status
        if status == at.OFF_THE_BUS:
            why = "does not answer on the bus any more"
        elif status & at.FATAL:
            why = "has failed"
        elif not status & at.READY:
            why = "was turned off by somebody else"
        elif waited_s > self._patience_s:
            why = f"has completed no read for {waited_s:.0f} s"
        else:
            return
        self._failed = True
        self.memory.gone[0] = 1
        raise ReaderUnavailable(
            f"{self._module.path} ({self._disk.model}) {why} (CSTS 0x{status:08x})",
            "a new reader resets it. If that fails, power it off and on",
        )

    def close(self) -> None:
        """Delete the queues, turn the disk off, undo the mappings.

        Raises:
            ReaderUnavailable: the disk does not stop; its memory stays taken until the kernel module is unloaded.
        """
        self._stop()

    def _stop(self) -> None:
        try:
            while self._created and not self._failed:
                self._admin.delete_pair(self._created)
                self._created -= 1
        except ReaderUnavailable:
            self._failed = True  # turning it off ends them as well
        try:
            self._admin.disable()
        except BaseException:
            self._module.close(unmap=False)
            raise
        self._module.close()

    def _namespace(self, nsid: int) -> Namespace:
        if nsid > self._disk.namespaces:
            raise ReaderUnavailable(
                f"{self._module.path} has no namespace {nsid}: their numbers end at {self._disk.namespaces}"
            )
        return namespace_from(self._admin.identify(0, nsid), f"namespace {nsid} of {self._module.path}")
