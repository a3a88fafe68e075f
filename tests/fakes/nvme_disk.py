"""A solid-state disk that is a thread, under a kernel module that is none."""

from __future__ import annotations

import mmap
import random
import threading
import time
from collections.abc import Mapping
from types import TracebackType

import numpy as np
from tests.fakes.nvme_admin import AdminCommands, Traits
from tests.fakes.nvme_queues import Bus, BusFault, CompletionQueue, DoorbellInvalid, SubmissionQueue, pages_of

from penstock.contracts import ByteArray
from penstock.errors import ReaderUnavailable
from penstock.io.nvme import admin as at
from penstock.io.nvme import queue_memory as layout
from penstock.io.nvme.queue_memory import Array

_REGISTER_BYTES = 1 << 16
_NAP_S = 50e-6


class FakeDisk:
    """Does what the specification asks of a disk, and notes what its user does wrong.

    It knows memory only by bus addresses, which its module has given out at
    random. Completions come in any order.

    Args:
        namespaces: By id, the bytes of each: whole blocks. They may be replaced.
        traits: What kind of disk it is.
        bad_blocks: By namespace and LBA, the status of a read that touches it.
        seed: Of all that is random.

    Attributes:
        starts: Whether it ever becomes ready.
        stops: Whether it ceases to be, when it is told to.
    """

    def __init__(
        self,
        namespaces: Mapping[int, bytes],
        traits: Traits | None = None,
        bad_blocks: Mapping[tuple[int, int], int] | None = None,
        seed: int = 0,
    ) -> None:
        self.namespaces = dict(namespaces)
        self.traits = traits or Traits()
        self.bus = Bus(seed)
        self.fatal_after: int | None = None
        """So many reads are served before it fails for good (CSTS.CFS); None for never."""
        self.silent_after: int | None = None  # the same, but it just completes nothing any more
        self.starts = self.stops = True
        self.wrongs: list[str] = []  # what nobody may do to a disk
        self.admin: list[int] = []  # opcodes of the admin commands that it was given
        self.reads = 0  # how many it was given
        self.taken = False
        self.registers = np.frombuffer(mmap.mmap(-1, _REGISTER_BYTES), np.uint32)
        self.registers[at.CAP], self.registers[at.CAP + 1] = self.traits.capabilities
        self.registers[at.VS] = 1 << 16 | 4 << 8
        self._bad_blocks = bad_blocks or {}
        self._random = random.Random(seed)
        self._forget()
        self._enabled = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fake-disk", daemon=True)

    def __enter__(self) -> FakeDisk:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()

    @property
    def enabled(self) -> bool:
        """Whether it may write into memory."""
        return bool(int(self.registers[at.CC]) & at.ENABLE or int(self.registers[at.CSTS]) & at.READY)

    def leave_the_bus(self) -> None:
        """As if it had been pulled out."""
        self._stopping.set()
        self._thread.join()
        self.registers[:] = at.OFF_THE_BUS

    def doorbell(self, number: int, which: int) -> Array:
        """The register with the tail of a submission queue (which = 0), or the head of a completion queue (1)."""
        first = at.DOORBELLS + (2 * number + which) * self.traits.doorbell_stride
        return self.registers[first : first + 1]

    def _forget(self) -> None:
        self.cqs: dict[int, CompletionQueue] = {}
        self.sqs: dict[int, SubmissionQueue] = {}
        self._commands = AdminCommands(self)
        self._under_way: list[tuple[SubmissionQueue, Array]] = []
        self._ready_at_s: float | None = None

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                moved = self._follow_configuration()
                if int(self.registers[at.CSTS]) == at.READY:
                    moved |= self._serve()
            except (BusFault, DoorbellInvalid) as wrong:
                self.wrongs.append(f"{type(wrong).__name__}: {wrong}")
                self.registers[at.CSTS] |= at.FATAL
                moved = False
            if not moved:
                time.sleep(_NAP_S)

    def _follow_configuration(self) -> bool:
        enabled = bool(int(self.registers[at.CC]) & at.ENABLE)
        if enabled and not self._enabled:
            self._enabled = True
            self._ready_at_s = time.monotonic() + self.traits.ready_s
            return True
        if not enabled and self._enabled and self.stops:
            self._enabled = False
            self._forget()
            self.registers[at.DOORBELLS :] = 0
            self.registers[at.CSTS] = 0
            return True
        if self._ready_at_s is not None and time.monotonic() >= self._ready_at_s and self.starts:
            self._ready_at_s = None
            self._start()
            return True
        return False

    def _start(self) -> None:
        if int(self.registers[at.CC]) != at.CONFIGURATION | at.ENABLE:
            self.wrongs.append(f"CC is 0x{int(self.registers[at.CC]):x}")
        sizes = int(self.registers[at.AQA])
        sq, cq = (int(self.registers[i]) | int(self.registers[i + 1]) << 32 for i in (at.ASQ, at.ACQ))
        if not sizes & 0xFFF or not sizes >> 16 & 0xFFF or sq % layout.PAGE_BYTES or cq % layout.PAGE_BYTES:
            raise BusFault(f"an admin queue at 0x{sq:x} and 0x{cq:x}, sizes 0x{sizes:x}")
        self.cqs[0] = CompletionQueue(0, self.bus, cq, (sizes >> 16 & 0xFFF) + 1, self.doorbell(0, 1))
        self.sqs[0] = SubmissionQueue(0, self.bus, sq, (sizes & 0xFFF) + 1, self.doorbell(0, 0), self.cqs[0])
        self.registers[at.CSTS] = at.READY

    def _serve(self) -> bool:
        moved = False
        for queue in list(self.sqs.values()):
            while (command := queue.fetch()) is not None:
                moved = True
                if queue.number == 0:
                    self.admin.append(int(command["opcode"]))
                    queue.answers.answer(queue, int(command["id"]), *self._commands.carry_out(command))
                else:
                    self._under_way.append((queue, command))
        if self._under_way:
            moved = True
            self._random.shuffle(self._under_way)
            for _ in range(self._random.randint(1, len(self._under_way))):
                queue, command = self._under_way.pop()
                self.reads += 1
                if self.fatal_after is not None and self.reads > self.fatal_after:
                    self.registers[at.CSTS] |= at.FATAL
                    return True
                if self.silent_after is None or self.reads <= self.silent_after:
                    queue.answers.answer(queue, int(command["id"]), self._read(command))
        for queue in self.cqs.values():
            moved |= queue.post()
        return moved

    def _read(self, command: Array) -> int:
        """Carry out a command of the NVM command set; gives its status."""
        block = self.traits.block_bytes
        lba, count, nsid = int(command["lba"]), int(command["last_block"]) + 1, int(command["nsid"])
        if command["opcode"] != layout.READ:
            self.wrongs.append(f"opcode 0x{int(command['opcode']):02x} on a queue for reads")
            return layout.INVALID_OPCODE
        if command["flags"] or count * block > self.traits.max_read_bytes:
            return layout.INVALID_FIELD
        if nsid not in self.namespaces:
            return layout.INVALID_NAMESPACE
        content = self.namespaces[nsid]
        if (lba + count) * block > len(content):
            return layout.LBA_OUT_OF_RANGE
        for i in range(lba, lba + count):
            if status := self._bad_blocks.get((nsid, i)):
                return status
        offset = lba * block
        try:
            for bus, nbytes in pages_of(self.bus, int(command["prp1"]), int(command["prp2"]), count * block):
                self.bus.piece(bus, nbytes)[:] = np.frombuffer(content, np.uint8, nbytes, offset)
                offset += nbytes
        except ValueError:
            return layout.PRP_OFFSET_INVALID
        return layout.SUCCESS


