"""Trains on a pool as the comparison that has started it asks: ``train.py POOL``."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
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


def main() -> None:
    """Train, and log the accuracy."""
    torch.set_num_threads(1)
    name = sys.argv[1]
    pool_seed = (penstock.current_run().parameters if penstock.current_run() else {}).get("seed", "0")
    pool = POOLS[name](int(pool_seed))
    images, labels = pool.train.pixels, torch.from_numpy(pool.train.labels)
    policy, epochs, seed, choosing = penstock.select.plan_of_run(
        len(pool.train), EPOCHS.get(name, 32), labels=pool.train.labels, data=pool.train
    )
    torch.manual_seed(seed)
    model = network(WIDTHS.get(name, 32))
    sampler = penstock.SelectionSampler(policy, seed=seed)
    loader = DataLoader(range(len(labels)), BATCH, sampler=sampler)  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-2)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        batches = math.ceil(len(sampler) / BATCH)
        for i, ids in enumerate(loader):
            part = (epoch + i / batches) / epochs
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * part))
            inputs = images[ids].flip(3) if torch.rand(()) < 0.5 else images[ids]
            losses = functional.cross_entropy(model(inputs), labels[ids], reduction="none")
            policy.report(ids, losses)
            optimizer.zero_grad()
            (losses * torch.from_numpy(sampler.weights(ids))).mean().backward()
            optimizer.step()
    reached = accuracy(model, pool.choosing if choosing else pool.test)
    penstock.log(accuracy=reached)
    print(f"accuracy {reached:.2f}")


if __name__ == "__main__":
    main()
