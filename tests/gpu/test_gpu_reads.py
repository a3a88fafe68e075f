"""On a real GPU: its threads submit reads, the CPU serves them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.io.reading import read_at, stored

from penstock.contracts import ByteArray, Reader
from penstock.io.nvme.emulated import EmulatedController
from penstock.io.nvme.queue import GpuQueue, queue_memory
from penstock.io.nvme.threads import DeviceThreads
from penstock.io.open import open_reader
from penstock.io.reader import QueueReader
from penstock.io.uring import UringQueue
from penstock.memory.cuda import CudaGpu
from penstock.testing.faulty_queue import FaultyQueue
from penstock.testing.reader import MEMORY_BYTES, ReaderContract, new_memory

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


@pytest.fixture(autouse=True)
def context() -> None:
    """The driver opens files of its own when it begins."""
    torch.zeros(1, device="cuda")


class TestGpu(ReaderContract):
    def make(self, memory: ByteArray, depth: int) -> Reader:
        return open_reader("gpu", memory, depth=depth, threads=512, gpu=CudaGpu("cuda"))


@pytest.mark.parametrize("threads", [32, 512])
def test_every_byte_is_right_and_every_error_is_told(threads: int, tmp_path: Path) -> None:
    path, content = stored(tmp_path, MEMORY_BYTES, threads)
    memory = new_memory()
    backend = FaultyQueue(UringQueue(256, memory), threads, errors=0.01, shorts=0.1, repeats=0.05)
    between = queue_memory(backend, queues=4, entries=16)
    queue = GpuQueue(EmulatedController(between, backend), DeviceThreads(between, threads, 0))
    reader = QueueReader(queue, memory)
    at = list(range(0, MEMORY_BYTES, 2048))
    failures = 0
    for _ in range(50):
        memory[:] = 0
        done = read_at(reader, path, at, 2048)
        failures += len(done.failures)
        for tag in set(range(len(at))) - set(done.failures):
            assert memory[at[tag] : at[tag] + 2048].tobytes() == content[at[tag] : at[tag] + 2048]
        torch.cuda.synchronize()  # no kernel goes on for ever
    reader.close()
    assert failures == len(backend.failed) > 0