class FakeModule:
    """What ``LibnvmModule`` is for a disk of the kernel's; it maps so many bytes, and refuses more."""

    def __init__(self, disk: FakeDisk, path: str = "/dev/libnvm0", refuses_after: int | None = None) -> None:
        assert not disk.taken, "one reader at a time"
        disk.taken = True
        self.path = path  # under which the disk goes
        self._disk = disk
        self._room = refuses_after
        self._tables: list[Array] = []

    def registers(self, nbytes: int) -> Array:
        return self._disk.registers[: -(-nbytes // layout.PAGE_BYTES) * layout.PAGE_BYTES // 4]

    def map_host(self, memory: ByteArray) -> Array:
        assert not (memory.ctypes.data | memory.nbytes) % layout.PAGE_BYTES, "whole pages"
        if self._room is not None and (room := self._room - memory.nbytes) < 0:
            raise ReaderUnavailable(f"{self.path}: no room for {-room} bytes")
        if self._room is not None:
            self._room -= memory.nbytes
        self._tables.append(self._disk.bus.map(memory))
        return self._tables[-1]

    def close(self, *, unmap: bool = True) -> None:
        assert self._disk.taken, "closed once"
        self._disk.taken = False
        if unmap:
            if self._disk.enabled and int(self._disk.registers[at.CSTS]) != at.OFF_THE_BUS:
                self._disk.wrongs.append("memory is given back, and the disk may still write there")
            for table in self._tables:
                self._disk.bus.unmap(table)
