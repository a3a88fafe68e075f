"""A fake GPU, CudaGpu on a CUDA that is none, and rings on them keep their contracts; which GPU a name means."""

from __future__ import annotations

import faulthandler
import gc
import mmap
import os
import resource
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.contracts.gpu import DeviceRingContract, GpuContract
from tests.contracts.ring import PAGE_BYTES
from tests.fakes.cuda import FakeCuda, installed
from tests.fakes.gpu import POISON, FakeGpu

from penstock.contracts import ByteArray, Gpu
from penstock.errors import DeviceUnavailable, PinningRefused
from penstock.memory import cuda
from penstock.memory.cuda import BUFFER_BYTES, CudaGpu, gpu_of, index_of, of_rank, uuid_of
from penstock.memory.gpu_ring import WritableDeviceRing
from penstock.memory.host_ring import HostRing, WritableHostRing


class TestFakeGpu(GpuContract):
    def gpu(self) -> Gpu:
        return FakeGpu(1)

    def seen(self, memory: Any) -> ByteArray:
        return memory.numpy()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return installed(monkeypatch, FakeCuda())


class TestCudaGpuOnAFakeCuda(GpuContract):
    @pytest.fixture(autouse=True)
    def _fake(self, fake: FakeCuda) -> Any:
        self.fake = fake
        yield
        gc.collect()
        assert fake.faults == []

    def gpu(self) -> Gpu:
        return CudaGpu("cuda")

    def seen(self, memory: Any) -> ByteArray:
        self.fake.computing.run()
        return np.asarray(memory)


def test_a_trainers_pages_are_writable_only_until_they_are_registered(fake):
    gpu, ring = CudaGpu("cuda"), WritableHostRing.create(PAGE_BYTES)
    reader = HostRing.attach_pinned(fd := ring.open_for_readers(), PAGE_BYTES, gpu)
    os.close(fd)
    address = reader.readable(0, 1).ctypes.data
    assert fake.registered == [(address, PAGE_BYTES, 0)]
    pid = os.fork()
    if not pid:
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        reader.readable(0, 1)[0] = 1
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1]), "it could write there"
    reader.close()
    ring.close()


@pytest.mark.parametrize("gpu", [FakeGpu(), "cuda"])
def test_pages_that_cannot_be_written_to_are_not_registered(gpu, fake):
    gpu = CudaGpu(gpu) if isinstance(gpu, str) else gpu
    ring = WritableHostRing.create(PAGE_BYTES)
    reader = HostRing.attach(fd := ring.open_for_readers(), PAGE_BYTES)
    os.close(fd)
    with pytest.raises(PinningRefused, match=r"(?i)invalid.(argument|value)"):
        gpu.pin(reader.readable(0, PAGE_BYTES))
    reader.close()
    ring.close()


