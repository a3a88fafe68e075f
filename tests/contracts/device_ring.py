"""The contract of a ring on a GPU, in addition to that of every ring: a twin, and waiting for computations."""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import Any

import numpy as np
from tests.contracts.ring import ReaderCode, RingContract

from penstock.contracts import ByteArray, Gpu, Ring, WritableRing
from penstock.memory.gpu_ring import DeviceRing, WritableDeviceRing


class DeviceRingContract(RingContract):
    """Tests of a GPU's rings; a subclass named ``Test...`` runs them.

    Attributes:
        gpu_code: Python for another process: an import, and an expression that makes such a GPU.
    """

    gpu_code: tuple[str, str]

    @abstractmethod
    def gpu(self) -> Gpu:
        """Make the GPU anew, as another process would."""

    @abstractmethod
    def on_device(self, values: ByteArray) -> Any:
        """Make a tensor of these bytes on the GPU; it may still be on its way."""

    def setup_method(self) -> None:
        self.feeders, self.trainers = self.gpu(), self.gpu()

    def create(self, capacity_bytes: int) -> WritableDeviceRing:
        return WritableDeviceRing(self.feeders, capacity_bytes)

    def attach(self, ring: WritableRing) -> Ring:
        reader = DeviceRing.attach(self.trainers, fd := ring.open_for_readers(), ring.capacity_bytes)
        os.close(fd)
        return reader

    def attach_elsewhere(self, ring: WritableRing) -> ReaderCode:
        fd = ring.open_for_readers()
        imported, made = self.gpu_code
        return ReaderCode(
            f"from penstock.memory.gpu_ring import DeviceRing\n{imported}\n"
            f"reader = DeviceRing.attach({made}, {fd}, {ring.capacity_bytes})",
            (fd,),
        )

    def collect(self, reader: Ring) -> None:
        self.trainers.collect()

    def test_what_is_written_from_the_host_or_the_device_is_in_the_ring_and_in_its_twin(
        self, ring: WritableDeviceRing
    ) -> None:
        values = np.arange(128, dtype=np.uint8)
        ring.write(0, values[:64])
        ring.write(64, self.on_device(values[64:]))
        ring.flush()
        assert ring.twin.readable(0, 128).tolist() == values.tolist()
        assert self.seen(ring.readable(0, 128)).tolist() == values.tolist()

    def test_what_others_write_into_the_twin_is_in_the_ring_once_it_is_told(
        self, ring: WritableDeviceRing, reader: Ring
    ) -> None:
        ring.twin.writable(64, 100)[:] = 5
        ring.written_in_place(64, 100)
        ring.flush()
        assert self.seen(reader.readable(64, 100)).tolist() == [5] * 100

    def test_bytes_of_a_ring_come_back_to_the_host_after_a_mark(
        self, ring: WritableDeviceRing, reader: Ring
    ) -> None:
        ring.write(0, np.arange(64, dtype=np.uint8))
        ring.flush()
        there = np.zeros(64, np.uint8)
        self.trainers.copy_out(there, reader.readable(0, 64))
        self.trainers.synchronize()
        assert there.tolist() == list(range(64))

    def test_what_was_handed_over_and_computed_with_can_be_taken_over(self) -> None:
        gpu, there = self.feeders, np.zeros(64, np.uint8)
        memory = gpu.empty(64)
        gpu.copy(memory, np.arange(64, dtype=np.uint8), pinned=False)
        gpu.wait_for_copies([memory], gpu.mark())
        doubled = memory * 2
        assert gpu.holds(doubled)
        gpu.wait_for_compute([doubled])
        gpu.copy_out(there, doubled)
        gpu.synchronize()
        assert there.tolist() == list(range(0, 128, 2))
