"""GPUDirect Storage where there is none: every way in which the probe can end."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cuda.bindings import cufile

from penstock.errors import BadSetting, ReaderUnavailable
from penstock.io import gds
from penstock.io.gds import probe, way
from penstock.io.open import open_reader
from penstock.testing.reader import new_memory


def child(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_child_that_answers_tells_the_version() -> None:
    assert probe(child("print('cuFile 1.15')")) == "cuFile 1.15"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (child("while True: pass"), r"did not open within 0.5 s.*mech='direct'"),
        (child("import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(1000)"), "did not open"),
        (child("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"), "died of SIGSEGV"),
        (child("raise SystemExit(3)"), "cuFile ended with status 3 where"),
        (["/nonexistent/python"], r"cannot be tried.*No such file"),
    ],
    ids=["spins", "ignores signals", "crashes", "says nothing", "is not there"],
)
def test_a_child_that_gives_no_answer_is_ended_and_told(command: list[str], says: str) -> None:
    limit_s = 0.5 if "did not open" in says else 20.0
    with pytest.raises(ReaderUnavailable, match=says):
        probe(command, limit_s=limit_s)


@pytest.mark.parametrize(
    ("says", "remedy"),
    [
        ("ModuleNotFoundError: No module named 'cuda'", r'pip install "penstock\[gpu\]"'),
        ("ImportError: cannot import name 'cufile' from 'cuda.bindings'", "cuda-bindings 13"),
        ('DynamicLibNotFoundError: Failure finding "libcufile.so.0"', "install NVIDIA's libcufile"),
        ("cuFileError: DRIVER_NOT_INITIALIZED (5001): nvidia-fs driver is not loaded", "mech='direct'"),
    ],
)
def test_what_the_child_says_is_told_with_a_remedy(says: str, remedy: str) -> None:
    with pytest.raises(ReaderUnavailable, match=remedy) as caught:
        probe(child(f"import sys; print('noise', file=sys.stderr); sys.exit({says!r})"))
    assert says in str(caught.value)
    assert "noise" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="it may work here")
def test_the_real_child_says_why_there_is_none() -> None:
    with pytest.raises(ReaderUnavailable, match=r"^gds: .*; (install|pip install|read)"):
        probe(limit_s=10.0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="it may work here")
def test_without_a_gpu_it_is_unavailable_and_the_reason_is_given() -> None:
    with pytest.raises(ReaderUnavailable, match=r"^gds: .*mech='direct'"):
        open_reader("gds", torch.zeros(4096, dtype=torch.uint8))


def test_memory_of_the_host_is_refused() -> None:
    with pytest.raises(BadSetting, match="reads into a GPU's memory"):
        open_reader("gds", new_memory())


class CuFile:
    """cuFile's own structures, filled with garbage as some versions leave them, and calls that look into them."""

    FileHandleType = cufile.FileHandleType

    def __init__(self, table: str) -> None:
        self.table = table
        self.reads = 0
        self.counts = False
        self.levels: list[int] = []

    def Descr(self) -> Any:  # noqa: N802
        made = cufile.Descr()
        ctypes.memset(made.ptr, 0xA5, cufile.descr_dtype.itemsize)
        return made

    def handle_register(self, ptr: int) -> int:
        described = cufile.Descr.from_ptr(ptr)
        assert described.fs_ops == 0, "it calls what lies there"
        assert described.type == cufile.FileHandleType.OPAQUE_FD
        return int(np.ravel(described.handle.fd)[0])

    def StatsLevel3(self) -> Any:  # noqa: N802
        return SimpleNamespace(ptr=0, num_gpus=1, per_gpu_stats=self.stats())

    def stats(self) -> Any:
        counters = {"n_p2p_reads": 0, "n_nvfs_reads": 0, "n_posix_reads": self.reads}
        if self.table == "objects":
            return [SimpleNamespace(**counters)] + [None] * 15
        of_13_0 = np.zeros((1, 16), [(name, np.uint64) for name in counters]).view(np.recarray)
        for name, count in counters.items():
            of_13_0[name][0, 0] = count
        return of_13_0

    def get_stats_l3(self, ptr: int) -> None:
        assert self.counts, "INVALID_VALUE (5022), as cuFile 1.15 says before it counts and after"

    def stats_start(self) -> None:
        self.counts = True

    def stats_stop(self) -> None:
        self.counts = False

    def read(self, handle: int, address: int, nbytes: int, offset: int, at: int) -> int:
        self.reads += 1
        return nbytes

    def set_stats_level(self, level: int) -> None:
        self.levels.append(level)

    def driver_open(self) -> None:
        pass

    def buf_register(self, *_: int) -> None:
        pass

    handle_deregister = buf_deregister = buf_register


@pytest.mark.parametrize("table", ["objects", "a row"])
def test_the_way_is_read_from_the_counters_of_every_version(table: str) -> None:
    fake = CuFile(table)
    assert way(fake, 3, 0) == "compatibility mode, through host memory"
    assert fake.reads == 1


def test_a_file_is_described_without_what_lay_in_the_description_before(tmp_path, monkeypatch):
    fake, asked = CuFile("objects"), []
    monkeypatch.setattr(gds, "version", lambda: "cuFile 1.15")
    monkeypatch.setattr(gds, "probe", lambda command: asked.append(command) or "peer to peer (nvidia-fs)")
    monkeypatch.setattr("cuda.bindings.cufile", fake)
    monkeypatch.setattr(gds, "_ways", {})
    gds._opened.cache_clear()
    (tmp_path / "a").write_bytes(bytes(4096))
    (tmp_path / "b").write_bytes(bytes(4096))
    memory: Any = SimpleNamespace(data_ptr=lambda: 4096, nbytes=4096, device=torch.device("cuda", 1))
    queue = gds.GdsQueue(4, 2, memory)
    for name in "ab":
        queue.open(str(tmp_path / name))
    assert "cuFile 1.15, peer to peer (nvidia-fs), registered memory" in queue.path_taken
    assert [command[-2:] for command in asked] == [(str(tmp_path / "a"), "1")], "once for a file system"
    assert fake.levels == [], "nothing is counted in this process"
    queue.close()
    gds._opened.cache_clear()
