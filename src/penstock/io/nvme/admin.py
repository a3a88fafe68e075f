"""A disk's registers, and its reset and admin queue.

NVM Express Base Specification 2.0: 3.1.3 (registers), 3.5 (initialization), 5 (admin commands); doorbells: NVMe
over PCIe Transport 1.0.
"""

from __future__ import annotations

import mmap
import time
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from penstock.contracts import ByteArray
from penstock.errors import ReaderUnavailable
from penstock.io.nvme import queue_memory as layout
from penstock.io.nvme.module import LibnvmModule
from penstock.io.nvme.queue_memory import COMMAND, COMPLETION, DOORBELLS, PAGE_BYTES, SUCCESS, Array

# In words of 32 bits.
CAP, VS, INTMS, CC, CSTS, AQA, ASQ, ACQ = (at // 4 for at in (0x0, 0x8, 0xC, 0x14, 0x1C, 0x24, 0x28, 0x30))

ENABLE = 1
_SUBMISSION_ENTRY_BYTES_LOG2, _COMPLETION_ENTRY_BYTES_LOG2 = 6, 4
CONFIGURATION = _SUBMISSION_ENTRY_BYTES_LOG2 << 16 | _COMPLETION_ENTRY_BYTES_LOG2 << 20
"""CC: the NVM command set, pages of 4096 bytes, round robin; still without ``ENABLE``."""

READY, FATAL = 1, 2
OFF_THE_BUS = 0xFFFF_FFFF
"""Value of every register when the disk no longer answers."""


class Capabilities(NamedTuple):
    """Register CAP, and VS."""

    version: str
    entries: int  # most entries of a queue
    ready_limit_s: float  # time within which the disk becomes ready, or stops
    doorbell_stride: int  # distance from one doorbell to the next, in words
    reads_blocks: bool  # whether it knows the NVM command set
    least_page_bytes: int  # the smallest memory page that it takes


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


DELETE_SQ, CREATE_SQ, DELETE_CQ, CREATE_CQ, IDENTIFY, SET_FEATURES = 0x00, 0x01, 0x04, 0x05, 0x06, 0x09
NUMBER_OF_QUEUES = 0x07
_CONTIGUOUS = 1

_ENTRIES = 32
_LIMIT_S = 60.0
_NAP_S, _LONG_NAP_S = 50e-6, 1e-3
_POWER = "power it off and on"


class Admin:
    """Resets a disk and gives it admin commands, one at a time; each must be answered within ``limit_s``."""

    def __init__(self, module: LibnvmModule, limit_s: float = _LIMIT_S) -> None:
        self._path, self._limit_s = module.path, limit_s
        self._registers = module.registers(mmap.PAGESIZE)
        self.capabilities = able = capabilities(self._registers)
        if self.status == OFF_THE_BUS:
            raise ReaderUnavailable(f"{self._path} does not answer on the bus", f"see dmesg, or {_POWER}")
        if not able.reads_blocks or able.least_page_bytes > PAGE_BYTES:
            raise ReaderUnavailable(
                f"{self._path}: the NVM command set with pages of {PAGE_BYTES} bytes is needed, and this disk has "
                f"{'it' if able.reads_blocks else 'none'} with pages of {able.least_page_bytes} bytes or more",
                "read it by another way",
            )
        self._registers = module.registers((DOORBELLS + 2 * able.doorbell_stride) * 4)
        memory: ByteArray = np.frombuffer(mmap.mmap(-1, 3 * PAGE_BYTES), np.uint8)
        self._buses = [int(bus) for bus in module.map_host(memory)]
        sq, cq, self._data = memory.reshape(3, PAGE_BYTES)
        self._sq, self._cq = sq.view(COMMAND)[:_ENTRIES], cq.view(COMPLETION)[:_ENTRIES]
        self._words = self._cq.view(np.uint64).reshape(_ENTRIES, 2)
        self._count = 0

    @property
    def status(self) -> int:
        """Register CSTS."""
        return int(self._registers[CSTS])

    def reset(self) -> None:
        """Reset the disk, and make it ready for commands."""
        self.disable()
        self._sq[:], self._cq[:], self._count = 0, 0, 0
        registers = self._registers
        registers[INTMS] = 0xFFFF_FFFF  # nothing here answers interrupts
        registers[AQA] = (_ENTRIES - 1) << 16 | (_ENTRIES - 1)
        for register, bus in zip((ASQ, ACQ), self._buses, strict=False):
            registers[register], registers[register + 1] = bus & 0xFFFF_FFFF, bus >> 32
        registers[CC] = CONFIGURATION
        registers[CC] = CONFIGURATION | ENABLE
        self._wait(ready=True)

    def disable(self) -> None:
        """Stop the disk; once this returns, it writes to no memory any more."""
        enabled, status = int(self._registers[CC]) & ENABLE, self.status
        if status == OFF_THE_BUS:
            return
        if enabled and not status & (READY | FATAL):
            with suppress(ReaderUnavailable):  # it must not be turned off while it starts (3.1.3.6)
                self._wait(ready=True)
        self._registers[CC] = int(self._registers[CC]) & ~ENABLE
        self._wait(ready=False)

    def identify(self, which: int, nsid: int = 0) -> bytes:
        """Return the Identify page of a namespace (``which`` = 0) or of the controller (1)."""
        self._data[:] = 0
        self.command(IDENTIFY, "identify itself", nsid=nsid, prp1=self._buses[2], dwords=(which, 0))
        return self._data.tobytes()

    def request_queues(self, count: int) -> int:
        """Ask for ``count`` pairs of queues; return how many the disk gives."""
        wanted = (count - 1) << 16 | (count - 1)
        given = self.command(SET_FEATURES, "give queues", dwords=(NUMBER_OF_QUEUES, wanted))
        return min(count, (given & 0xFFFF) + 1, (given >> 16) + 1)

    def create_pair(self, number: int, entries: int, sq_bus: int, cq_bus: int) -> None:
        """Create a submission queue and its completion queue, numbered from 1, each in one piece."""
        size = (entries - 1) << 16 | number
        what = f"create queue {number} of {entries} entries"
        self.command(CREATE_CQ, what, prp1=cq_bus, dwords=(size, _CONTIGUOUS))
        self.command(CREATE_SQ, what, prp1=sq_bus, dwords=(size, number << 16 | _CONTIGUOUS))

    def delete_pair(self, number: int) -> None:
        for opcode in (DELETE_SQ, DELETE_CQ):
            self.command(opcode, f"delete queue {number}", dwords=(number, 0))

    def command(
        self, opcode: int, what: str, *, nsid: int = 0, prp1: int = 0, dwords: tuple[int, int] = (0, 0)
    ) -> int:
        """Give one command, and wait for its answer, whose dword 0 is returned.

        ``what`` says what the command does, for errors; ``dwords`` are its dwords 10 and 11.
        """
        slot, lap = self._count % _ENTRIES, self._count // _ENTRIES
        entry = np.zeros((), COMMAND)
        entry["opcode"], entry["id"], entry["nsid"], entry["prp1"] = opcode, slot, nsid, prp1
        entry["lba"] = dwords[1] << 32 | dwords[0]
        self._sq[slot] = entry
        self._count += 1
        self._ring(0)
        deadline_s = time.monotonic() + self._limit_s
        while (word := int(self._words[slot, 1])) >> 48 & 1 == lap & 1:
            late = time.monotonic() > deadline_s
            if late or self.status & FATAL:  # all bits are set when the disk is off the bus
                why = f"no answer within {self._limit_s:g} s" if late else "the disk has failed"
                raise ReaderUnavailable(f"{self._path} does not {what}: {why} {self._state()}", _POWER)
            time.sleep(_NAP_S)
        self._ring(1)
        if layout.code_of(word >> 49) != SUCCESS:
            raise ReaderUnavailable(
                f"{self._path} refuses to {what}: {layout.status_text(word >> 49)}",
                "its firmware may need an update",
            )
        return int(self._cq["result"][slot]) & 0xFFFF_FFFF

    def _ring(self, which: int) -> None:
        """Ring a doorbell; both queues have one size and one command under way, so they move together."""
        self._registers[DOORBELLS + which * self.capabilities.doorbell_stride] = self._count % _ENTRIES

    def _wait(self, *, ready: bool) -> None:
        deadline_s = time.monotonic() + self.capabilities.ready_limit_s
        while bool((status := self.status) & READY) != ready or status == OFF_THE_BUS:
            late = time.monotonic() > deadline_s
            if late or status == OFF_THE_BUS or (ready and status & FATAL):
                slow = f"not within the {self.capabilities.ready_limit_s:g} s that it asks for"
                what = f"{'become ready' if ready else 'stop'}: {slow if late else 'it has failed'}"
                raise ReaderUnavailable(f"{self._path} does not {what} {self._state()}", _POWER)
            time.sleep(_LONG_NAP_S)

    def _state(self) -> str:
        return f"(CC 0x{int(self._registers[CC]):08x}, CSTS 0x{self.status:08x})"
