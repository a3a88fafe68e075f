"""Readers with a GPU that is none: every byte on the device, whenever the copies are carried out."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.fakes.gpu import POISON, FakeGpu
from tests.io.reading import read_once, stored
from tests.support.contracts import READING, only

from penstock.contracts import ByteArray, Reader
from penstock.errors import BadSetting, ReaderUnavailable
from penstock.io.open import DeviceReader, open_reader
from penstock.io.queue import ThreadQueue
from penstock.io.reader import QueueReader
from penstock.testing.faulty_queue import FaultyQueue
from penstock.testing.reader import MEMORY_BYTES, UNTOUCHED, ReaderContract, extents_of, new_memory, read_all

PAGE = 4096


def device_memory() -> Any:
    return torch.full((MEMORY_BYTES,), UNTOUCHED, dtype=torch.uint8)


class OnDevice(ReaderContract):
    mech = "posix"
    pins = True

    def make(self, memory: Any, depth: int) -> Reader:
        gpu = FakeGpu(seed=depth, pins=self.pins)
        return open_reader(self.mech, memory, depth=depth, gpu=gpu, staging_bytes=24 * PAGE)

    def new_memory(self) -> Any:
        return device_memory()

    def fetched(self, memory: Any) -> ByteArray:
        return memory.numpy()


class TestOnDevice(OnDevice):
    pass


@only(*READING)
class TestByMechanism(OnDevice):
    @pytest.fixture(autouse=True, params=["direct", "uring"])
    def _of(self, request: pytest.FixtureRequest) -> None:
        self.mech = request.param


@only(*READING)
class TestUnpinnedOnDevice(OnDevice):
    pins = False


@only(*READING)
class TestPinned(ReaderContract):
    def make(self, memory: ByteArray, depth: int) -> Reader:
        return open_reader("posix", memory, depth=depth, gpu=FakeGpu())


FILE_BYTES = 64 * PAGE


@pytest.mark.parametrize("seed", range(8))
def test_an_extent_is_completed_only_when_its_bytes_are_on_the_device(seed: int, tmp_path: Path) -> None:
    path, content = stored(tmp_path, FILE_BYTES)
    memory = device_memory()
    reader = open_reader("posix", memory, gpu=FakeGpu(seed), staging_bytes=5 * PAGE)
    file, _ = reader.open(path)
    starts = [PAGE * i for i in np.random.default_rng(seed).permutation(64).tolist()]
    extents = extents_of(file, starts, [PAGE - 7] * 64, starts)
    begun = came = 0
    while came < 64:
        taken = reader.submit(extents.part(begun))
        assert begun + taken - came <= 5, "room for five"
        begun += taken
        tags = reader.completed(1).tags.tolist()
        came += len(tags)
        for tag in tags:
            at = starts[tag]
            assert memory[at : at + PAGE - 7].numpy().tobytes() == content[at : at + PAGE - 7]
    reader.close()


def test_staging_is_used_again_and_never_by_two(tmp_path: Path) -> None:
    """Sizes that do not divide it, so that the ring wraps everywhere."""
    path, content = stored(tmp_path, FILE_BYTES)
    rng = np.random.default_rng(0)
    memory = device_memory()
    reader = open_reader("posix", memory, gpu=FakeGpu(1), depth=7, staging_bytes=11 * PAGE)
    file, _ = reader.open(path)
    for _ in range(30):
        nbytes = rng.integers(1, 11 * PAGE, 12)
        offsets = [int(rng.integers(0, 64 * PAGE - n)) for n in nbytes]
        to = (np.cumsum(nbytes) - nbytes).tolist()
        assert not read_all(reader, extents_of(file, offsets, nbytes.tolist(), to)).failures
        for offset, n, start in zip(offsets, nbytes.tolist(), to, strict=True):
            assert memory[start : start + n].numpy().tobytes() == content[offset : offset + n]
    reader.close()


def test_an_extent_that_fails_does_not_touch_the_device_and_gives_its_room_back(tmp_path: Path) -> None:
    path, content = stored(tmp_path, FILE_BYTES)
    memory = device_memory()
    queue = FaultyQueue(ThreadQueue(4, 2, direct=False), seed=1, errors=0.3)
    reader = DeviceReader(FakeGpu(), memory, 2 * PAGE, lambda staging: QueueReader(queue, staging))
    starts = [PAGE * i for i in range(64)]
    done = read_once(reader, path, starts, PAGE)
    assert 0 < len(done.failures) == len(queue.failed) < 64
    for tag, start in enumerate(starts):
        got = memory[start : start + PAGE].numpy()
        if failure := done.failures.get(tag):
            assert (failure.errno, failure.offset) == (errno.EIO, start)
            assert (got == UNTOUCHED).all()
        else:
            assert got.tobytes() == content[start : start + PAGE]
    assert POISON != UNTOUCHED


def test_both_legs_of_the_way_are_named() -> None:
    for pins, words in ((True, "pinned for fake:0"), (False, "not pinned (fake:0 cannot register")):
        reader = open_reader("posix", device_memory(), gpu=FakeGpu(pins=pins))
        assert reader.path_taken.startswith("preadv, page cache")
        assert words in reader.path_taken
        assert reader.path_taken.endswith("copied from there to fake:0")
        reader.close()
        reader = open_reader("posix", new_memory(), gpu=FakeGpu(pins=pins))
        assert words in reader.path_taken
        reader.close()


@pytest.mark.parametrize("make_memory", [new_memory, device_memory])
def test_memory_is_registered_while_the_reader_lives_and_no_longer(make_memory: Any) -> None:
    gpu = FakeGpu()
    reader = open_reader("uring", make_memory(), gpu=gpu)
    assert len(gpu.pinned) == 1
    reader.close()
    assert not gpu.pinned


@pytest.mark.parametrize("make_memory", [new_memory, device_memory])
def test_memory_is_not_left_registered_where_the_mechanism_cannot_be_had(make_memory, monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    gpu = FakeGpu()
    with pytest.raises(ReaderUnavailable):
        open_reader("object", make_memory(), gpu=gpu)
    assert not gpu.pinned


def test_an_extent_larger_than_the_staging_is_refused_with_both_numbers(tmp_path: Path) -> None:
    reader = open_reader("posix", device_memory(), gpu=FakeGpu(), staging_bytes=PAGE)
    file, _ = reader.open(stored(tmp_path, FILE_BYTES)[0])
    with pytest.raises(BadSetting, match=r"4,097 bytes does not fit the 4,096 bytes.*staging_bytes"):
        reader.submit(extents_of(file, [0, 0], [10, PAGE + 1], [0, PAGE]))
    assert len(reader.completed(1).tags) == 0
    reader.close()


def test_memory_on_a_device_wants_its_gpu() -> None:
    with pytest.raises(BadSetting, match="gpu="):
        open_reader("posix", device_memory())
