"""The contract of every GPU, real or fake: copy in order, pin, share and lend; and of a ring on one."""

from __future__ import annotations

import gc
import os
from abc import ABC, abstractmethod
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from tests.contracts.ring import PAGE_BYTES, ReaderCode, RingContract

from penstock.contracts import ByteArray, Gpu, Ring, WritableRing
from penstock.errors import DeviceUnavailable
from penstock.memory.gpu_ring import DeviceRing, WritableDeviceRing
from penstock.memory.host_ring import HostRing, WritableHostRing

_LARGE_BYTES = (65 << 20) + 7  # more than a buffer for unpinned memory holds


class GpuContract(ABC):
    """Tests of a GPU; a subclass named ``Test...`` runs them."""

    @abstractmethod
    def gpu(self) -> Gpu:
        """Make the GPU anew, as another process would."""

    @abstractmethod
    def seen(self, memory: Any) -> ByteArray:
        """Return what lies in memory of the GPU now, as a NumPy array."""

    def computed(self, memory: Any) -> None:  # noqa: B027
        """Finish everything that was launched on memory."""

    def brought_back(self, gpu: Gpu, memory: Any) -> ByteArray:
        there = np.zeros(memory.nbytes, np.uint8)
        gpu.wait_for_compute([memory])
        with gpu.beside():
            gpu.copy_out(there, memory)
        gpu.synchronize()
        return there

    @pytest.mark.parametrize("nbytes", [1, 4097, _LARGE_BYTES])
    def test_bytes_of_memory_that_is_not_pinned_are_taken_before_the_call_returns(self, nbytes: int) -> None:
        gpu, data = self.gpu(), np.arange(nbytes, dtype=np.uint8)
        wanted = data.copy()
        here = gpu.empty(nbytes)
        gpu.copy(here, data, pinned=False)
        with gpu.beside():
            to = gpu.empty(nbytes)
            gpu.copy(to, data, pinned=False)
        data[:] = 0
        gpu.wait_for_copies([to], gpu.mark())
        assert np.array_equal(self.seen(to), wanted)
        assert np.array_equal(self.seen(here), wanted)

    def test_pinned_memory_is_copied_from_and_to(self) -> None:
        gpu, data = self.gpu(), np.arange(10_000, dtype=np.uint8)
        gpu.pin(data)
        with gpu.beside():
            to = gpu.empty(data.nbytes)
            gpu.copy(to, data, pinned=True)
        gpu.wait_for_copies([to], gpu.mark())
        assert np.array_equal(self.seen(to), data)
        doubled = to * 2
        gpu.wait_for_compute([doubled])
        there = data.copy()
        with gpu.beside():
            gpu.copy_out(data, doubled)
        gpu.synchronize()
        assert np.array_equal(data, there * 2)
        gpu.unpin(data)

    def test_a_mark_passes_once_what_was_begun_before_it_is_done(self) -> None:
        gpu, data = self.gpu(), np.full(1 << 20, 5, np.uint8)
        with gpu.beside():
            to = [gpu.empty(data.nbytes) for _ in range(4)]
            for each in to:
                gpu.copy(each, data, pinned=False)
        mark = gpu.mark()
        mark.wait()
        assert mark.passed()
        gpu.wait_for_copies(to, mark)
        assert all((self.seen(each) == 5).all() for each in to)

    def test_a_mark_that_has_passed_stays_so_whatever_is_begun_after_it(self) -> None:
        gpu, data = self.gpu(), np.full(1 << 20, 5, np.uint8)
        first = gpu.here()
        first.wait()
        to = gpu.empty(data.nbytes)
        gpu.copy(to, data, pinned=False)
        second = gpu.here()
        assert first.passed()
        second.wait()
        assert second.passed()
        assert first.passed()

    @pytest.mark.parametrize("row_bytes", [1, 3, 8, 40])
    @pytest.mark.parametrize("beside", [False, True])
    def test_rows_are_gathered_from_rings_by_their_numbers(self, beside: bool, row_bytes: int) -> None:
        numbers = np.random.default_rng(row_bytes).permutation(100)[:40]
        numbers[10:20] = np.arange(50, 60)
        data = np.arange(100 * row_bytes, dtype=np.uint8)
        one, memory, gpu, mapped = self.shared()
        one.copy(memory[: data.nbytes], data, pinned=False)
        one.here().wait()
        gpu.pin(data)
        with gpu.beside() if beside else nullcontext():
            to = [gpu.empty(40 * row_bytes) for _ in range(3)]
            gpu.gather(to[0], mapped[: data.nbytes], numbers, row_bytes, pinned=False)
            gpu.gather(to[1], data, numbers, row_bytes, pinned=True)
            gpu.gather(to[2], data.copy(), numbers, row_bytes, pinned=False)
        gpu.wait_for_copies(to, gpu.mark() if beside else gpu.here())
        wanted = data.reshape(100, row_bytes)[numbers].ravel()
        assert all(np.array_equal(self.seen(each), wanted) for each in to)
        self.computed(to[0])
        gpu.unpin(data)

    def test_a_trainers_ring_is_pinned_and_read_as_the_feeder_writes_it(self) -> None:
        gpu, ring = self.gpu(), WritableHostRing.create(4 * PAGE_BYTES)
        reader = HostRing.attach_pinned(fd := ring.open_for_readers(), ring.capacity_bytes, gpu)
        os.close(fd)
        with gpu.beside():
            to = gpu.empty(ring.capacity_bytes)
        for value in (3, 4):
            ring.writable(0, ring.capacity_bytes)[:] = value
            with gpu.beside():
                gpu.copy(to, reader.readable(0, ring.capacity_bytes), pinned=True)
            gpu.wait_for_copies([to], gpu.mark())
            assert (self.seen(to) == value).all()
            self.computed(to)
        gpu.unpin(reader.readable(0, ring.capacity_bytes))
        reader.close()
        ring.close()

    def shared(self) -> tuple[Gpu, Any, Gpu, Any]:
        """A GPU and its shared memory; another one, and that memory there."""
        one, other = self.gpu(), self.gpu()
        memory, fd = one.share(PAGE_BYTES)
        mapped = other.open_shared(fd, PAGE_BYTES)
        os.close(fd)
        return one, memory, other, mapped

    def test_memory_that_is_shared_is_what_others_see(self) -> None:
        one, memory, other, mapped = self.shared()
        data = np.random.default_rng(0).integers(0, 256, PAGE_BYTES, np.uint8)
        with one.beside():
            one.copy(memory, data, pinned=False)
        one.synchronize()
        assert np.array_equal(self.seen(mapped), data)
        here = other.empty(100)
        other.copy_within(here, mapped[50:150])
        assert np.array_equal(self.seen(here), data[50:150])
        with other.beside():
            there = other.empty(100)
            other.copy_within(there, mapped[50:150])
        other.wait_for_copies([there], other.mark())
        assert np.array_equal(self.seen(there), data[50:150])

    def test_more_than_there_is_cannot_be_shared_and_the_remedy_is_named(self) -> None:
        with pytest.raises(DeviceUnavailable, match=r"4,398,046,511,104 bytes.*are free.*memory=\"host\""):
            self.gpu().share(4 << 40)

    def test_a_loan_ends_when_it_is_collected_after_its_last_view_has_died(self) -> None:
        _one, _, gpu, mapped = self.shared()
        ended: list[int] = []
        lent = gpu.lend(mapped, 64, 128, lambda: ended.append(1))
        part = lent[10:20]
        del lent
        assert gpu.collect()
        assert not ended
        self.computed(part)
        del part
        gc.collect()
        assert not ended, "only where somebody collects"
        assert gpu.collect(wait=True)
        assert ended == [1]

    def test_after_all_were_collected_a_loan_ends_by_itself(self) -> None:
        _one, _, gpu, mapped = self.shared()
        ended: list[int] = []
        lent = [gpu.lend(mapped, 0, 64, lambda i=i: ended.append(i)) for i in range(2)]
        lent.pop()
        gpu.collect_all()
        assert ended == [1]
        lent.pop()
        gc.collect()
        assert ended == [1, 0]

    def test_a_loan_is_read_right_after_the_mapping_was_given_up(self) -> None:
        one, memory, gpu, mapped = self.shared()
        with one.beside():
            one.copy(memory, np.full(PAGE_BYTES, 9, np.uint8), pinned=False)
        one.synchronize()
        lent = gpu.lend(mapped, 64, 128, lambda: None)
        del mapped, memory
        gc.collect()
        assert (self.seen(lent) == 9).all()

    def test_a_tensor_of_this_gpu_is_known(self) -> None:
        gpu = self.gpu()
        with gpu.beside():
            memory = gpu.empty(8)
            gpu.copy(memory, np.arange(8, dtype=np.uint8), pinned=False)
        gpu.wait_for_copies([memory], gpu.mark())
        assert gpu.holds(memory)
        assert self.brought_back(gpu, memory).tolist() == list(range(8))


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

    def test_what_goes_to_the_device_in_pieces_arrives_whole(self) -> None:
        values = np.random.default_rng(0).integers(0, 256, (9 << 20) + 1, "u1")
        ring = self.create(12 << 20)
        ring.write(64, values)
        ring.flush()
        assert np.array_equal(ring.twin.readable(64, values.nbytes), values)
        assert np.array_equal(self.seen(ring.readable(64, values.nbytes)), values)
        ring.close()

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
        with self.trainers.beside():
            self.trainers.copy_out(there, reader.readable(0, 64))
        self.trainers.synchronize()
        assert there.tolist() == list(range(64))

    def test_what_was_handed_over_and_computed_with_can_be_taken_over(self) -> None:
        gpu, there = self.feeders, np.zeros(64, np.uint8)
        with gpu.beside():
            memory = gpu.empty(64)
            gpu.copy(memory, np.arange(64, dtype=np.uint8), pinned=False)
        gpu.wait_for_copies([memory], gpu.mark())
        doubled = memory * 2
        assert gpu.holds(doubled)
        gpu.wait_for_compute([doubled])
        with gpu.beside():
            gpu.copy_out(there, doubled)
        gpu.synchronize()
        assert there.tolist() == list(range(0, 128, 2))
