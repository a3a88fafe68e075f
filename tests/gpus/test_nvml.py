"""The GPUs of a machine, through NVML's own Python binding over a library made for the test."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from tests.fakes.nvml.fake_gpus import FakeGpus

from penstock.errors import GpuMissing
from penstock.gpus.nvml import devices, nvml, visible_gpus


def seen(machine: FakeGpus, given: str | None) -> list[str]:
    return [gpu.uuid for gpu in visible_gpus({} if given is None else {"CUDA_VISIBLE_DEVICES": given})]


def test_a_gpu_is_described_with_its_place_in_the_machine(fake_gpus: FakeGpus) -> None:
    fake_gpus.add()
    fake_gpus.add(name="NVIDIA L4", memory_bytes=24 << 30)
    (second,) = visible_gpus({"CUDA_VISIBLE_DEVICES": "1"})
    assert (second.index, second.name, second.memory_bytes, second.parent) == (1, "NVIDIA L4", 24 << 30, "")
    assert second.uuid.startswith("GPU-00000001-")


@pytest.mark.parametrize(
    ("given", "places"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        (" 1 , 2", [1, 2]),
        ("GPU-00000002", [2]),
        ("gpu-00000001-0000-4000-8000-000000000000,0", [1, 0]),
        ("1,7,0", [1]),
        ("-1,0", []),
        ("", []),
        ("GPU-0", []),  # the beginning of several
        ("0,GPU-dead,1", [0]),
        ("0,0", [0]),
        ("all", []),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(fake_gpus, given, places):
    uuids = [fake_gpus.add() for _ in range(3)]
    assert seen(fake_gpus, given) == [uuids[place] for place in places]


def test_instances_stand_in_place_of_a_gpu_in_mig_mode(fake_gpus: FakeGpus) -> None:
    plain, split = fake_gpus.add(), fake_gpus.add()
    migs = [fake_gpus.add_mig(1, "1g.10gb"), fake_gpus.add_mig(1, "3g.40gb")]
    assert seen(fake_gpus, None) == [plain, *migs]
    assert seen(fake_gpus, "1") == seen(fake_gpus, split) == migs
    assert seen(fake_gpus, migs[1]) == [migs[1]]
    large = visible_gpus({"CUDA_VISIBLE_DEVICES": migs[1]})[0]
    assert (large.index, large.parent, large.profile, large.memory_bytes) == (1, split, "3g.40gb", 40192 << 20)


def test_a_gpu_that_is_lost_or_knows_no_mig_hides_no_other(fake_gpus: FakeGpus) -> None:
    fake_gpus.add()
    old = fake_gpus.add(mig=None)
    fake_gpus.refuse("*", nvml().NVML_ERROR_GPU_IS_LOST, 0)
    assert seen(fake_gpus, None) == [old]
    assert seen(fake_gpus, "1") == [old]


def test_a_gpu_that_is_lost_once_it_was_listed_is_a_sentence(fake_gpus: FakeGpus) -> None:
    fake_gpus.add()
    fake_gpus.refuse("nvmlDeviceGetHandleByUUID", nvml().NVML_ERROR_GPU_IS_LOST)
    with pytest.raises(GpuMissing, match="NVML cannot be used: nvmlDeviceGetHandleByUUID: "):
        devices({})
    fake_gpus.refuse("nvmlDeviceGetCount", nvml().NVML_ERROR_UNKNOWN)
    with pytest.raises(GpuMissing, match="NVML cannot be used: nvmlDeviceGetCount: "):
        visible_gpus({})


def test_what_is_missing_is_said(fake_gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpus.refuse("nvmlInitWithFlags", 9)
    with pytest.raises(GpuMissing, match="NVML cannot be used: Driver Not Loaded"):
        nvml()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(GpuMissing, match=r'pip install "penstock\[gpu\]"'):
        nvml()


def test_many_processes_see_one_machine(fake_gpus: FakeGpus) -> None:
    uuid = fake_gpus.add()
    code = "import os; from penstock.gpus.nvml import *; print(*(gpu.uuid for gpu in visible_gpus(os.environ)))"
    command: Any = [sys.executable, "-c", code]
    assert subprocess.check_output(command, env=fake_gpus.environment, text=True).split() == [uuid]
