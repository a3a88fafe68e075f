"""Sixty-four trainers at once, each a process that knows NumPy only."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

import penstock

TRAINER = """
import sys, numpy as np, penstock
assert "torch" not in sys.modules
seen = []
with penstock.attach("many", int(sys.argv[1])) as loader:
    for _ in range(2):
        ids = np.concatenate([batch["id"] for batch in loader])
        assert np.array_equal(np.sort(ids), np.arange(3000)), "lost or repeated"
print("done")
"""


def test_sixty_four_trainers_finish_with_every_sample_once(serve):
    source = penstock.ArraySource({"id": np.arange(3000), "x": np.zeros((3000, 64), np.float32)}, batch_size=64)
    serve(source, "many", window="4MiB")
    trainers = [
        subprocess.Popen([sys.executable, "-c", TRAINER, str(7 + i)], stdout=subprocess.PIPE, text=True)
        for i in range(64)
    ]
    ended = [trainer.communicate(timeout=100)[0] for trainer in trainers]
    assert ended == ["done\n"] * 64
