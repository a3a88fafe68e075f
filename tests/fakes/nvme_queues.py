"""The memory and the queues of a fake disk, as it sees them: pages at bus addresses, with doorbells."""

from __future__ import annotations

import random
from collections import deque

import numpy as np

from penstock.contracts import ByteArray
from penstock.io.nvme.queue_memory import COMMAND, COMPLETION, PAGE_BYTES, Array


class DoorbellInvalid(Exception):
    """A doorbell says what no queue of this size can mean."""


class SubmissionQueue:
    """Args:
    number: Of the queue.
    bus_address: Of its first entry; it lies in one piece.
    doorbell: One register.
    answers: The completion queue that it belongs to.
    """

    def __init__(
        self, number: int, bus: Bus, bus_address: int, entries: int, doorbell: Array, answers: CompletionQueue
    ) -> None:
        self.number, self.answers = number, answers
        self._bus, self._address, self._entries, self._doorbell = bus, bus_address, entries, doorbell
        self.head = 0
        doorbell[0] = 0

    def fetch(self) -> Array | None:
        """The next command, if the doorbell tells of one."""
        tail = int(self._doorbell[0])
        if tail >= self._entries:
            raise DoorbellInvalid(f"the tail of submission queue {self.number} is said to be {tail}")
        if tail == self.head:
            return None
        piece = self._bus.piece(self._address + self.head * COMMAND.itemsize, COMMAND.itemsize)
        self.head = (self.head + 1) % self._entries
        return piece.copy().view(COMMAND)[0]


class CompletionQueue:
    """As ``SubmissionQueue``; completions wait while it is full."""

    def __init__(self, number: int, bus: Bus, bus_address: int, entries: int, doorbell: Array) -> None:
        self.number = number
        self._bus, self._address, self._entries, self._doorbell = bus, bus_address, entries, doorbell
        self._posted = 0
        self._waiting: deque[tuple[SubmissionQueue, int, int, int]] = deque()
        doorbell[0] = 0

    def answer(self, queue: SubmissionQueue, command: int, status: int, result: int = 0) -> None:
        self._waiting.append((queue, command, status, result))

    def post(self) -> bool:
        """Write what waits, as far as there is room; says whether there was anything."""
        posted = self._posted
        while self._waiting and (self._posted + 1) % self._entries != self._head():
            queue, command, status, result = self._waiting.popleft()
            slot, lap = self._posted % self._entries, self._posted // self._entries
            entry = self._bus.piece(self._address + slot * COMPLETION.itemsize, COMPLETION.itemsize).view("u8")
            entry[0] = result
            # The half with the phase last, and at once.
            entry[1] = queue.head | queue.number << 16 | command << 32 | (status << 1 | (lap + 1) & 1) << 48
            self._posted += 1
        return self._posted > posted

    def _head(self) -> int:
        head = int(self._doorbell[0])
        if head >= self._entries:
            raise DoorbellInvalid(f"the head of completion queue {self.number} is said to be {head}")
        return head


def pages_of(bus: Bus, prp1: int, prp2: int, nbytes: int) -> list[tuple[int, int]]:
    """Bus address and size of each piece that the PRPs of a command tell of (Base Specification 2.0, 4.1.1)."""
    if prp1 % 4:
        raise ValueError(f"PRP entry 1 is 0x{prp1:x}")
    first = min(nbytes, PAGE_BYTES - prp1 % PAGE_BYTES)
    rest = nbytes - first
    count = -(-rest // PAGE_BYTES)
    if count > PAGE_BYTES // 8:
        raise BusFault(f"a PRP list of {count} entries is longer than a page")
    entries = [prp2] if count == 1 else bus.piece(prp2, 8 * count).view(np.uint64).tolist() if count else []
    if any(entry % PAGE_BYTES for entry in (*entries, prp2)):
        raise ValueError("a PRP entry does not begin a page")
    sizes = [min(PAGE_BYTES, rest - i * PAGE_BYTES) for i in range(count)]
    return [(prp1, first), *zip(entries, sizes, strict=True)]


class BusFault(Exception):
    """A disk has used an address that nobody gave it, as an IOMMU would report it."""


class Bus:
    """Pages of the process, each at a random bus address."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._pages: dict[int, ByteArray] = {}

    @property
    def count(self) -> int:
        """How many pages are mapped."""
        return len(self._pages)

    def map(self, memory: ByteArray) -> Array:
        """The address of each page of the memory."""
        table: list[int] = []
        for at in range(0, memory.nbytes, PAGE_BYTES):
            bus = self._random.randrange(1, 1 << 40) * PAGE_BYTES
            assert bus not in self._pages
            self._pages[bus] = memory[at : at + PAGE_BYTES]
            table.append(bus)
        return np.array(table, np.uint64)

    def unmap(self, table: Array) -> None:
        for bus in table.tolist():
            del self._pages[bus]

    def piece(self, bus: int, nbytes: int) -> ByteArray:
        """Bytes that lie on one page."""
        within = bus % PAGE_BYTES
        if bus - within not in self._pages or within + nbytes > PAGE_BYTES:
            raise BusFault(f"{nbytes} bytes at bus address 0x{bus:x}")
        return self._pages[bus - within][within : within + nbytes]
