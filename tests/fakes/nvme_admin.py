"""What a fake disk says of itself, and how it carries out admin commands."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.fakes.nvme_queues import Bus, CompletionQueue, SubmissionQueue

from penstock.io.nvme.admin import (
    CREATE_CQ,
    CREATE_SQ,
    DELETE_CQ,
    DELETE_SQ,
    IDENTIFY,
    NUMBER_OF_QUEUES,
    SET_FEATURES,
)
from penstock.io.nvme.queue_memory import (
    INTERNAL_ERROR,
    INVALID_FIELD,
    INVALID_OPCODE,
    PAGE_BYTES,
    PRP_OFFSET_INVALID,
    Array,
)

if TYPE_CHECKING:
    from tests.fakes.nvme_disk import FakeDisk

# Base Specification 2.0, command specific status values.
COMPLETION_QUEUE_INVALID, INVALID_QUEUE_ID, INVALID_QUEUE_SIZE, INVALID_QUEUE_DELETION = 0x100, 0x101, 0x102, 0x10C
COMMAND_SEQUENCE_ERROR = 0x00C
_CONTIGUOUS, _INTERRUPTS = 1, 2


@dataclass(frozen=True)
class Traits:
    """What kind of disk it is."""

    block_bytes: int = 512
    entries: int = 1024  # the most that a queue may have
    queues: int = 16  # the most pairs that it gives
    mdts: int = 5  # the most that a command reads: 2 to this power, in pages; 0 for no limit
    doorbell_stride_log2: int = 0  # in words
    ready_s: float = 0.0  # until it is ready
    ready_limit: int = 40  # in which it promises to be (CAP.TO), in units of 500 ms
    namespaces: int = 32  # how many it could have
    metadata_bytes: int = 0  # of each block
    least_page_log2: int = 0  # of the smallest memory page that it takes, above 4096 bytes
    command_sets: int = 1  # CAP.CSS; bit 0 is the NVM command set
    refuses: frozenset[int] = frozenset()  # admin commands that end in an internal error

    @property
    def doorbell_stride(self) -> int:
        return 1 << self.doorbell_stride_log2

    @property
    def max_read_bytes(self) -> int:
        return PAGE_BYTES << self.mdts if self.mdts else 1 << 40

    @property
    def capabilities(self) -> tuple[int, int]:
        """The halves of register CAP; queues must lie in one piece (CQR)."""
        low = (self.entries - 1) | 1 << 16 | self.ready_limit << 24
        return low, self.doorbell_stride_log2 | self.command_sets << 5 | self.least_page_log2 << 16 | 4 << 20


class AdminCommands:
    """Of one life of a disk, from reset to reset."""

    def __init__(self, disk: FakeDisk) -> None:
        self._disk = disk
        self._granted = disk.traits.queues  # unless it is asked for fewer

    def carry_out(self, command: Array) -> tuple[int, int]:
        """Status and dword 0."""
        opcode, dwords = int(command["opcode"]), int(command["lba"])
        low, high, prp1 = dwords & 0xFFFF_FFFF, dwords >> 32, int(command["prp1"])
        if opcode in self._disk.traits.refuses:
            return INTERNAL_ERROR, 0
        if opcode == IDENTIFY:
            return self._identify(low & 0xFF, int(command["nsid"]), prp1), 0
        if opcode == SET_FEATURES and low & 0xFF == NUMBER_OF_QUEUES:
            return self._number_of_queues(high)
        if opcode in (CREATE_CQ, CREATE_SQ):
            return self._create(opcode, low & 0xFFFF, (low >> 16) + 1, high, prp1), 0
        if opcode in (DELETE_SQ, DELETE_CQ):
            return self._delete(opcode, low & 0xFFFF), 0
        return (INVALID_FIELD if opcode == SET_FEATURES else INVALID_OPCODE), 0

    def _identify(self, which: int, nsid: int, prp1: int) -> int:
        page, traits = bytearray(PAGE_BYTES), self._disk.traits
        if which == 1:
            page[24:64] = b"FAKE DISK".ljust(40)
            page[77] = traits.mdts
            struct.pack_into("<I", page, 516, traits.namespaces)
        elif which == 0 and 1 <= nsid <= traits.namespaces:
            content = self._disk.namespaces.get(nsid)
            if content is not None:
                block = traits.block_bytes
                struct.pack_into("<Q", page, 0, len(content) // block)
                page[25], page[26] = 1, 1  # two formats, of which the second
                struct.pack_into("<HBB", page, 132, traits.metadata_bytes, block.bit_length() - 1, 0)
        else:
            return INVALID_FIELD
        if prp1 % PAGE_BYTES:
            return PRP_OFFSET_INVALID
        self._bus.piece(prp1, PAGE_BYTES)[:] = memoryview(page)
        return 0

    def _number_of_queues(self, wanted: int) -> tuple[int, int]:
        if len(self._disk.sqs) > 1:
            return COMMAND_SEQUENCE_ERROR, 0
        if 0xFFFF in (wanted & 0xFFFF, wanted >> 16):
            return INVALID_FIELD, 0
        self._granted = min(self._disk.traits.queues, (wanted & 0xFFFF) + 1, (wanted >> 16) + 1)
        return 0, (self._granted - 1) << 16 | (self._granted - 1)

    def _create(self, opcode: int, number: int, entries: int, flags: int, prp1: int) -> int:
        disk = self._disk
        there = disk.cqs if opcode == CREATE_CQ else disk.sqs
        if not 1 <= number <= self._granted or number in there:
            return INVALID_QUEUE_ID
        if not 2 <= entries <= disk.traits.entries:
            return INVALID_QUEUE_SIZE
        if not flags & _CONTIGUOUS:
            return INVALID_FIELD
        if prp1 % PAGE_BYTES:
            return PRP_OFFSET_INVALID
        if opcode == CREATE_CQ:
            if flags & _INTERRUPTS:
                disk.wrongs.append("interrupts that nobody serves")
            disk.cqs[number] = CompletionQueue(number, disk.bus, prp1, entries, disk.doorbell(number, 1))
        else:
            answers = disk.cqs.get(flags >> 16)
            if answers is None or answers.number == 0:
                return COMPLETION_QUEUE_INVALID
            disk.sqs[number] = SubmissionQueue(number, disk.bus, prp1, entries, disk.doorbell(number, 0), answers)
        return 0

    def _delete(self, opcode: int, number: int) -> int:
        there = self._disk.sqs if opcode == DELETE_SQ else self._disk.cqs
        if number == 0 or number not in there:
            return INVALID_QUEUE_ID
        if opcode == DELETE_CQ and any(queue.answers.number == number for queue in self._disk.sqs.values()):
            return INVALID_QUEUE_DELETION
        del there[number]
        return 0

    @property
    def _bus(self) -> Bus:
        return self._disk.bus
