"""``bench io`` on hardware that is none: a GPU that asks, its driver and NVML; a disk under BaM's module."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.fakes.gpu import FakeGpu
from tests.fakes.nvml.fake_gpus import FakeGpus
from tests.io.nvme.test_nvme_device import FakeDriver

from penstock.bench import io_child as child
from penstock.bench.io import run
from penstock.bench.io_plan import IoSettings
from penstock.bench.io_report import medians
from penstock.errors import BadSetting
from penstock.gpus.gpm import Meter
from penstock.io.measurements import Measurement
from penstock.io.nvme import threads as device


class CudaGpu(FakeGpu):
    """One that carries the name of a real one, so that its threads are launched."""

    name = "cuda:0"

    def __init__(self, device: str) -> None:
        super().__init__()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()
    monkeypatch.setattr(device, "_driver", lambda: driver)
    monkeypatch.setattr(device, "compile_for", lambda architecture: b"")
    monkeypatch.setattr("penstock.memory.cuda.CudaGpu", CudaGpu)


def measured(path: Path, monkeypatch: Any, meter: Any, mech: str = "gpu", dest: str = "cuda") -> Measurement:
    asked: list[str] = []
    monkeypatch.setattr(child, "meter_of", lambda name: asked.append(name) or meter)
    path.write_bytes(bytes(1 << 20))
    settings = IoSettings(runtime_s=0.1, warm_up_s=0.01)
    case = Measurement(mech=mech, bs_bytes=4096, qd=8, threads=8, pattern="random", dest=dest)
    row = child.run(child.CaseJob(case, settings, str(path), 1 << 20))
    assert row.iops > 0
    assert asked == ["cuda:0"] * (mech == "gpu" and dest != "host")
    return row


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("dest", ["cuda", "cuda:0", "pinned"])
def test_the_share_of_multiprocessors_is_what_the_gpu_tells(tmp_path, monkeypatch, fake_gpus, dest):
    meter = Meter(fake_gpus.add(gpm={"2": 75.0}))
    row = measured(tmp_path / "file", monkeypatch, meter, dest=dest)
    assert (row.sm_share, row.note) == (0.75, "")


@pytest.mark.usefixtures("gpu")
def test_where_the_gpu_does_not_tell_it_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_gpus: FakeGpus
) -> None:
    row = measured(tmp_path / "file", monkeypatch, Meter(fake_gpus.add(gpm=None)))
    assert (row.sm_share, row.note) == (None, "SMs: not known (GPM: Not Supported)")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("mech", "dest"), [("gpu", "host"), ("uring", "cuda")])
def test_what_the_gpu_does_not_ask_for_takes_none_of_it(tmp_path, monkeypatch, mech, dest):
    row = measured(tmp_path / "file", monkeypatch, None, mech, dest)
    assert (row.sm_share, row.note) == (None, "")


def test_the_share_of_repeats_is_their_median() -> None:
    case = Measurement(mech="gpu", bs_bytes=4096, qd=8, threads=8, pattern="random", dest="cuda:0", iops=1.0)
    assert medians([msgspec.structs.replace(case, sm_share=share) for share in (0.1, 0.3, 0.2)])[0].sm_share == 0.2


SHORT = IoSettings(bs_bytes=(4096, 65536), qd=(8,), threads=(2,), runtime_s=0.1, warm_up_s=0.02)

FAKE_DISK = """
from penstock.io.open import open_reader
from penstock.io.nvme import module
from tests.fakes.nvme_disk import FakeDisk, FakeModule
disk = FakeDisk({1: bytes(1 << 20)}).__enter__()
module.LibnvmModule = lambda path: FakeModule(disk, path)
"""


def measured_disk(settings: IoSettings, path: str = "/dev/libnvm0") -> list[Measurement]:
    return run(settings, path, lambda *_: None)


def test_a_disk_is_measured_at_its_own_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "fake_disk.py").write_text(FAKE_DISK)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    rows = measured_disk(msgspec.structs.replace(SHORT, readers="fake_disk:open_reader", cold=True))
    assert [row.bs_bytes for row in rows] == [4096, 65536]
    for row in rows:
        assert row.mech == "gpu"
        assert row.iops > 0, row.note
        assert "disk-served: FAKE DISK" in row.path_taken


def test_a_disk_that_is_not_there_is_told_in_each_row() -> None:
    for row in measured_disk(SHORT, "/dev/libnvm99"):
        assert row.iops == 0
        assert "/dev/libnvm99 is not there" in row.note


@pytest.mark.parametrize("mech", [("uring",), ("gpu", "posix")])
def test_a_mechanism_that_cannot_read_such_a_disk_is_refused(mech: tuple[str, ...]) -> None:
    with pytest.raises(BadSetting, match=r"--mech .*/dev/libnvm0 is a disk under BaM's.*only mech 'gpu' reads"):
        measured_disk(msgspec.structs.replace(SHORT, mech=mech))
