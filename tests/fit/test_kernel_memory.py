"""A script for which the kernel has no more memory, in a memory cgroup of its own: only root can make one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.forked import eventually

from penstock.linux.cgroups import cgroup_folders

pytestmark = pytest.mark.soak  # on a busy machine throughput stops growing before memory is lacking

LIMIT_BYTES = 1 << 30
SCRIPT = """
import sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset
size = int(sys.argv[1])
held = bytearray(size << 21)
while True:
    for batch in DataLoader(TensorDataset(torch.arange(100_000)), size):
        time.sleep(0.02)
"""


@pytest.fixture
def cgroup() -> Iterator[Path]:
    version, mine = next(cgroup_folders("memory"), (0, Path("nowhere")))
    folder = mine / f"penstock-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")).write_text(str(LIMIT_BYTES))
    except OSError:
        pytest.skip("memory cgroups are made by root, where they are mounted to be written")
    yield folder
    eventually(lambda: not (folder / "cgroup.procs").read_text())
    folder.rmdir()


def test_sizes_at_which_the_kernel_kills_are_out_of_memory(cgroup, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    advise = [
        sys.executable,
        "-m",
        "penstock",
        "advise",
        "batch-size",
        "--json",
        "--store",
        str(tmp_path / "store"),
    ]
    inside = ["sh", "-c", f'echo $$ > {cgroup}/cgroup.procs; exec "$@"', "sh", *advise]
    asked = subprocess.run(
        [*inside, "--", "train.py", "{}"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert asked.returncode == 0, asked.stderr
    answer = json.loads(asked.stdout)
    lacking = [each for each in answer["failed"] if each["out_of_memory"]]
    assert lacking and all(each["out_of_memory"] for each in answer["failed"])
    assert any("kernel" in each["failed"] for each in lacking), lacking
    assert 64 <= answer["largest"] < min(each["value"] for each in lacking) <= 512
