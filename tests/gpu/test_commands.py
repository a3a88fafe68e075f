"""On a real GPU: commands that watch, profile and try out trainings there."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.runs.record import RunRecord
from penstock.runs.store import Store

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

TRAINS = """
import sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

size = int(sys.argv[1])
wide = int(sys.argv[2])
net = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.01)
data = TensorDataset(torch.rand(1 << 15, 1024), torch.randint(10, (1 << 15,)))
until = time.monotonic() + float(sys.argv[3])
while time.monotonic() < until:
    for x, y in DataLoader(data, size, shuffle=True, drop_last=True):
        optimizer.zero_grad()
        kept = torch.ones(size, wide, dtype=torch.uint8, device="cuda")
        loss = nn.functional.cross_entropy(net(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
        del kept
        if time.monotonic() > until:
            break
print("loss", float(loss))
"""
MIB = 1 << 20


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_STORE", str(tmp_path / "store"))
    Path("train.py").write_text(TRAINS)


def penstock(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)
    print(done.stdout, done.stderr)
    return done


def last_run() -> tuple[RunRecord, dict[str, Any]]:
    with Store.open(Path("store")) as store:
        (record,) = store.runs()
        return record, dict(store.series(record.id))


def test_a_run_keeps_its_gpus_series_and_ends_with_what_it_took() -> None:
    done = penstock("run", "--listeners", "gpu,gpm,energy", "--", "train.py", "256", str(MIB), "8")
    assert done.returncode == 0, done.stderr
    record, series = last_run()
    assert record.status == "finished"
    found = {name: each.values.max() for name, each in series.items() if len(each.values)}
    print(found)
    assert found["gpu.0.memory_bytes"] > 256 * MIB
    assert found["gpu.0.power_w"] > 30
    assert any(name.startswith("energy.gpu") for name in found)
    assert any(name.startswith("feed.wait") for name in found), "waits are recorded by default"


def test_a_torch_profile_has_the_gpus_kernels() -> None:
    done = penstock("run", "--profile", "torch", "--", "train.py", "256", "1", "4")
    assert done.returncode == 0, done.stderr
    record, _ = last_run()
    with Store.open(Path("store")) as store:
        files = [path for path in store.folder_of(record.id).rglob("*") if path.is_file()]
    assert any("gemm" in path.read_text(errors="replace") for path in files), files


@pytest.mark.skipif(not shutil.which("ncu"), reason="no ncu here")
def test_ncu_keeps_its_report() -> None:
    done = penstock("run", "--profile", "ncu -c 5", "--", "train.py", "256", "1", "1")
    assert done.returncode == 0, done.stderr
    record, _ = last_run()
    with Store.open(Path("store")) as store:
        assert list(store.folder_of(record.id).rglob("*.ncu-rep"))


def test_the_batch_size_that_fits_is_found_under_a_limit_of_the_gpus_memory() -> None:
    words = ("advise", "batch-size", "--memory", "8GiB", "--time-limit", "45s", "--json")
    done = penstock(*words, "--", "train.py", "{}", str(32 * MIB), "1000")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert "GPU" in done.stdout or "gpu" in done.stdout
    assert 64 <= answer["largest"] <= 256, answer


def test_a_schedules_profile_measures_what_a_sample_costs_on_the_gpu() -> None:
    runs = [{"command": "train.py 256 1 1000", "name": "one"}]
    Path("spec.yaml").write_text(json.dumps({"groups": [{"runs": runs}]}))
    done = penstock("schedule", "profile", "spec.yaml", "--json")
    assert done.returncode == 0, done.stderr
    print(json.loads(done.stdout))
