"""The layout of the queues' memory, shared with ``queues.cuh``, and the meaning of a status.

NVM Express Base Specification 2.0: common command format and common completion
queue entry (section 3.3.3), status codes (3.3.3.2.1, and the NVM Command Set
Specification 1.0 for those of reads).
"""

from __future__ import annotations

import errno
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

PAGE_BYTES = 4096
MAX_READ_BYTES = 1 << 20
"""Most bytes that one command reads (MDTS); one page of PRP entries would do for twice that."""
MAX_ENTRIES = 4096
MAX_QUEUES = 64

READ = 0x02

SUCCESS = 0x000
INVALID_OPCODE = 0x001
INVALID_FIELD = 0x002
DATA_TRANSFER_ERROR = 0x004
INTERNAL_ERROR = 0x006
INVALID_NAMESPACE = 0x00B
PRP_OFFSET_INVALID = 0x013
LBA_OUT_OF_RANGE = 0x080
UNRECOVERED_READ_ERROR = 0x281
STATUSES = {
    INVALID_OPCODE: ("invalid opcode", errno.EOPNOTSUPP),
    INVALID_FIELD: ("invalid field", errno.EINVAL),
    DATA_TRANSFER_ERROR: ("data transfer error", errno.EFAULT),
    INTERNAL_ERROR: ("internal error", errno.EREMOTEIO),
    INVALID_NAMESPACE: ("invalid namespace or format", errno.ENODEV),
    PRP_OFFSET_INVALID: ("PRP offset invalid", errno.EINVAL),
    LBA_OUT_OF_RANGE: ("LBA out of range", 0),
    UNRECOVERED_READ_ERROR: ("unrecovered read error", errno.EIO),
}
"""Each status in words, and its error number; 0 past the end of a namespace, where there are just no bytes."""

_CODE_BITS = 0x7FF
_MEDIA_ERRORS = 2


def code_of(status: int) -> int:
    """Return a status's type and code, without the flags "do not retry" and "more in the log"."""
    return status & _CODE_BITS


def errno_of(status: int) -> int:
    """Return a status's error number."""
    code = code_of(status)
    return STATUSES.get(code, ("", errno.EIO if code >> 8 == _MEDIA_ERRORS else errno.EREMOTEIO))[1]


def status_text(status: int) -> str:
    """Return a status in words, and as the specification numbers it."""
    code = code_of(status)
    words, _ = STATUSES.get(code, ("refused by the disk", 0))
    return f"{words} (NVMe status type {code >> 8}, code 0x{code & 0xFF:02x})"


COMMAND = np.dtype(
    [
        ("opcode", "u1"), ("flags", "u1"), ("id", "u2"), ("nsid", "u4"), ("unused", "u8"), ("metadata", "u8"),
        ("prp1", "u8"), ("prp2", "u8"), ("lba", "u8"), ("last_block", "u2"), ("control", "u2"), ("more", "u4", 3),
    ]
)  # fmt: skip
COMPLETION = np.dtype(
    [("result", "u8"), ("sq_head", "u2"), ("sq_id", "u2"), ("id", "u2"), ("status", "u2")]
)  # fmt: skip
REQUEST = np.dtype([("lba", "u8"), ("address", "u8"), ("pages", "u8"), ("nsid", "u4"), ("blocks", "u4")])
PAIR = np.dtype(
    [
        ("reserved", "u8"), ("published", "u8"), ("consumed", "u8"), ("reaped", "u8"),
        ("publishing", "u8"), ("reaping", "u8"), ("unused", "u8", 2),
    ]
)  # fmt: skip
PROGRESS = np.dtype([("taken", "u8"), ("completed", "u8")])
WORK = np.dtype(
    [
        ("progress", "u8"), ("pairs", "u8"), ("written", "u8"),
        ("sq", "u8"), ("cq", "u8"), ("doorbells", "u8"), ("prp_lists", "u8"),
        ("list_pages", "u8"), ("gone", "u8"), ("requests", "u8"), ("order", "u8"), ("done", "u8"),
        ("queues", "u4"), ("entries", "u4"), ("ids", "u4"), ("block_shift", "u4"),
        ("sq_stride", "u4"), ("cq_stride", "u4"), ("doorbell_stride", "u4"), ("unused", "u4"),
    ]
)  # fmt: skip

Array = npt.NDArray[Any]


