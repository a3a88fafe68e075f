"""On a real GPU: batches as JAX's and CuPy's arrays, and rows of different length."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.feed.trainer.test_ragged_batches import ids_of, tree

import penstock

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

READS = """
import os, sys
import penstock
framework = sys.argv[1]
seen = []
with penstock.attach("feed", 100, device="cuda", framework=framework) as loader:
    for batch in loader:
        if framework == "jax":
            import jax
            assert isinstance(batch["bytes"], jax.Array)
            assert batch["bytes"].devices() == {jax.devices("cuda")[0]}, batch["bytes"].devices()
        else:
            import cupy
            assert isinstance(batch["bytes"], cupy.ndarray)
            assert batch["bytes"].device.id == 0
        wrong = (batch["bytes"] != (batch["id"] % 251).astype("uint8")[:, None]).sum()
        assert int(wrong) == 0, int(wrong)
        seen += batch["id"].tolist()
assert sorted(seen) == list(range(5000)), len(seen)
"""


@pytest.mark.parametrize("memory", ["host", "cuda"])
@pytest.mark.parametrize("framework", ["jax", "cupy"])
def test_another_framework_gets_the_samples_where_they_lie(serve, framework, memory, monkeypatch):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    ids = np.arange(5000, dtype=np.int32)
    payload = np.repeat((ids % 251).astype(np.uint8)[:, None], 4096, 1)
    serve(penstock.ArraySource({"id": ids, "bytes": payload}, batch_size=64), memory=memory, epochs=1)
    command = [sys.executable, "-c", READS, framework]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("memory", ["host", "cuda"])
@pytest.mark.parametrize("batch_size", [None, 7, 200])
def test_rows_of_different_length_are_cut_and_padded(serve: Any, memory: str, batch_size: int | None) -> None:
    serve(penstock.ArraySource(tree(of=torch.from_numpy), batch_size=10, segments=3), memory=memory, window="4MiB")
    with penstock.attach("feed", batch_size, device="cuda") as loader:
        for _ in range(2):
            batches = ids_of(loader, torch.Tensor)
            assert sorted(i for ids in batches for i in ids) == list(range(97))


def test_unmodified_scripts_share_what_they_pin(tmp_path: Path) -> None:
    """An unmodified script under --share, whose own loader pins and copies."""
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "data = TensorDataset(torch.arange(4000), torch.rand(4000, 256))\n"
        "seen = []\n"
        "for ids, rows in DataLoader(data, 64, shuffle=True, num_workers=2, pin_memory=True):\n"
        "    assert ids.is_pinned() and rows.is_pinned()\n"
        "    seen.append(ids.cuda(non_blocking=True))\n"
        "assert sorted(torch.cat(seen).tolist()) == list(range(4000))\n"
    )
    command = [sys.executable, "-m", "penstock", "run", "--share", "-n", "2", "--", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100, cwd=tmp_path)
    for feed in penstock.feeds():  # they would wait for other trainers
        penstock.stop(feed.name)
    assert done.returncode == 0, done.stdout + done.stderr
