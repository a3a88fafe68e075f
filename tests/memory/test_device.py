"""A ring on a GPU keeps the contract of rings; the GPU here is a fake."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.contracts import Ring
from penstock.errors import DeviceUnavailable
from penstock.memory.device import DeviceRing, FeedersDeviceRing
from penstock.testing.gpu import POISON, FakeGpu
from penstock.testing.ring import PAGE_BYTES, ReaderCode, RingContract


class TestDeviceRing(RingContract):
    def setup_method(self) -> None:
        self.feeders, self.trainers = FakeGpu(1), FakeGpu(2)

    def create(self, capacity_bytes: int) -> Ring:
        return FeedersDeviceRing(self.feeders, capacity_bytes, PAGE_BYTES)

    def attach(self, ring: Ring) -> Ring:
        return DeviceRing.attach(self.trainers, ring.open_for_readers(), ring.capacity_bytes)

    def attach_elsewhere(self, ring: Ring) -> ReaderCode:
        fd = ring.open_for_readers()
        return ReaderCode(
            "from penstock.memory.device import DeviceRing\nfrom penstock.testing.gpu import FakeGpu\n"
            f"reader = DeviceRing.attach(FakeGpu(), {fd}, {ring.capacity_bytes})",
            (fd,),
        )

    def collect(self, reader: Ring) -> None:
        self.trainers.collect()


def test_what_is_written_is_there_only_after_it_has_settled():
    gpu = FakeGpu(0)
    ring = FeedersDeviceRing(gpu, PAGE_BYTES, PAGE_BYTES)
    ring.write(0, np.arange(64, dtype=np.uint8))
    assert ring.readable(0, 64).tolist() == [POISON] * 64
    ring.settle()
    assert ring.readable(0, 64).tolist() == list(range(64))
    ring.close()


def test_what_lies_in_the_staging_memory_is_copied_by_the_gpu_and_once():
    gpu = FakeGpu(0)
    ring = FeedersDeviceRing(gpu, PAGE_BYTES, PAGE_BYTES)
    staged = ring.staging.ring.writable(0, 100)
    staged[:] = 5
    assert ring.staging.holds(staged)
    assert not ring.staging.holds(np.zeros(100, np.uint8))
    ring.write(0, staged)
    staged[:] = 6  # too early: the copy has not been carried out
    ring.settle()
    assert ring.readable(0, 100).tolist() == [6] * 100
    assert gpu.copied_bytes == 100
    ring.close()
    assert not gpu.pinned


def test_a_ring_that_the_gpu_has_no_room_for_is_an_error_with_both_numbers():
    with pytest.raises(DeviceUnavailable, match="8,192 bytes; 4,096 are free"):
        FeedersDeviceRing(FakeGpu(memory_bytes=4096), 8192, PAGE_BYTES)
