"""The kernel module's file: its requests as the kernel reads them, and what is told where it refuses."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from penstock.contracts import ByteArray
from penstock.errors import ReaderUnavailable
from penstock.io.files import DiskPath, disk_path
from penstock.io.nvme import module
from penstock.io.nvme.module import MAP_REQUEST, NVM_MAP_HOST_MEMORY, NVM_UNMAP_MEMORY, UNMAP_REQUEST, LibnvmModule
from penstock.io.reader import host_memory
from penstock.testing.reader import new_memory

# What github.com/enfiskutensykkel/ssd-gpu-dma declares in src/linux/ioctl.h, in our words.
PROGRAM = r"""
#include <asm/ioctl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
struct map { uint64_t begin; size_t pages; uint64_t *addresses; };
int main(void) {
    printf("%lu %lu %zu %zu %zu %zu %zu", (unsigned long)_IOW(0x80, 1, struct map),
           (unsigned long)_IOW(0x80, 3, uint64_t), sizeof(struct map), offsetof(struct map, begin),
           offsetof(struct map, pages), offsetof(struct map, addresses), sizeof(uint64_t));
}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler here")
def test_requests_are_numbered_and_laid_out_as_a_c_compiler_does(tmp_path: Path) -> None:
    (tmp_path / "ioctl.c").write_text(PROGRAM)
    subprocess.run(["gcc", tmp_path / "ioctl.c", "-o", tmp_path / "ioctl"], check=True)
    told = subprocess.run([tmp_path / "ioctl"], check=True, capture_output=True, text=True).stdout
    numbers, sizes = [NVM_MAP_HOST_MEMORY, NVM_UNMAP_MEMORY], [MAP_REQUEST.size, 0, 8, 16, UNMAP_REQUEST.size]
    assert [*map(int, told.split())] == numbers + sizes


class Kernel:
    """Answers requests on an ordinary file; it finds a mapping as the module does, by thread and address."""

    def __init__(self) -> None:
        self.mapped: list[tuple[int, int, int]] = []  # thread, beginning, pages
        self.lacking = 0
        self.error = 0

    def ioctl(self, fd: int, request: int, argument: bytes) -> int:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        thread = threading.get_ident()
        if request == NVM_MAP_HOST_MEMORY:
            begin, pages, addresses = MAP_REQUEST.unpack(argument)
            assert begin % 4096 == 0
            for i in range(pages - self.lacking):
                ctypes.c_uint64.from_address(addresses + 8 * i).value = 0x7000_0000 + begin // 2 + i
            self.mapped.append((thread, begin, pages))
            return 0
        assert request == NVM_UNMAP_MEMORY
        (at,) = UNMAP_REQUEST.unpack(argument)
        for mapping in reversed(self.mapped):  # in which order it looks is not ours to know
            if mapping[0] == thread and mapping[1] in (at, at & ~0xFFFF):
                self.mapped.remove(mapping)
                return 0
        raise OSError(errno.EINVAL, "no such mapping")


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel()
    monkeypatch.setattr(module.fcntl, "ioctl", kernel.ioctl)
    return kernel


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "libnvm0").write_bytes(np.arange(4096, dtype=np.uint32).tobytes())
    return str(tmp_path / "libnvm0")


def test_registers_are_those_of_the_file_and_can_be_written(path: str) -> None:
    disk = LibnvmModule(path)
    registers = disk.registers(8192)
    assert registers[:4].tolist() == [0, 1, 2, 3]
    registers[5] = 77
    disk.close()
    assert np.fromfile(path, np.uint32)[5] == 77


def test_memory_is_mapped_by_whole_pages_and_unmapped_whoever_closes(kernel: Kernel, path: str) -> None:
    """Two mappings whose beginnings lie in the same 64 KiB, which the module mixes up."""
    disk = LibnvmModule(path)
    whole = new_memory()
    first = -whole.ctypes.data % 65_536
    later, sooner = whole[first + 8192 : first + 16_384], whole[first : first + 8192]
    assert len(disk.map_host(later)) == 2
    start = sooner.ctypes.data
    assert disk.map_host(sooner).tolist() == [0x7000_0000 + start // 2, 0x7000_0001 + start // 2]
    assert [pages for _, _, pages in kernel.mapped] == [2, 2]
    closing = threading.Thread(target=disk.close)
    closing.start()
    closing.join()
    assert not kernel.mapped
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("penstock-libnvm")]


@pytest.mark.parametrize(("skip", "lack"), [(8, 0), (0, 8), (512, 512)])
def test_memory_that_shares_a_page_with_something_else_is_refused(kernel: Kernel, path: str, skip: int, lack: int):
    disk = LibnvmModule(path)
    memory = new_memory()
    with pytest.raises(ReaderUnavailable, match=r"whole pages.*host_memory"):
        disk.map_host(memory[skip : memory.nbytes - lack])
    assert not kernel.mapped
    disk.close()


