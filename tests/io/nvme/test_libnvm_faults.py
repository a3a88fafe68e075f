"""Disks that refuse, hang, fail or are pulled out, and what else a reader of one has to tell."""

from __future__ import annotations

import errno
import threading
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.fakes.gpu import FakeGpu
from tests.fakes.nvme_admin import Traits
from tests.fakes.nvme_disk import FakeDisk, FakeModule
from tests.io.fake_disks import DISK, reader_on, settled
from tests.io.reading import read_at, read_once

from penstock.errors import ReaderUnavailable, ReadFailed
from penstock.io.nvme import module
from penstock.io.nvme.admin import CC, CREATE_CQ, CREATE_SQ, IDENTIFY, SET_FEATURES, Admin
from penstock.io.open import open_reader
from penstock.testing.reader import MEMORY_BYTES, extents_of, new_memory


@pytest.mark.parametrize(
    ("traits", "room", "why"),
    [
        (Traits(refuses=frozenset({IDENTIFY})), None, "refuses to identify itself: internal error"),
        (Traits(refuses=frozenset({SET_FEATURES})), None, "refuses to give queues"),
        (Traits(refuses=frozenset({CREATE_CQ})), None, "refuses to create queue 1 of 64 entries"),
        (Traits(refuses=frozenset({CREATE_SQ})), None, "refuses to create queue 1"),
        (Traits(metadata_bytes=8), None, "8 bytes of metadata"),
        (Traits(least_page_log2=1), None, "pages of 8192 bytes"),
        (Traits(command_sets=2), None, "has none"),
        (Traits(ready_limit=1), None, r"does not become ready: not within the 0\.5 s"),
        # no memory for the admin queue, for the queues, and to read into
        *((None, room, "no room") for room in (0, 12_288, MEMORY_BYTES)),
    ],
)
def test_a_disk_that_cannot_be_used_is_told_and_turned_off(traits, room, why) -> None:
    with FakeDisk({1: bytes(4096)}, traits) as disk:
        disk.starts = "become ready" not in why
        with pytest.raises(ReaderUnavailable, match=why):
            reader_on(disk, new_memory(), refuses_after=room)
        settled(disk)


def test_no_threads_to_submit_leave_the_disk_turned_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with FakeDisk({1: bytes(4096)}) as disk:
        with pytest.raises(ReaderUnavailable, match=r"C\+\+ compiler"):
            reader_on(disk, new_memory())
        settled(disk)


def test_a_disk_that_does_not_stop_keeps_the_memory() -> None:
    """It may still write there: nobody else must get it."""
    with FakeDisk({1: bytes(4096)}, Traits(ready_limit=1)) as disk:
        reader = reader_on(disk, new_memory())
        disk.stops = False
        with pytest.raises(ReaderUnavailable, match="does not stop"):
            reader.close()
        assert disk.bus.count > 0
        assert not disk.taken
        assert not disk.wrongs


def test_a_disk_that_is_given_wrong_addresses_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has 50 s to become ready, and the command 60 s; nobody waits for those."""
    right = FakeModule.map_host
    for wrong, why in ((8, "does not become ready: it has failed"), (4096, "does not identify itself: the disk")):
        off = np.uint64(wrong)
        monkeypatch.setattr(FakeModule, "map_host", lambda self, memory, off=off: right(self, memory) + off)
        with FakeDisk({1: bytes(4096)}, Traits(ready_limit=100)) as disk:
            with pytest.raises(ReaderUnavailable, match=why):
                reader_on(disk, new_memory())
            assert disk.wrongs
            assert disk.bus.count == 0


@pytest.mark.parametrize(
    ("how", "why"),
    [("fatal", "has failed"), ("silent", "no read"), ("off the bus", "on the bus"), ("turned off", "else")],
)
def test_a_disk_that_fails_while_it_reads_is_told_to_whoever_waits(how: str, why: str) -> None:
    memory = new_memory()
    with FakeDisk({1: bytes(MEMORY_BYTES)}) as disk:
        setattr(disk, "fatal_after" if how == "fatal" else "silent_after", 5)
        reader = reader_on(disk, memory, patience_s=0.2 if how == "silent" else 30)
        file, _ = reader.open(DISK)
        at = [4096 * i for i in range(16)]
        reader.submit(extents_of(file, at, [4096] * 16, at))
        if how == "off the bus":
            disk.leave_the_bus()
        elif how == "turned off":
            disk.registers[CC] = 0
        for ends in (partial(reader.completed, 16), reader.close):
            with pytest.raises(ReaderUnavailable, match=why):
                ends()
        assert not disk.wrongs
        assert disk.bus.count == 0
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("penstock-")]


def test_a_status_that_nobody_knows_is_told_by_its_number() -> None:
    with FakeDisk({1: bytes(8192)}, bad_blocks={(1, 8): 0x7234}) as disk:  # with more, do not retry
        done = read_once(reader_on(disk, new_memory()), DISK, [0, 4096], 4096)
    ((tag, failure),) = done.failures.items()
    assert tag == 1
    assert isinstance(failure, ReadFailed)
    assert failure.errno == errno.EIO
    assert "type 2, code 0x34" in str(failure)


def test_a_command_that_is_not_answered_has_a_limit() -> None:
    with FakeDisk({1: bytes(4096)}) as disk:
        admin = Admin(disk_module := FakeModule(disk), limit_s=0.05)
        admin.reset()
        disk.cqs[0].post = lambda: False
        with pytest.raises(ReaderUnavailable, match=r"does not identify itself: no answer within 0\.05 s"):
            admin.identify(1)
        admin.disable()
        disk_module.close()
        settled(disk)


def test_the_first_path_decides_who_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(4096))
    with FakeDisk({1: bytes(4096)}) as disk:
        monkeypatch.setattr(module, "LibnvmModule", lambda path: FakeModule(disk, path))
        reader = open_reader("gpu", new_memory(), threads=2)
        assert not read_at(reader, DISK, [1], 4000, [3]).failures
        assert "disk-served" in reader.path_taken
        with pytest.raises(ReaderUnavailable, match="make another"):
            reader.open(str(tmp_path / "file"))
        reader.close()
        settled(disk)
        reader = open_reader("gpu", new_memory())
        reader.open(str(tmp_path / "file"))
        assert "CPU-served" in reader.path_taken
        with pytest.raises(ReaderUnavailable, match="is a disk, and this reader reads files"):
            reader.open(DISK)
        reader.close()


def test_bytes_for_a_gpu_go_by_way_of_the_hosts_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    content = np.random.default_rng(9).bytes(64 * 4096)
    gpu = FakeGpu(seed=1)
    memory = gpu.empty(len(content))
    with FakeDisk({1: content}) as disk:
        monkeypatch.setattr(module, "LibnvmModule", lambda path: FakeModule(disk, path))
        reader = open_reader("gpu", memory, gpu=gpu, threads=2, staging_bytes=16 * 4096)
        assert not read_once(reader, DISK, [4096 * i for i in range(64)], 4096).failures
        assert "disk-served: FAKE DISK" in reader.path_taken
        assert "copied from there to fake:0" in reader.path_taken
        settled(disk)
    assert bytes(memory.tolist()) == content


@pytest.mark.parametrize("mech", ["posix", "direct", "uring"])
def test_other_mechanisms_refuse_such_a_disk(mech: str) -> None:
    refused = pytest.raises(ReaderUnavailable, match="read it with mech='gpu'")
    with closing(open_reader(mech, new_memory())) as reader, refused:
        reader.open(DISK)
