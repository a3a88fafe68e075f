"""Readers on a fake disk, and what must hold when they are closed."""

from __future__ import annotations

import threading
from typing import Any

from tests.fakes.nvme_disk import FakeDisk, FakeModule

from penstock.contracts import ByteArray
from penstock.io.nvme import queue_memory as layout
from penstock.io.nvme.controller import DiskController
from penstock.io.nvme.queue import GpuQueue, queue_into
from penstock.io.reader import QueueReader

DISK = "/dev/libnvm0"
BAD_BLOCK = 0x4000 | layout.UNRECOVERED_READ_ERROR  # and there is no use in trying again


def queue_on(
    disk: FakeDisk,
    memory: ByteArray,
    *,
    depth: int = 16,
    threads: int = 3,
    patience_s: float = 30.0,
    refuses_after: int | None = None,
) -> GpuQueue:
    module = FakeModule(disk, DISK, refuses_after)
    controller = DiskController(module, 1, depth=depth, queues=threads, patience_s=patience_s)
    return queue_into(memory, controller, threads, None)


def reader_on(disk: FakeDisk, memory: ByteArray, **options: Any) -> QueueReader:
    queue = queue_on(disk, memory, **options)
    return QueueReader(queue, memory, queue.new_buffer)


def settled(disk: FakeDisk) -> None:
    """What must hold after a reader is closed, however it came to that."""
    assert not disk.wrongs
    assert not disk.enabled
    assert disk.bus.count == 0
    assert not disk.taken
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("penstock-")]
