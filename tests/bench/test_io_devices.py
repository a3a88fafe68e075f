"""``bench io`` on hardware that is none: a GPU that asks, its driver and NVML; a disk under BaM's module."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.fakes.gpu import FakeGpu
from tests.fakes.nvml.fake_gpus import FakeGpus
from tests.io.nvme.test_nvme_device import FakeDriver

from penstock.bench.io import child
from penstock.bench.io.plan import Case, IoSettings
from penstock.bench.io.report import medians
from penstock.bench.io.run import IoReport, run
from penstock.errors import BadSetting
from penstock.gpus.gpm import Meter
from penstock.io.advice.measurements import Measurement
from penstock.io.nvme import gpu_threads as device
from penstock.io.nvme.gpu_threads import most_busy_share

MULTIPROCESSORS = 132


class Driver(FakeDriver):
    """That of a GPU with so many multiprocessors."""

    CUdevice_attribute = SimpleNamespace(
        **vars(FakeDriver.CUdevice_attribute), CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=MULTIPROCESSORS
    )


class CudaGpu(FakeGpu):
    """One that carries the name of a real one, so that its threads are launched."""

    name = "cuda:0"

    def __init__(self, device: str) -> None:
        super().__init__()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    monkeypatch.setattr(device, "_driver", lambda: driver)
    monkeypatch.setattr(device, "compile_for", lambda architecture: b"")
    monkeypatch.setattr("penstock.memory.cuda.CudaGpu", CudaGpu)


def measured(path: Path, monkeypatch: Any, meter: Any, mech: str = "gpu", dest: str = "cuda") -> Measurement:
    asked: list[str] = []
    monkeypatch.setattr(child, "meter_of", lambda name: asked.append(name) or meter)
    path.write_bytes(bytes(1 << 20))
    settings = IoSettings(runtime_s=0.1, warm_up_s=0.01)
    order = child.CaseJob(Case(mech, 4096, 8, 8, "random", dest), settings, str(path), 1 << 20, cold=False, seed=0)
    row = child.run(order)
    assert row.iops > 0
    assert asked == ["cuda:0"] * (mech == "gpu" and dest != "host")
    return row


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("dest", ["cuda", "cuda:0", "pinned"])
def test_the_share_of_multiprocessors_is_what_the_gpu_tells(tmp_path, monkeypatch, fake_gpus, dest):
    meter = Meter(fake_gpus.add(gpm={"2": 75.0}))
    row = measured(tmp_path / "file", monkeypatch, meter, dest=dest)
    assert (row.gpu_threads, row.sm_share) == (8, 0.75)
    assert "measured by NVML, of all that ran on the GPU" in row.note


@pytest.mark.usefixtures("gpu")
def test_where_the_gpu_does_not_tell_it_the_share_is_the_most_that_its_threads_can_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_gpus: FakeGpus
) -> None:
    row = measured(tmp_path / "file", monkeypatch, Meter(fake_gpus.add(gpm=None)))
    assert row.sm_share == pytest.approx(4 * 1 / MULTIPROCESSORS)  # four launches of one warp
    assert "SMs: estimated, at most" in row.note
    assert "GPM: Not Supported" in row.note


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("mech", "dest"), [("gpu", "host"), ("uring", "cuda")])
def test_what_the_gpu_does_not_ask_for_takes_none_of_it(tmp_path, monkeypatch, mech, dest):
    row = measured(tmp_path / "file", monkeypatch, None, mech, dest)
    assert (row.gpu_threads, row.sm_share, row.note) == (None, None, "")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("threads", "blocks"), [(1, 4), (32, 4), (33, 8), (1024, 128), (4096, MULTIPROCESSORS)])
def test_a_warp_takes_one_multiprocessor_at_most(threads: int, blocks: int) -> None:
    assert most_busy_share(threads, 0) == pytest.approx(blocks / MULTIPROCESSORS)


def test_the_share_of_repeats_is_their_median() -> None:
    case = Case("gpu", 4096, 8, 8, "random", "cuda:0")
    rows = [case.measured(10, 1.0, 0.1, sm_share=share) for share in (0.1, 0.3, 0.2)]
    assert medians(rows)[0].sm_share == 0.2


SHORT = IoSettings(bs_bytes=(4096, 65536), qd=(8,), threads=(2,), runtime_s=0.1, warm_up_s=0.02)

FAKE_DISK = """
from penstock.io.open import open_reader
from penstock.io.nvme import module
from tests.fakes.nvme_disk import FakeDisk, FakeModule
disk = FakeDisk({1: bytes(1 << 20)}).__enter__()
module.LibnvmModule = lambda path: FakeModule(disk, path)
"""


def measured_disk(settings: IoSettings, path: str = "/dev/libnvm0") -> IoReport:
    return run(settings, path, lambda *_: None)


def test_a_disk_is_measured_at_its_own_size_and_is_always_cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "fake_disk.py").write_text(FAKE_DISK)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    report = measured_disk(msgspec.structs.replace(SHORT, readers="fake_disk:open_reader", cold=True))
    assert [row.bs_bytes for row in report.rows] == [4096, 65536]
    for row in report.rows:
        assert (row.mech, row.cold) == ("gpu", True)
        assert row.iops > 0, row.note
        assert "disk-served: FAKE DISK" in row.path_taken
    assert report.remarks == ["--cold has no effect on /dev/libnvm0: it is not in the page cache"]


def test_a_disk_that_is_not_there_is_told_in_each_row() -> None:
    for row in measured_disk(SHORT, "/dev/libnvm99").rows:
        assert row.iops == 0
        assert "/dev/libnvm99 is not there" in row.note


@pytest.mark.parametrize("mech", [("uring",), ("gpu", "posix")])
def test_a_mechanism_that_cannot_read_such_a_disk_is_refused(mech: tuple[str, ...]) -> None:
    with pytest.raises(BadSetting, match=r"--mech .*/dev/libnvm0 is a disk under BaM's.*only mech 'gpu' reads"):
        measured_disk(msgspec.structs.replace(SHORT, mech=mech))
