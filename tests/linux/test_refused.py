"""Where locks, files in memory or a home folder are refused, one sentence names what does; who holds a folder."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import BadSetting, LocksRefused, PenstockError
from penstock.linux import files
from penstock.linux.files import cache_folder, file_system, held, lock_file, locked, memory_file, taken
from penstock.runs.store.folder import chosen_folder

NOEXEC_SEAL = 8
REFUSED = [errno.ENOLCK, errno.ENOSYS, errno.EBADF]


@pytest.mark.parametrize("number", REFUSED)
def test_a_file_system_that_locks_no_files_is_named(monkeypatch, tmp_path: Path, number: int) -> None:
    def refused(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refused)
    monkeypatch.setattr(fcntl, "lockf", refused)
    says = f"its file system, {file_system(tmp_path)}, locks no files (flock: {os.strerror(number)})"
    for use in (locked(tmp_path / "file").__enter__, lambda: taken(tmp_path, os.O_RDONLY)):
        with pytest.raises(LocksRefused) as error:
            use()
        assert says in str(error.value)
        assert str(tmp_path) in str(error.value)
        assert error.value.errno == number
    with pytest.raises(BadSetting, match=r"cannot be a folder of results: its file system, \w+, locks no files"):
        held(tmp_path, "results", "comparing in").__enter__()
    with open(tmp_path / "file", "rb", 0) as file, pytest.raises(LocksRefused, match=r"locks no files \(lockf: "):
        lock_file(file, fcntl.LOCK_SH, "lockf")


def test_a_file_that_another_process_has_locked_is_refused_by_nobody(tmp_path: Path) -> None:
    with locked(tmp_path / "file"), pytest.raises(BlockingIOError):
        taken(tmp_path / "file", os.O_RDWR)


def kernel(monkeypatch: pytest.MonkeyPatch, refuses: Callable[[int], int], *, knows_seal: bool) -> list[int]:
    """Let a kernel refuse some flags with an error; return those that it was given."""
    real, given = os.memfd_create, list[int]()

    def memfd_create(name: str, flags: int) -> int:
        given.append(flags)
        if number := refuses(flags):
            raise OSError(number, os.strerror(number))
        return real(name, flags & ~NOEXEC_SEAL)

    monkeypatch.setattr(os, "memfd_create", memfd_create)
    monkeypatch.setattr(files, "_NOEXEC", Path("/proc/self/stat" if knows_seal else "/proc/none"))
    return given


def test_a_kernel_that_wants_files_in_memory_sealed_gets_them_so(monkeypatch) -> None:
    given = kernel(monkeypatch, lambda flags: 0 if flags & NOEXEC_SEAL else errno.EACCES, knows_seal=True)
    with memory_file("some", 4096) as file:
        assert os.fstat(file.fileno()).st_size == 4096
    assert given == [os.MFD_CLOEXEC | NOEXEC_SEAL]


def test_a_kernel_that_does_not_know_the_seal_is_not_asked_for_it(monkeypatch) -> None:
    given = kernel(monkeypatch, lambda flags: errno.EINVAL if flags & NOEXEC_SEAL else 0, knows_seal=False)
    memory_file("some", flags=0).close()
    assert given == [0]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.ENOSYS])
def test_where_no_file_in_memory_can_be_made_the_sysctl_is_named(monkeypatch, number: int) -> None:
    kernel(monkeypatch, lambda flags: number, knows_seal=True)
    with pytest.raises(PenstockError, match=rf"memfd_create: {os.strerror(number)}\).*sysctl vm.memfd_noexec"):
        memory_file("some")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_where_a_file_in_memory_finds_no_room_the_sysctl_is_not_named(monkeypatch, number: int) -> None:
    kernel(monkeypatch, lambda flags: number, knows_seal=True)
    with pytest.raises(PenstockError, match=rf"memfd_create: {os.strerror(number)}\)$"):
        memory_file("some")


def test_a_limit_on_files_holds_for_those_in_memory_and_is_named() -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    open_before = os.listdir("/proc/self/fd")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(PenstockError, match=r"no file of 4,096 bytes .*over 1,000 here.*raise ulimit -f"):
            memory_file("some", 4096)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(os.listdir("/proc/self/fd")) == len(open_before)


@pytest.mark.parametrize(
    ("folder", "variable"),
    [(chosen_folder, "XDG_DATA_HOME"), (cache_folder, "XDG_CACHE_HOME"), (chosen_folder, "")],
)
def test_who_has_no_home_folder_is_told_so(monkeypatch, folder: Callable[[], Path], variable: str) -> None:
    def nobody(_: Any) -> Any:
        raise KeyError

    monkeypatch.setattr("pwd.getpwuid", nobody)
    for name in ("HOME", "PENSTOCK_STORE", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    if not variable:
        monkeypatch.setenv("XDG_DATA_HOME", "~nobody-of-this-name/data")
    says = rf"~.*: neither HOME nor a passwd entry names a home folder \(uid {os.getuid()}\).*HOME, or {variable}"
    with pytest.raises(BadSetting, match=says):
        folder()
    monkeypatch.setenv(variable or "XDG_DATA_HOME", "/data")
    assert folder().is_relative_to("/data/penstock")


def test_a_folder_is_made_and_held_until_the_end_of_the_block(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    for _ in range(2):
        with held(folder, "results", "comparing in"):
            with pytest.raises(BadSetting, match=r"another process is packing into .*/a/b: wait"):
                held(folder, "packed samples", "packing into").__enter__()
            assert folder.is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(BadSetting, match="file cannot be a folder of results: File exists"):
        held(tmp_path / "file", "results", "comparing in").__enter__()


def test_who_holds_a_folder_may_remove_it(tmp_path: Path) -> None:
    for _ in range(2):
        with held(tmp_path / "kept", "partial results", "scoring in"):
            (tmp_path / "kept").rmdir()
            with held(tmp_path / "kept", "partial results", "scoring in"):
                """It is another folder."""
