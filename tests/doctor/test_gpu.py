"""What doctor says of a GPU, with directories, processes and an NVML made for the test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.fakes.gpu import FakeGpu
from tests.fakes.mps.fake_mps import PROGRAM
from tests.fakes.nvml.fake_gpus import FakeGpus

import penstock
from penstock.doctor.checks import pinned_ring
from penstock.doctor.devices import driver, mode_mps, mps, seen_devices
from penstock.feed.statistics import FeederStatistics

FIRST, SECOND = "GPU-6f1d2c3b-0000", "GPU-a0b1c2d3-9999"


@pytest.fixture
def daemon(tmp_path: Path) -> str:
    """The pipe directory of an MPS control daemon."""
    pipes = tmp_path / "mps"
    pipes.mkdir()
    os.mkfifo(pipes / "control")
    return str(pipes)


@pytest.fixture
def on_gpu(serve: Any) -> Iterator[Callable[[dict[str, str]], FeederStatistics]]:
    """The statistics of a feed on a GPU whose feeder is a process with this environment."""
    started: list[subprocess.Popen[bytes]] = []

    def start(environment: dict[str, str]) -> FeederStatistics:
        code = "print(flush=True); input()"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen([sys.executable, "-c", code], env=environment, **pipes)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        of_host = serve([1], f"feed {len(started)}").statistics()
        return msgspec.structs.replace(of_host, name="train", pid=process.pid, sharing=f"ring on {FIRST}")

    yield start
    for process in started:
        process.communicate(b"\n")


def test_a_daemon_that_serves_this_user_is_found_by_its_control_pipe(daemon: str) -> None:
    (found,) = mps({"CUDA_MPS_PIPE_DIRECTORY": daemon}, [])
    assert found.verdict == "works"
    client = "this process would be its client; a fault of one client"
    assert found.found.startswith(f"a daemon serves {daemon}; {client}")


def test_a_pipe_directory_that_nobody_serves_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "control").touch()  # a file is no pipe
    (found,) = mps({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}, [])
    assert found.verdict == "limited"
    assert "unset CUDA_MPS_PIPE_DIRECTORY" in found.remedy


def test_a_feeder_of_the_same_daemon_is_right_whatever_path_leads_there(daemon: str, tmp_path: Path, on_gpu: Any):
    (tmp_path / "link").symlink_to(daemon)
    feed = on_gpu({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "link")})
    _, found = mps({"CUDA_MPS_PIPE_DIRECTORY": daemon}, [feed])
    assert (found.what, found.verdict) == ("feed 'train'", "works")
    assert f"process {feed.pid}" in found.found


def test_a_feeder_outside_the_daemon_is_told_with_what_to_do(daemon: str, tmp_path: Path, on_gpu: Any) -> None:
    nobody = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "nobody")}
    _, found = mps({"CUDA_MPS_PIPE_DIRECTORY": daemon}, [on_gpu(nobody)])
    assert found.verdict == "limited"
    assert f"start it with CUDA_MPS_PIPE_DIRECTORY={daemon}" in found.remedy
    _, found = mps(nobody, [on_gpu({"CUDA_MPS_PIPE_DIRECTORY": daemon})])
    assert found.remedy == f"start trainers with CUDA_MPS_PIPE_DIRECTORY={daemon}"


def test_feeds_on_the_host_have_nothing_to_do_with_mps(daemon: str, serve: Any) -> None:
    serve([1])
    assert len(list(mps({"CUDA_MPS_PIPE_DIRECTORY": daemon}, penstock.feeds()))) == 1


@pytest.mark.parametrize(
    ("given", "uuids", "verdict", "says"),
    [
        (None, [FIRST], "works", f"cuda:0 is {FIRST}"),
        ("1,0", [SECOND, FIRST], "works", f"cuda:1 is {FIRST}"),
        ("GPU-a0b1", [SECOND], "works", SECOND),
        ("", [], "limited", "shows none"),
        ("0,7", [FIRST], "limited", "no device is 7"),
        ("GPU-dead", [], "limited", "no device is GPU-dead"),
        ("-1", [], "limited", "no device is -1"),
    ],
)
def test_devices_are_listed_and_names_of_none_reported(given: Any, uuids: Any, verdict: str, says: str) -> None:
    found = seen_devices({} if given is None else {"CUDA_VISIBLE_DEVICES": given}, uuids, 2)
    assert (found.verdict, says in found.found) == (verdict, True), found


@pytest.mark.parametrize(("mode", "verdict"), [(0, "works"), (2, "fails"), (3, "limited")])
def test_nvml_tells_driver_mig_and_compute_mode(fake_gpus: FakeGpus, mode: int, verdict: str) -> None:
    fake_gpus.add(uuid=FIRST, mig=None, gpm=None, compute_mode=mode)
    version, device = driver()
    assert version.found.startswith("driver 580.")
    assert device.verdict == verdict
    assert device.found.startswith(f"{FIRST}, MIG none, GPM none (it begins with Hopper), compute mode ")


def test_a_gpu_that_is_lost_meanwhile_is_told(fake_gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpus.add(uuid=FIRST)
    fake_gpus.refuse("nvmlDeviceGetHandleByUUID", 15)
    _, device = driver()
    assert (device.verdict, device.found) == ("fails", f"{FIRST} is lost")
    monkeypatch.setenv("PATH", str(PROGRAM.parent))
    assert "is lost" in mode_mps({}).found


def test_mig_is_told_with_its_instances_and_who_makes_them(fake_gpus):
    fake_gpus.add()
    fake_gpus.add()
    instance = fake_gpus.add_mig(1, "3g.40gb")
    _, first, second, mig = driver()
    assert "MIG off, GPM works" in first.found
    assert f"MIG on (3g.40gb {instance})" in second.found
    assert (mig.what, mig.verdict, "nvidia-smi mig -cgi" in mig.found) == ("MIG", "works", True)


def test_without_nvml_or_a_driver_that_is_said(fake_gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpus.refuse("nvmlInitWithFlags", 9)
    (found,) = driver()
    assert (found.verdict, "Driver Not Loaded" in found.found) == ("limited", True)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    (found,) = driver()
    assert "not installed" in found.found
    assert found.remedy == 'pip install "penstock[gpu]"'


@pytest.mark.parametrize(("pins", "verdict"), [(True, "works"), (False, "limited")])
def test_a_pinned_ring_is_tried_as_a_trainer_maps_it(pins: bool, verdict: str) -> None:
    gpu = FakeGpu(pins=pins)
    found = pinned_ring(gpu)
    assert (found.what, found.verdict) == ("pinned ring", verdict)
    assert not gpu.pinned
    assert "ulimit" not in found.remedy, "the driver does not count what it pins there"


def test_mode_mps_works_where_a_daemon_could_be_started(daemon, fake_gpus, monkeypatch):
    assert mode_mps({}).found == "penstock run cannot start MPS daemons: no GPU is visible"
    uuid = fake_gpus.add()
    found = mode_mps({})
    assert (found.verdict, "no nvidia-cuda-mps-control on the PATH" in found.found) == ("limited", True)
    monkeypatch.setenv("PATH", str(PROGRAM.parent))
    found = mode_mps({"CUDA_MPS_PIPE_DIRECTORY": "/nowhere"})
    feeds = "; a feed that a run starts outlives its daemon: it is no client, and keeps its ring on the host"
    assert (found.verdict, found.found) == ("works", f"penstock run can start MPS daemons on {uuid}{feeds}")
    told = f"; runs in other modes would be clients of the daemon at {daemon}, too{feeds}"
    assert mode_mps({"CUDA_MPS_PIPE_DIRECTORY": daemon}).found.endswith(told)
    fake_gpus.set(0, compute_mode=2)
    assert "lets nobody compute" in mode_mps({}).found