DOORBELLS = 0x1000 // 4
"""Where the doorbells begin among a disk's registers, in words of 32 bits."""


class QueueMemory:
    """Queues, doorbells and the host's table of requests, in one piece of zeroed memory.

    Each queue begins on a page, as disks need it.
    """

    def __init__(
        self,
        queues: int,  # pairs of a submission and a completion queue
        entries: int,  # entries of each queue, a power of two; one is always empty
        depth: int,  # most requests under way
        block_bytes: int,  # block size of the namespaces, a power of two
        registers: Array | None = None,  # the disk's, mapped, in 32-bit words; None for doorbells in this memory
        stride: int = 1,  # distance from one doorbell to the next, in words
    ) -> None:
        assert 1 <= queues <= MAX_QUEUES
        assert 2 <= entries <= MAX_ENTRIES and not entries & (entries - 1)
        self.queues, self.entries, self.block_bytes = queues, entries, block_bytes
        self.ids = 1 << (depth - 1).bit_length()
        parts: dict[str, tuple[Any, tuple[int, ...]]] = {
            "prp_lists": ("u8", (self.ids, PAGE_BYTES // 8)),
            "sq": (COMMAND, (queues, max(entries, PAGE_BYTES // COMMAND.itemsize))),
            "cq": (COMPLETION, (queues, max(entries, PAGE_BYTES // COMPLETION.itemsize))),
            "doorbells": ("u4", (queues + 1, 2)),
            "list_pages": ("u8", (self.ids,)),
            "gone": ("u4", (1,)),
            "requests": (REQUEST, (self.ids,)),
            "order": ("u4", (self.ids,)),
            "done": ("u8", (self.ids,)),
        }
        sizes = {name: np.dtype(dtype).itemsize * int(np.prod(shape)) for name, (dtype, shape) in parts.items()}
        self.memory = np.frombuffer(mmap.mmap(-1, sum(_pages(n) for n in sizes.values())), np.uint8)
        self._parts: dict[str, Array] = {}
        at = 0
        for name, (dtype, shape) in parts.items():
            self._parts[name] = self.memory[at : at + sizes[name]].view(dtype).reshape(shape)
            at += _pages(sizes[name])
        self.sq, self.cq = self._parts["sq"][:, :entries], self._parts["cq"][:, :entries]
        names = ("prp_lists", "list_pages", "gone", "requests", "order", "done")
        self.prp_lists, self.list_pages, self.gone, self.requests, self.order, self.done = map(
            self._parts.__getitem__, names
        )
        # A controller sees the addresses of this process, unless it overwrites them.
        self.list_pages[:] = self.prp_lists.ctypes.data + PAGE_BYTES * np.arange(self.ids, dtype=np.uint64)
        self.registers, self._stride = registers, stride
        self.doorbells = self._parts["doorbells"]
        if registers is not None:
            of_disk = registers[DOORBELLS : DOORBELLS + 2 * (queues + 1) * stride]
            self.doorbells = of_disk.reshape(queues + 1, 2, stride)[:, :, 0]

    @property
    def private_bytes(self) -> int:
        """Size of the submitting threads' private memory; see ``work``."""
        return PROGRESS.itemsize + 64 + self.queues * (PAIR.itemsize + 8 * self.entries)

    def work(self, private: int, registers: int | None = None) -> Array:
        """Return the argument of ``penstock_serve``.

        ``private`` is the address of ``private_bytes`` zeros, a multiple of 64. The threads see the disk's
        registers at ``registers``; None if that is this process's address.
        """
        work = np.zeros(1, WORK)
        pairs = private + 64
        work["progress"], work["pairs"], work["written"] = private, pairs, pairs + self.queues * PAIR.itemsize
        for name, part in self._parts.items():
            work[name] = part.ctypes.data
        work["doorbells"] = self.doorbells.ctypes.data
        if self.registers is not None and registers is not None:
            work["doorbells"] = registers + self.doorbells.ctypes.data - self.registers.ctypes.data
        work["queues"], work["entries"], work["ids"] = self.queues, self.entries, self.ids
        work["block_shift"] = self.block_bytes.bit_length() - 1
        work["sq_stride"], work["cq_stride"] = (self._parts[name].shape[1] for name in ("sq", "cq"))
        work["doorbell_stride"] = self._stride
        return work


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES
