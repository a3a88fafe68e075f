"""A ring on a GPU keeps the contract of rings; the GPU here is a fake."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.contracts.device_ring import DeviceRingContract
from tests.contracts.ring import PAGE_BYTES
from tests.fakes.gpu import POISON, FakeGpu

from penstock.contracts import ByteArray, Gpu
from penstock.errors import DeviceUnavailable
from penstock.memory.gpu_ring import WritableDeviceRing


class TestDeviceRing(DeviceRingContract):
    gpu_code = "from tests.fakes.gpu import FakeGpu", "FakeGpu()"

    def gpu(self) -> Gpu:
        return FakeGpu(1)

    def on_device(self, values: ByteArray) -> Any:
        return torch.from_numpy(values)


def test_what_is_written_is_there_only_after_it_was_flushed():
    ring = WritableDeviceRing(FakeGpu(0), PAGE_BYTES)
    ring.write(0, np.arange(64, dtype=np.uint8))
    ring.write(64, torch.arange(64, 128, dtype=torch.uint8))
    assert ring.readable(0, 128).tolist() == [POISON] * 128
    assert ring.twin.readable(64, 64).tolist() == [POISON] * 64
    ring.flush()
    assert ring.readable(0, 128).tolist() == list(range(128))
    ring.close()


def test_what_others_write_into_the_twin_is_copied_by_the_gpu_and_once():
    gpu = FakeGpu(0)
    ring = WritableDeviceRing(gpu, PAGE_BYTES)
    there = ring.twin.writable(64, 100)
    there[:] = 5
    ring.written_in_place(64, 100)
    there[:] = 6  # too early: the copy has not been carried out
    ring.flush()
    assert ring.readable(64, 100).tolist() == [6] * 100
    assert gpu.copied_bytes == 100
    ring.close()
    assert not gpu.pinned


def test_a_ring_that_the_gpu_has_no_room_for_is_an_error_with_both_numbers():
    with pytest.raises(DeviceUnavailable, match="8,192 bytes; 4,096 are free"):
        WritableDeviceRing(FakeGpu(memory_bytes=4096), 8192)
