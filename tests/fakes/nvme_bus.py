"""Memory as a disk sees it: by bus addresses that have nothing to do with those of the process."""

from __future__ import annotations

import random

import numpy as np

from penstock.contracts import ByteArray
from penstock.io.nvme.queue_memory import PAGE_BYTES, Array


class BusFault(Exception):
    """A disk has used an address that nobody gave it, as an IOMMU would report it."""


class Bus:
    """Pages of the process, each at a random bus address.

    Args:
        seed: Of the addresses.
    """

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
        """Bytes that lie on one page.

        Raises:
            BusFault: they do not, or are not mapped.
        """
        within = bus % PAGE_BYTES
        if bus - within not in self._pages or within + nbytes > PAGE_BYTES:
            raise BusFault(f"{nbytes} bytes at bus address 0x{bus:x}")
        return self._pages[bus - within][within : within + nbytes]
