"""Each end of the NVMe queues alone: what a disk must answer, and what a submitting thread may do."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.forked import eventually

from penstock.io.nvme import queue_memory as layout
from penstock.io.nvme.emulated import EmulatedController
from penstock.io.nvme.queue_memory import COMMAND, COMPLETION, PAIR, PROGRESS, REQUEST, WORK, QueueMemory
from penstock.io.nvme.threads import library
from penstock.io.queue import Queue, ThreadQueue
from penstock.testing.reader import FILE_BYTES, new_memory


class Disk:
    """A controller whose queues a test fills and empties by hand."""

    def __init__(self, backend: Queue, entries: int = 8, queues: int = 2) -> None:
        self.memory = QueueMemory(queues, entries, backend.depth, 512)
        self.controller = EmulatedController(self.memory, backend)
        self.controller.busy.set()
        self.tail = [0] * queues
        self.head = [0] * queues

    def command(self, queue: int, **fields: Any) -> None:
        """Write a command and ring the doorbell."""
        entry = np.zeros((), COMMAND)
        for name, value in fields.items():
            entry[name] = value
        self.memory.sq[queue, self.tail[queue]] = entry
        self.tail[queue] = (self.tail[queue] + 1) % self.memory.entries
        self.memory.doorbells[queue + 1, 0] = self.tail[queue]

    def posted(self, queue: int) -> list[tuple[int, int, int]]:
        """Command, status and submission head of each completion that is there and was not acknowledged."""
        found: list[tuple[int, int, int]] = []
        for i in range(self.memory.entries):
            entry = self.memory.cq[queue, (self.head[queue] + i) % self.memory.entries]
            if entry["status"] & 1 == ((self.head[queue] + i) // self.memory.entries) & 1:
                break
            assert entry["sq_id"] == queue + 1
            found.append((int(entry["id"]), int(entry["status"]) >> 1, int(entry["sq_head"])))
        return found

    def acknowledge(self, queue: int, count: int) -> None:
        self.head[queue] += count
        self.memory.doorbells[queue + 1, 1] = self.head[queue] % self.memory.entries


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    backend = ThreadQueue(16, 2, direct=False)
    disk = Disk(backend)
    (tmp_path / "file").write_bytes(bytes(FILE_BYTES))
    assert disk.controller.open(str(tmp_path / "file")).file == 1
    yield disk
    disk.controller.close()


BLOCKS = -(-FILE_BYTES // 512)


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        ({}, layout.SUCCESS),
        ({"opcode": 0x01}, layout.INVALID_OPCODE),
        ({"opcode": 0x99}, layout.INVALID_OPCODE),
        ({"flags": 0x40}, layout.INVALID_FIELD),
        ({"last_block": 4095}, layout.INVALID_FIELD),
        ({"nsid": 0}, layout.INVALID_NAMESPACE),
        ({"nsid": 2}, layout.INVALID_NAMESPACE),
        ({"nsid": 0xFFFFFFFF}, layout.INVALID_NAMESPACE),
        ({"lba": BLOCKS - 1}, layout.SUCCESS),
        ({"lba": BLOCKS}, layout.LBA_OUT_OF_RANGE),
        ({"lba": BLOCKS - 1, "last_block": 1}, layout.LBA_OUT_OF_RANGE),
        ({"lba": 2**64 - 1}, layout.LBA_OUT_OF_RANGE),
        ({"prp1": 0}, layout.PRP_OFFSET_INVALID),
        ({"last_block": 15}, layout.PRP_OFFSET_INVALID),
        ({"last_block": 63}, layout.PRP_OFFSET_INVALID),
        ({"last_block": 63, "prp2": 4096}, layout.PRP_OFFSET_INVALID),
        ({"prp1": 4096}, layout.DATA_TRANSFER_ERROR),
    ],
)
def test_a_command_is_answered_with_the_status_that_it_deserves(disk: Disk, wrong: dict[str, int], status: int):
    target = new_memory()
    right = {"opcode": layout.READ, "id": 77, "nsid": 1, "prp1": target.ctypes.data, "lba": 3}
    disk.command(1, **(right | wrong))
    assert eventually(lambda: disk.posted(1)) == [(77, status, 1)]
    assert not disk.posted(0)


def test_the_status_codes_are_those_of_the_specification() -> None:
    """NVM Express Base Specification 2.0, figures for generic command status and media errors."""
    types_and_codes = {divmod(code, 256) for code in layout.STATUSES}
    assert types_and_codes == {(0, 1), (0, 2), (0, 4), (0, 6), (0, 0xB), (0, 0x13), (0, 0x80), (2, 0x81)}


def test_completions_wait_for_room_and_none_is_written_over(disk: Disk) -> None:
    """The completion queue has 8 entries, of which 7 may be filled."""
    for i in range(7):
        disk.command(0, id=i)
    assert len(eventually(lambda: len(disk.posted(0)) == 7 and disk.posted(0))) == 7
    for i in range(7, 12):
        disk.command(0, id=i)
    disk.command(1, id=99)
    # The other queue goes on, and its answer tells that the controller has been round.
    eventually(lambda: disk.posted(1))
    assert [i for i, *_ in disk.posted(0)] == list(range(7))
    disk.acknowledge(0, 2)
    eventually(lambda: len(disk.posted(0)) == 7)
    assert [i for i, *_ in disk.posted(0)] == list(range(2, 9))
    disk.acknowledge(0, 7)
    eventually(lambda: len(disk.posted(0)) == 3)
    assert disk.posted(0) == [(i, layout.INVALID_OPCODE, 12 % 8) for i in range(9, 12)]


class Thread:
    """One submitting thread, run by the test for as long as it has to wait for nothing."""

    def __init__(self, entries: int) -> None:
        self.memory = QueueMemory(1, entries, 16, 512)
        self._private = np.zeros(self.memory.private_bytes + 64, np.uint8)
        skip = -self._private.ctypes.data % 64
        self._work = self.memory.work(self._private.ctypes.data + skip)
        after_pair = skip + 64 + PAIR.itemsize
        self.progress = self._private[skip : skip + PROGRESS.itemsize].view(PROGRESS)
        self.pair = self._private[skip + 64 : after_pair].view(PAIR)
        self.written = self._private[after_pair : after_pair + 8 * entries].view(np.uint64)
        self._serve = ctypes.CDLL(str(library())).penstock_serve

    def serve(self, request: int, done: int, sq_head: int) -> None:
        """A request to begin, and the completion of another that is there already, which lets the thread end."""
        place = int(self.progress["completed"][0])
        self.memory.order[place] = request
        self.memory.requests[request] = (request, 4096, 0, 1, 1)
        self.memory.cq[0, place] = (0, sq_head, 1, done, 1)
        self._serve(ctypes.c_void_p(self._work.ctypes.data), 0, ctypes.c_uint64(place + 1))

    @property
    def doorbells(self) -> list[int]:
        return self.memory.doorbells[1].tolist()


def test_the_doorbell_is_not_rung_past_a_command_that_another_thread_still_writes() -> None:
    thread = Thread(entries=8)
    thread.pair["reserved"] = 1
    thread.serve(5, done=9, sq_head=0)
    assert thread.written[:3].tolist() == [0, 2, 0]
    assert thread.memory.sq["id"][0, 1] == 5
    assert thread.doorbells == [0, 1]
    thread.written[0] = 1
    thread.serve(6, done=5, sq_head=2)
    assert thread.doorbells == [3, 2]
    assert (thread.memory.done[:2] & 0xFFFF).tolist() == [9, 5]


def test_what_another_thread_holds_is_left_to_it() -> None:
    thread = Thread(entries=8)
    thread.pair["publishing"] = 1
    thread.serve(5, done=9, sq_head=0)
    assert thread.doorbells == [0, 1]
    thread.pair["publishing"] = 0
    thread.serve(6, done=5, sq_head=2)
    assert thread.doorbells == [2, 2]


def test_a_full_queue_is_not_written_to_until_the_controller_tells_that_it_has_read() -> None:
    """Of 4 entries 3 may be filled; the fourth command waits for the head to move."""
    thread = Thread(entries=4)
    thread.pair["reserved"], thread.pair["published"] = 3, 3
    thread.written[:3] = [1, 2, 3]
    waiting = threading.Thread(target=thread.serve, kwargs={"request": 11, "done": 1, "sq_head": 0})
    waiting.start()
    # By now it has tried once.
    eventually(lambda: thread.progress["completed"][0] == 1)
    assert thread.pair["reserved"][0] == 3
    thread.memory.cq[0, 1] = (0, 1, 1, 2, 1)
    waiting.join()
    assert thread.memory.sq["id"][0].tolist() == [0, 0, 0, 11]
    assert (thread.pair["reserved"][0], thread.pair["consumed"][0], thread.doorbells) == (4, 1, [0, 2])


def test_the_layouts_are_those_of_the_header() -> None:
    compiled = list((ctypes.c_uint32 * 28).in_dll(ctypes.CDLL(str(library())), "penstock_layout"))

    def offsets(dtype: np.dtype[Any], names: str = "") -> list[int]:
        assert dtype.fields is not None
        return [dtype.itemsize, *(dtype.fields[name][1] for name in names.split())]

    assert compiled == [
        *offsets(COMMAND, "id nsid prp1 prp2 lba last_block"),
        *offsets(COMPLETION, "sq_head sq_id id status"),
        *offsets(REQUEST, "address pages nsid blocks"),
        *offsets(PAIR),
        *offsets(PROGRESS),
        *offsets(WORK, "sq list_pages gone requests queues block_shift cq_stride doorbell_stride"),
    ]


def test_the_layouts_are_those_of_the_specification() -> None:
    """NVM Express Base Specification 2.0: 64-byte commands, 16-byte completions, and where their fields lie."""
    assert (COMMAND.itemsize, COMPLETION.itemsize) == (64, 16)
    commands = {name: COMMAND.fields[name][1] for name in ("opcode", "flags", "id", "nsid", "prp1", "prp2", "lba")}
    assert commands == {"opcode": 0, "flags": 1, "id": 2, "nsid": 4, "prp1": 24, "prp2": 32, "lba": 40}
    assert COMMAND.fields["last_block"][1] == 48
    assert [COMPLETION.fields[name][1] for name in ("sq_head", "sq_id", "id", "status")] == [8, 10, 12, 14]