def test_the_fake_registers_no_private_copy_of_a_file():
    ring = WritableHostRing.create(PAGE_BYTES)
    mapping = mmap.mmap(ring.fd, PAGE_BYTES, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(AssertionError, match="a copy for ever"):
        FakeGpu().pin(np.frombuffer(mapping, np.uint8))
    ring.close()


def lent_by_a_trainer(fake: FakeCuda) -> tuple[CudaGpu, Any, list[int]]:
    """A GPU, a view of a ring of which nothing else is left, and where it says that it has ended."""
    gpu = CudaGpu("cuda")
    fd = CudaGpu("cuda").share(PAGE_BYTES)[1]
    ended: list[int] = []
    lent = gpu.lend(gpu.open_shared(fd, PAGE_BYTES), 0, 64, lambda: ended.append(1))
    os.close(fd)
    gc.collect()
    assert len(fake.mapped) == 1
    return gpu, lent, ended


def test_a_ring_stays_mapped_under_a_kernel_that_outlives_the_last_view(fake):
    gpu, lent, ended = lent_by_a_trainer(fake)
    fake.launch()
    del lent
    assert fake.mapped
    gpu.collect()
    assert not ended, "the kernel still reads there"
    assert fake.mapped
    fake.computing.run()
    gpu.collect()
    assert (ended, fake.mapped, fake.faults) == ([1], {}, [])


def test_a_ring_that_nobody_refers_to_is_unmapped_after_what_runs(fake):
    gpu = CudaGpu("cuda")
    memory, fd = gpu.share(PAGE_BYTES)
    os.close(fd)
    fake.launch()
    del memory
    assert (fake.mapped, fake.faults) == ({}, [])


def test_while_a_graph_is_captured_nothing_is_recorded_waited_for_or_unmapped(fake):
    gpu, lent, ended = lent_by_a_trainer(fake)
    gpu.here().wait()  # an event that is there need not be made
    memory, fd = gpu.share(PAGE_BYTES)
    os.close(fd)
    fake.capturing = True
    del lent, memory
    gpu.collect()
    gpu.collect_all()
    assert (ended, len(fake.mapped), fake.faults) == ([], 2, [])
    fake.capturing = False
    gpu.collect()
    assert (ended, fake.mapped, fake.faults) == ([1], {}, [])


def test_a_graph_that_another_thread_captures_is_not_broken_by_asking_for_events(fake):
    gpu, mode = CudaGpu("cuda"), fake.mode
    fake.captured_elsewhere = True
    for event in (gpu.here(), gpu.mark()):
        event.passed()
        event.wait()
    gpu.synchronize()
    assert (fake.mode, fake.faults) == (mode, [])


def test_an_event_for_which_two_threads_wait_is_recorded_again_by_one(fake, monkeypatch):
    gpu = CudaGpu("cuda")
    point = gpu.here()
    event = point.event
    sleep = event.synchronize

    def sleeps_as_another_does() -> None:
        monkeypatch.setattr(event, "synchronize", sleep)
        point.wait()
        sleep()

    monkeypatch.setattr(event, "synchronize", sleeps_as_another_does)
    point.wait()
    assert point.passed() and len(gpu._events.passed) == 1


def test_what_lives_at_the_interpreters_exit_is_left_to_the_driver(fake):
    before = {id(info) for info in weakref.finalize._registry.values() if info.atexit}  # type: ignore[attr-defined]
    _, lent, _ = lent_by_a_trainer(fake)
    after = {id(info) for info in weakref.finalize._registry.values() if info.atexit}  # type: ignore[attr-defined]
    assert after <= before
    del lent


def test_a_forked_child_leaves_the_device_alone(fake):
    gpu, lent, ended = lent_by_a_trainer(fake)
    pid = os.fork()
    if not pid:
        del lent
        gc.collect()
        os._exit(bool(ended or not fake.mapped or gpu._loans))  # type: ignore[attr-defined]
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    del lent


def test_memory_that_torch_would_copy_is_refused(monkeypatch):
    fake = installed(monkeypatch, FakeCuda())
    _, fd = CudaGpu("cuda").share(PAGE_BYTES)
    fake.copies_foreign = True
    with pytest.raises(DeviceUnavailable, match="would read a copy of it on cuda:0, which nobody writes"):
        CudaGpu("cuda").open_shared(fd, PAGE_BYTES)
    os.close(fd)


def test_what_torchs_allocator_keeps_is_given_up_for_a_ring(monkeypatch):
    fake = installed(monkeypatch, FakeCuda(100 << 20, cached_bytes=90 << 20))
    _, fd = CudaGpu("cuda").share(50 << 20)
    os.close(fd)
    assert fake.cached_bytes == 0


def test_memory_that_is_not_pinned_passes_in_pieces_that_torch_does_not_round_up(fake):
    gpu = CudaGpu("cuda")
    data = np.arange(2 * BUFFER_BYTES + 5, dtype=np.uint8)
    to = gpu.empty(data.nbytes)
    gpu.copy(to, data, pinned=False)
    gpu.here().wait()
    assert np.array_equal(np.asarray(to), data)
    assert fake.largest_pinned_bytes == BUFFER_BYTES
    assert BUFFER_BYTES.bit_count() == 1


def test_long_rows_of_a_gpus_ring_are_copied_without_their_numbers(fake):
    gpu, data = CudaGpu("cuda"), np.arange(12 * 5000, dtype=np.uint64).astype(np.uint8)
    ring = WritableDeviceRing(CudaGpu("cuda"), 2 << 20)
    ring.write(0, data)
    ring.flush()
    for row_bytes, kernels in ((5000, 0), (50, 1)):
        fake.calls.clear()
        rows, to = np.array([7, 3, 4, 5, 1]), gpu.empty(5 * row_bytes)
        gpu.gather(to, ring.readable(0, 12 * row_bytes), rows, row_bytes, pinned=False)
        gpu.here().wait()
        assert np.array_equal(np.asarray(to), data[: 12 * row_bytes].reshape(12, -1)[rows].ravel())
        assert fake.calls["kernels"] == kernels
    ring.close()


@pytest.mark.parametrize("bindings", [(12, 6), (12, 9), (13, 5)])
def test_rows_of_pinned_memory_are_gathered_in_one_call_where_the_driver_has_it(monkeypatch, bindings):
    fake = installed(monkeypatch, FakeCuda(bindings=bindings))
    gpu, data, rows = CudaGpu("cuda"), np.arange(240, dtype=np.uint8), np.array([7, 3, 4, 5, 1])
    gpu.pin(data)
    for _ in range(2):
        with gpu.beside():
            to = gpu.empty(40)
            gpu.gather(to, data, rows, 8, pinned=True)
        gpu.synchronize()
        assert np.array_equal(np.asarray(to), data.reshape(-1, 8)[rows].ravel())
    here = gpu.empty(40)
    gpu.gather(here, data, rows, 8, pinned=True)  # in the default stream the driver refuses such a call
    gpu.here().wait()
    assert np.array_equal(np.asarray(here), data.reshape(-1, 8)[rows].ravel())
    assert fake.calls["batches of copies"] == (2 if bindings > (12, 8) else 0)
    gpu.unpin(data)


MAPS_AS_THE_FAKE_DOES = """
import ctypes
import numpy as np
from penstock.memory.host_ring import HostRing
class Gpu:  # without torch, which takes seconds to import
    uuid = ""
    def open_shared(self, fd, nbytes):  # only the pages are protected, as those of a tensor are
        self.kept = HostRing.attach(fd, nbytes).readable(0, nbytes)
        return np.frombuffer((ctypes.c_ubyte * nbytes).from_address(self.kept.ctypes.data), np.uint8)
"""


class TestDeviceRing(DeviceRingContract):
    gpu_code = MAPS_AS_THE_FAKE_DOES, "Gpu()"

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


def test_each_piece_of_a_block_is_on_its_way_before_the_next_is_copied_on_the_host(monkeypatch):
    ring, mib, told = WritableDeviceRing(FakeGpu(0), 12 << 20), 1 << 20, list[tuple[int, int, int]]()

    def tell(offset: int, nbytes: int) -> None:
        told.append((offset, nbytes, int(ring.twin.readable(offset + nbytes, 1)[0])))

    monkeypatch.setattr(ring, "written_in_place", tell)
    ring.write(64, np.ones(9 * mib, np.uint8))
    assert told == [(64, 4 * mib, 0), (64 + 4 * mib, 4 * mib, 0), (64 + 8 * mib, mib, 0)]
    ring.close()


def test_a_ring_that_the_gpu_has_no_room_for_is_an_error_with_both_numbers():
    with pytest.raises(DeviceUnavailable, match="8,192 bytes; 4,096 are free"):
        WritableDeviceRing(FakeGpu(memory_bytes=4096), 8192)


FIRST, SECOND = "6f1d2c3b-0000-1111-2222-333344445555", "a0b1c2d3-9999-8888-7777-666655554444"


def torch_that_sees(*devices: tuple[str, str], current: int = 0) -> Any:
    """What of torch tells devices apart, each of which is (name, UUID as torch gives it)."""
    properties = [SimpleNamespace(name=name, uuid=uuid) for name, uuid in devices]
    return SimpleNamespace(
        cuda=SimpleNamespace(
            device_count=lambda: len(devices),
            current_device=lambda: current,
            get_device_properties=lambda i: properties[i],
        )
    )


TWO = torch_that_sees(("NVIDIA H200", FIRST), ("NVIDIA H200", SECOND), current=1)
INSTANCE = torch_that_sees(("NVIDIA H200 MIG 1g.18gb", SECOND))


@pytest.mark.parametrize(
    ("torch", "device", "index"),
    [
        (TWO, "cuda", 1),
        (TWO, "cuda:0", 0),
        (TWO, f"GPU-{FIRST}", 0),
        (TWO, f"GPU-{SECOND}", 1),
        (TWO, f"GPU-{SECOND.upper()}", 1),
        (INSTANCE, "cuda:0", 0),
        (INSTANCE, f"MIG-{SECOND}", 0),
        (torch_that_sees(("NVIDIA A100", f"GPU-{FIRST}")), f"GPU-{FIRST}", 0),
    ],
)
def test_a_device_is_found_by_number_and_by_uuid_as_nvidia_smi_writes_it(torch, device, index):
    assert index_of(torch, device) == index


def test_a_device_has_the_uuid_that_nvidia_smi_writes():
    assert (uuid_of(TWO, 1), uuid_of(INSTANCE, 0)) == (f"GPU-{SECOND}", f"MIG-{SECOND}")


@pytest.mark.parametrize("device", ["cuda:2", "cuda:-1", "cuda:x", f"GPU-{FIRST[:-1]}0", "GPU-", "gpu"])
def test_a_device_that_is_not_there_is_an_error_that_lists_what_is(device):
    with pytest.raises(DeviceUnavailable, match=rf"cuda:0 \(GPU-{FIRST}\), cuda:1 \(GPU-{SECOND}\)"):
        index_of(TWO, device)


@pytest.mark.parametrize(
    ("rank", "count", "current", "means"),
    [("1", 2, 0, "cuda:1"), ("0", 2, 0, "cuda"), ("1", 1, 0, "cuda"), ("1", 2, 1, "cuda"), ("", 2, 0, "cuda")],
    ids=["first", "rank 0", "a GPU a rank", "chosen", "no rank"],
)
def test_cuda_is_the_gpu_of_a_rank_that_has_chosen_none(monkeypatch, capfd, rank, count, current, means):
    counted = SimpleNamespace(current_device=lambda: current, device_count=lambda: count)
    monkeypatch.setattr(cuda, "_torch", lambda _: SimpleNamespace(cuda=counted))
    monkeypatch.setenv("LOCAL_RANK", rank)
    assert of_rank("cuda") == means
    assert ("is cuda:1 here, as LOCAL_RANK=1" in capfd.readouterr().err) == (means == "cuda:1")
    assert of_rank("cuda:0") == "cuda:0" and of_rank(None) is None


@pytest.mark.parametrize("device", [None, "host", "cpu", "cpu:0"])
def test_the_processor_is_no_gpu(device):
    assert gpu_of(device) is None
