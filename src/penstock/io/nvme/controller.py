"""A disk at the other end of the queues: it fetches commands from them, and writes into our memory itself.

Identify pages: NVMe Base Specification 2.0, 5.17.2.1; NVM Command Set Specification 1.0, 4.1.5.1.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import NamedTuple

from penstock.contracts import ByteArray, Opened
from penstock.errors import ReaderUnavailable
from penstock.io.files import disk_path
from penstock.io.nvme import admin as at
from penstock.io.nvme.admin import Admin
from penstock.io.nvme.module import LibnvmModule
from penstock.io.nvme.queue_memory import MAX_QUEUES, MAX_READ_BYTES, PAGE_BYTES, Array, QueueMemory

_MODEL, _MDTS, _NN = slice(24, 64), 77, 516
_NLBAF, _FLBAS, _LBA_FORMATS = 25, 26, 128


class Disk(NamedTuple):
    """The capabilities that a controller reports."""

    model: str
    max_read_bytes: int  # most bytes that one command reads, as far as Penstock uses it
    namespaces: int  # highest possible number of a namespace


class Namespace(NamedTuple):
    """Size of a namespace and of its blocks."""

    block_bytes: int
    nbytes: int


def disk_from(data: bytes) -> Disk:
    """Decode the Identify page of a controller (CNS 1)."""
    limit_log2 = data[_MDTS]  # in pages; 0 is no limit
    max_read_bytes = min(MAX_READ_BYTES, PAGE_BYTES << limit_log2) if limit_log2 else MAX_READ_BYTES
    (namespaces,) = struct.unpack_from("<I", data, _NN)
    return Disk(data[_MODEL].decode("ascii", "replace").strip(), max_read_bytes, namespaces)


def namespace_from(data: bytes, name: str) -> Namespace:
    """Decode the Identify page of a namespace (CNS 0); ``name`` is for errors."""
    (blocks,) = struct.unpack_from("<Q", data)
    if blocks == 0:
        raise ReaderUnavailable(f"{name} has no blocks: it is not there, or not active", "read another namespace")
    chosen = data[_FLBAS] & 0xF
    if data[_NLBAF] > 15:
        chosen |= data[_FLBAS] >> 1 & 0x30
    metadata_bytes, block_log2, _ = struct.unpack_from("<HBB", data, _LBA_FORMATS + 4 * chosen)
    if metadata_bytes:
        raise ReaderUnavailable(
            f"{name} is formatted with {metadata_bytes} bytes of metadata a block, which mech='gpu' does not take",
            "format it without (nvme format -m 0; that erases it)",
        )
    return Namespace(1 << block_log2, blocks << block_log2)


MAX_ENTRIES = 64
"""Commands on one page: a queue of no more is in one piece for the disk too."""

_PATIENCE_S = 30.0


class DiskController:
    """Resets a disk and gives it queues; its namespaces are read, never written.

    ``module`` is closed with this, or if this fails. There are at most ``queues`` pairs of queues, 1 to 64, for
    the block size of namespace ``nsid``; some read must complete within ``patience_s``.
    """

    def __init__(
        self, module: LibnvmModule, nsid: int, *, depth: int, queues: int, patience_s: float = _PATIENCE_S
    ) -> None:
        self.depth = depth  # most commands under way
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
                self.close()
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
        self.memory = memory = QueueMemory(queues, entries, self.depth, block_bytes, registers, stride)
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
        """Open a namespace; return its id and size."""
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
        """Let the disk write into this memory, until it is closed; return the bus address of each page."""
        return self._module.map_host(memory)

    def wake(self) -> None:
        """Do nothing when commands are on their way: a disk is always awake."""

    def rest(self) -> None:
        """Do nothing when all commands are completed: a disk is always awake."""

    def check(self, waited_s: float) -> None:
        """Raise if no completion can be expected any more; the submitting threads end then.

        The last completion, with reads under way, was ``waited_s`` ago.
        """
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
        """Delete the queues, turn the disk off, undo the mappings."""
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
