"""On a real GPU with NVIDIA's own control program: what the fakes of tests/runs/modes promise."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.forked import eventually

pytest.importorskip("pynvml")

from penstock.errors import PenstockError
from penstock.gpus.nvml import visible_gpus
from penstock.runs.modes.daemon import PROGRAM, clients
from penstock.runs.modes.mps import unusable

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
    pytest.mark.skipif(not shutil.which(PROGRAM), reason=f"no {PROGRAM} here"),
]

USES_THE_GPU = """
import json, os, sys, time, torch
x = torch.ones(1 << 20, device="cuda")
shown = {name: value for name, value in os.environ.items() if name.startswith("CUDA_")}
shown["uuid"] = str(torch.cuda.get_device_properties(0).uuid)
shown["sms"] = torch.cuda.get_device_properties(0).multi_processor_count
print(json.dumps(shown), flush=True)
while not os.path.exists("go"):
    x += 1
    torch.cuda.synchronize()
    time.sleep(0.05)
"""


@pytest.fixture
def gpu() -> str:
    try:
        first = visible_gpus(os.environ)[:1]
        why = unusable(first)
    except PenstockError as error:
        pytest.skip(str(error))
    if why:
        pytest.skip(why)
    return first[0].uuid


def started(tmp_path: Path, *words: str) -> subprocess.Popen[bytes]:
    (tmp_path / "uses.py").write_text(USES_THE_GPU)
    options = ["--store", "store", "--devices", "0", "--mode", "mps", *words]
    command = [sys.executable, "-m", "penstock", "run", *options, "uses.py"]
    with (tmp_path / "out").open("wb") as out, (tmp_path / "errors").open("wb") as errors:
        return subprocess.Popen(command, cwd=tmp_path, stdout=out, stderr=errors, start_new_session=True)


def told(tmp_path: Path, process: subprocess.Popen[bytes], runs: int) -> list[dict[str, Any]]:
    """Wait until so many runs have shown what they see."""
    eventually(lambda: len(shown(tmp_path)) == runs or process.poll() is not None)
    seen = shown(tmp_path)
    assert len(seen) == runs, (process.poll(), *((tmp_path / name).read_text() for name in ("out", "errors")))
    return seen


def shown(tmp_path: Path) -> list[dict[str, Any]]:
    lines = (tmp_path / "out").read_text(errors="replace").splitlines()
    return [json.loads(line[line.index("{") :]) for line in lines if "{" in line]


def test_runs_are_clients_of_a_real_daemon_that_ends_with_them(tmp_path: Path, gpu: str):
    process = started(tmp_path, "-n", "2", "--mps-threads", "50")
    first, second = told(tmp_path, process, 2)
    pipes = first["CUDA_MPS_PIPE_DIRECTORY"]
    assert pipes == second["CUDA_MPS_PIPE_DIRECTORY"]
    assert first["uuid"].replace("-", "") in gpu.replace("-", "")
    assert first["sms"] < torch.cuda.get_device_properties(0).multi_processor_count, "half of the threads"
    assert len(clients(pipes) or {}) == 2
    (tmp_path / "go").touch()
    assert process.wait() == 0, (tmp_path / "errors").read_text()
    assert "without MPS" not in (tmp_path / "errors").read_text()
    assert not os.path.exists(pipes)


def test_a_real_daemon_does_not_outlive_a_penstock_run_that_is_killed(tmp_path: Path, gpu: str):
    process = started(tmp_path)
    (shows,) = told(tmp_path, process, 1)
    pipes = shows["CUDA_MPS_PIPE_DIRECTORY"]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    eventually(lambda: not os.path.exists(pipes))
    assert clients(pipes) is None