@pytest.mark.parametrize("make", [host_memory, lambda nbytes: np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)])
def test_no_child_gets_private_memory_that_a_disk_writes_to(kernel, path, make):
    """After a fork one of us would write to a copy, and the disk to the other's; shared memory has one copy."""
    memory = make(1 << 16)
    memory[:] = 7
    disk = LibnvmModule(path)
    disk.map_host(memory)
    assert children_get(memory) == (make is not host_memory)
    disk.close()
    assert children_get(memory)


def children_get(memory: ByteArray) -> bool:
    """Whether a fork copies the mapping (``VmFlags`` of ``/proc/PID/smaps``, proc(5): "dc", do not copy)."""
    inside = False
    for line in Path("/proc/self/smaps").read_text(encoding="ascii", errors="replace").splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(bounds[1], 16) <= memory.ctypes.data < int(bounds[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return "dc" not in line.split()
    raise AssertionError("it lies nowhere")


def test_memory_that_a_disk_may_still_write_to_stays_mapped(kernel: Kernel, path: str) -> None:
    disk = LibnvmModule(path)
    disk.map_host(new_memory())
    disk.close(unmap=False)
    assert len(kernel.mapped) == 1
    LibnvmModule(path).close()  # and the disk can be had again


def test_a_mapping_that_cannot_be_undone_is_told_and_the_others_are_undone(kernel: Kernel, path: str) -> None:
    disk = LibnvmModule(path)
    for _ in range(3):
        disk.map_host(new_memory())
    del kernel.mapped[1]
    with pytest.raises(ReaderUnavailable, match=r"1 of 3 mappings of memory cannot be undone \(no such mapping"):
        disk.close()
    assert not kernel.mapped
    LibnvmModule(path).close()


@pytest.mark.parametrize(
    ("lacking", "error", "told"),
    [
        (3, 0, "3 of 256 pages"),
        (0, errno.ENOMEM, r"1,048,576 bytes of host memory.*errno 12\); give less memory"),
    ],
)
def test_what_the_module_refuses_or_leaves_out_is_told(kernel: Kernel, path: str, lacking, error, told) -> None:
    disk = LibnvmModule(path)
    kernel.lacking, kernel.error = lacking, error
    with pytest.raises(ReaderUnavailable, match=told):
        disk.map_host(new_memory())
    kernel.error = 0
    disk.close()
    assert not kernel.mapped


def test_a_file_that_is_no_disk_is_told(path: str, tmp_path: Path) -> None:
    disk = LibnvmModule(path)
    with pytest.raises(ReaderUnavailable, match="errno 25"):  # ENOTTY, from the real kernel
        disk.map_host(new_memory())
    os.mkfifo(tmp_path / "pipe")
    pipe = LibnvmModule(str(tmp_path / "pipe"))
    with pytest.raises(ReaderUnavailable, match="4,096 bytes of registers cannot be mapped"):
        pipe.registers(4096)
    pipe.close()
    disk.close()


def test_a_disk_has_one_reader(path: str) -> None:
    disk = LibnvmModule(path)
    registers = disk.registers(4096)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ReaderUnavailable, match=r"read by another reader already.*close that"):
        LibnvmModule(path)
    assert len(os.listdir("/proc/self/fd")) == before
    disk.close()
    LibnvmModule(path).close()
    assert registers[1] == 1  # who looked into them may go on


def test_a_disk_that_is_not_there_is_told_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "devices", lambda: ["/dev/libnvm4"])
    with pytest.raises(ReaderUnavailable, match=r"/dev/libnvm99 is not there.*/dev/libnvm4\); load the module"):
        LibnvmModule("/dev/libnvm99")


def test_a_disk_that_may_not_be_opened_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    says = r"/dev/libnvm0 cannot be opened by you \(errno 13\): .*as root: chown"
    with monkeypatch.context() as patch, pytest.raises(ReaderUnavailable, match=says):
        patch.setattr(module.os, "open", refuse)
        LibnvmModule("/dev/libnvm0")


@pytest.mark.parametrize(
    ("path", "named"),
    [
        *(("/dev/libnvm0", DiskPath("/dev/libnvm0", 1)), ("/dev/libnvm12n3", DiskPath("/dev/libnvm12", 3))),
        *((f"/dev/libnvm{behind}", None) for behind in ("", "0n", "0n0", "0p1")),
        *(("/dev/nvme0n1", None), ("/data/dev/libnvm0", None)),
    ],
)
def test_names_of_disks(path: str, named: DiskPath | None) -> None:
    assert disk_path(path) == named
