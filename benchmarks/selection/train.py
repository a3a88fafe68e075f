"""Trains on a pool of images as the comparison that has started it asks: ``train.py POOL``."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader

import penstock

sys.path.insert(0, str(Path(__file__).parent))
from pools import EPOCHS, POOLS, WIDTHS, Images, network

BATCH, LEARNING_RATE = 64, 3e-3


def accuracy(model: torch.nn.Module, images: Images) -> float:
    """Return the percentage of images whose class the model finds."""
    model.eval()
    with torch.no_grad():
        found = torch.cat([model(part).argmax(1) for part in images.pixels.split(1000)])
    return float((found == torch.from_numpy(images.labels)).float().mean()) * 100


def losses_of(model: torch.nn.Module, data: Images, ids: Tensor) -> Tensor:
    inputs = data.pixels[ids].flip(3) if torch.rand(()) < 0.5 else data.pixels[ids]
    return functional.cross_entropy(model(inputs), torch.from_numpy(data.labels)[ids], reduction="none")


def train(
    make_pool: Callable[[int], Any],
    make_model: Callable[[], torch.nn.Module],
    epochs: int,
    batch: int,
    rate: float,
    losses_of: Callable[..., Tensor],
    accuracy: Callable[..., float],
) -> None:
    """Train on what is selected of a pool, for so many epochs if all of it is, and log the accuracy."""
    torch.set_num_threads(1)
    asked = penstock.current_run()
    pool = make_pool(int(asked.parameters.get("seed", "0")) if asked else 0)
    data, labels = pool.train, torch.as_tensor(pool.train.labels)
    by = labels.numpy() if labels.dim() == 1 else None
    policy, epochs, seed, choosing = penstock.select.plan_of_run(len(data), epochs, labels=by, data=data)
    torch.manual_seed(seed)
    model = make_model()
    sampler = penstock.SelectionSampler(policy, seed=seed)
    loader = DataLoader(range(len(data)), batch, sampler=sampler)  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-2)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        batches = math.ceil(len(sampler) / batch)
        for i, ids in enumerate(loader):
            part = (epoch + i / batches) / epochs
            optimizer.param_groups[0]["lr"] = rate * 0.5 * (1 + math.cos(math.pi * part))
            losses = losses_of(model, data, ids)
            policy.report(ids, losses)
            optimizer.zero_grad()
            (losses * torch.from_numpy(sampler.weights(ids))).mean().backward()
            optimizer.step()
    reached = accuracy(model, pool.choosing if choosing else pool.test)
    penstock.log(accuracy=reached)
    print(f"accuracy {reached:.2f}")


if __name__ == "__main__":
    name, width = sys.argv[1], WIDTHS.get(sys.argv[1], 32)
    train(POOLS[name], lambda: network(width), EPOCHS.get(name, 32), BATCH, LEARNING_RATE, losses_of, accuracy)
