"""Compares gradients of single samples, taken for a batch at once, with a backward pass for each sample.

python -m benchmarks.selection.gradients --json benchmarks/results/gradients.json

The network is that of the pools, on images of noise: what they show does not change the time. Arms take turns.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.claim import claim
from benchmarks.claims_report import report
from benchmarks.selection.pools import network
from torch import Tensor, nn
from torch.nn import functional

from penstock.scoring.gradients import Layer, layers_of, per_sample_gradients

SAMPLES = 256
REPEATS = 7


def one_by_one(model: nn.Module, layers: dict[str, Layer], inputs: Tensor, labels: Tensor) -> list[list[Tensor]]:
    """As LESS's code does: batches of one sample."""
    weights = [layer.weight for layer in layers.values()]
    found = []
    for i in range(len(inputs)):
        loss = functional.cross_entropy(model(inputs[i : i + 1]), labels[i : i + 1])
        found.append(list(torch.autograd.grad(loss, weights)))
    return found


def at_once(model: nn.Module, layers: dict[str, Layer], inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """As Penstock does."""
    return per_sample_gradients(layers, lambda: functional.cross_entropy(model(inputs), labels, reduction="none"))


def main() -> None:
    """Measure, and say whether the target is met."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False  # or the two ways to the same numbers differ in the third place
    model = network().eval().to(asked.device)
    layers = layers_of(model)
    inputs = torch.randn(SAMPLES, 3, 32, 32, device=asked.device)
    labels = torch.randint(10, (SAMPLES,), device=asked.device)
    plain, ours = one_by_one(model, layers, inputs, labels), at_once(model, layers, inputs, labels)
    for place, gradients in enumerate(ours.values()):
        expected = torch.stack([each[place] for each in plain])
        # Where rounding moves a ReLU over 0, or the largest of a pool, a sample's gradient moves a little.
        off = (gradients - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1)
        assert float(off.median()) < 1e-4 and float(off.max()) < 0.05
    taken: dict[str, list[float]] = {"one by one": [], "at once": []}
    arms: dict[str, Any] = {"one by one": one_by_one, "at once": at_once}
    for _ in range(REPEATS):
        for name, arm in arms.items():
            began = time.perf_counter()
            arm(model, layers, inputs, labels)
            if asked.device != "cpu":
                torch.cuda.synchronize()
            taken[name].append(time.perf_counter() - began)
    ratios = [slow / fast for slow, fast in zip(taken["one by one"], taken["at once"], strict=True)]
    least = 4.0 if asked.device == "cpu" else 10.0
    claims = [claim("per-sample gradients, batched, against batches of one", "x", ratios, least=least)]
    report(
        claims, asked.json, seconds=taken, samples=SAMPLES, threads=torch.get_num_threads(), device=asked.device
    )


if __name__ == "__main__":
    main()
