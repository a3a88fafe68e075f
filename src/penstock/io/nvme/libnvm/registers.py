"""A disk's registers: NVM Express Base Specification 2.0, 3.1.3; doorbells: NVMe over PCIe Transport 1.0."""

from __future__ import annotations

from typing import NamedTuple

from penstock.io.nvme.queue_memory import Array

# In words of 32 bits.
CAP, VS, INTMS, CC, CSTS, AQA, ASQ, ACQ = (at // 4 for at in (0x0, 0x8, 0xC, 0x14, 0x1C, 0x24, 0x28, 0x30))
DOORBELLS = 0x1000 // 4

ENABLE = 1
_SUBMISSION_ENTRY_BYTES_LOG2, _COMPLETION_ENTRY_BYTES_LOG2 = 6, 4
CONFIGURATION = _SUBMISSION_ENTRY_BYTES_LOG2 << 16 | _COMPLETION_ENTRY_BYTES_LOG2 << 20
"""CC: the NVM command set, pages of 4096 bytes, round robin; still without ``ENABLE``."""

READY, FATAL = 1, 2
OFF_THE_BUS = 0xFFFF_FFFF
"""Value of every register when the disk no longer answers."""


class Capabilities(NamedTuple):
    """Register CAP, and VS.

    Attributes:
        entries: Most entries of a queue.
        ready_limit_s: Time within which the disk becomes ready, or stops.
        doorbell_stride: Distance from one doorbell to the next, in words.
        reads_blocks: Whether it knows the NVM command set.
        least_page_bytes: The smallest memory page that it takes.
    """

    version: str
    entries: int
    ready_limit_s: float
    doorbell_stride: int
    reads_blocks: bool
    least_page_bytes: int


def capabilities(registers: Array) -> Capabilities:
    """Read the disk's capabilities."""
    low, high, version = (int(registers[at]) for at in (CAP, CAP + 1, VS))
    return Capabilities(
        version=f"{version >> 16}.{version >> 8 & 0xFF}",
        entries=(low & 0xFFFF) + 1,
        ready_limit_s=0.5 * max(1, low >> 24),
        doorbell_stride=1 << (high & 0xF),
        reads_blocks=bool(high >> 5 & 1),
        least_page_bytes=4096 << (high >> 16 & 0xF),
    )
