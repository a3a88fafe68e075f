"""Sixty-four trainers at once, each a process that knows NumPy only."""

from __future__ import annotations

import numpy as np
from tests.forked import Forked

import penstock

TRAINER = """
import sys, numpy as np, penstock
assert "torch" not in sys.modules
seen = []
with penstock.attach("many", int(sys.argv[1])) as loader:
    for _ in range(2):
        ids = np.concatenate([batch["id"] for batch in loader])
        assert np.array_equal(np.sort(ids), np.arange(3000)), "lost or repeated"
"""


def test_sixty_four_trainers_finish_with_every_sample_once(serve, servers, tmp_path):
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    source = penstock.ArraySource({"id": np.arange(3000), "x": np.zeros((3000, 64), np.float32)}, batch_size=64)
    serve(source, "many", window="4MiB")
    trainers = [Forked(servers["numpy"], str(script), [str(7 + i)], tmp_path / f"{i}") for i in range(64)]
    for trainer in trainers:
        assert trainer.wait() == 0, trainer.output
