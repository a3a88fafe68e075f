"""Compares gradients of single samples, taken for a batch at once, with a backward pass for each sample.

python -m benchmarks gradients --json benchmarks/results/gradients.json

The images are noise: what they show does not change the time. Arms take turns.
Gradients are dropped when they have been taken, as they are when they have been projected.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
from benchmarks.claim import ResultsFile, claim, report
from torch import Tensor, nn
from torch.nn import functional

from penstock.select.gradients import SampleGradients

SAMPLES = 256
BATCH_SIZES = (64, 128, 256)
REPEATS = 21


def network() -> nn.Module:
    """Three convolutions and a linear layer: 96,000 parameters."""
    layers: list[nn.Module] = []
    for inputs, outputs, kernel, stride in ((3, 32, 4, 2), (32, 64, 3, 1), (64, 128, 3, 1)):
        layers += [
            nn.Conv2d(inputs, outputs, kernel, stride, 1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    layers[-1] = nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 10))


def one_by_one(model: nn.Module, inputs: Tensor, labels: Tensor) -> Iterator[list[Tensor]]:
    """As LESS's code does: batches of one sample."""
    weights = list(model.parameters())
    for i in range(len(inputs)):
        loss = functional.cross_entropy(model(inputs[i : i + 1]), labels[i : i + 1])
        yield list(torch.autograd.grad(loss, weights))


def at_once(
    model: nn.Module, gradients: SampleGradients, inputs: Tensor, labels: Tensor, batch_size: int
) -> Iterator[Tensor]:
    """As Penstock does: some rows of a parameter for all samples of a batch."""
    for some, theirs in zip(inputs.split(batch_size), labels.split(batch_size), strict=True):
        for rows in gradients.by_rows(partial(_losses, model, some, theirs), len(some)):
            yield rows.gradients


def _losses(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(model(inputs), labels, reduction="none")


def main(file: ResultsFile = None, device: str = "cpu") -> None:
    torch.backends.cudnn.allow_tf32 = False  # or the two ways to the same numbers differ in the third place
    model = network().eval().to(device)
    inputs = torch.randn(SAMPLES, 3, 32, 32, device=device)
    labels = torch.randint(10, (SAMPLES,), device=device)
    gradients = SampleGradients(model, partial(_losses, model, inputs, labels), SAMPLES)
    assert not gradients.left_out
    plain = [torch.cat([each.flatten() for each in sample]) for sample in one_by_one(model, inputs, labels)]
    expected = torch.stack(plain)
    ours = torch.cat([each.flatten(1).clone() for each in at_once(model, gradients, inputs, labels, SAMPLES)], 1)
    # Where rounding moves a ReLU over 0, or the largest of a pool, a sample's gradient moves a little.
    off = (ours - expected).norm(dim=1) / expected.norm(dim=1)
    assert float(off.median()) < 1e-4 and float(off.max()) < 0.05
    arms: dict[str, Callable[[], Iterable[object]]] = {
        "one by one": partial(one_by_one, model, inputs, labels),
        **{f"batches of {size}": partial(at_once, model, gradients, inputs, labels, size) for size in BATCH_SIZES},
    }
    taken: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(REPEATS):
        for name, arm in arms.items():
            began = time.perf_counter()
            for _ in arm():
                pass
            if device != "cpu":
                torch.cuda.synchronize()
            taken[name].append(time.perf_counter() - began)
    claims = [
        claim(
            f"per-sample gradients, batches of {size}, against batches of one",
            "x",
            [slow / fast for slow, fast in zip(taken["one by one"], taken[f"batches of {size}"], strict=True)],
            least=4.0 if device == "cpu" else 10.0,
        )
        for size in BATCH_SIZES
    ]
    report(claims, file, seconds=taken, samples=SAMPLES, threads=torch.get_num_threads(), device=device)
