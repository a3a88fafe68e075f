"""Trains on a pool of texts as the comparison that has started it asks: ``train_texts.py POOL``."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader

import penstock
from penstock.select.task import cross_entropy

sys.path.insert(0, str(Path(__file__).parent))
from texts import NETWORKS, NOTHING, POOLS, Texts

BATCH, LEARNING_RATE = 32, 1e-3
EPOCHS = {"tweets": 12, "questions": 4}


def accuracy(model: torch.nn.Module, texts: Texts) -> float:
    """Return the percentage of labels that the model finds: classes, or the answers' bytes."""
    model.eval()
    right = there = 0
    with torch.no_grad():
        for tokens, labels in zip(texts.tokens.split(256), texts.labels.split(256), strict=True):
            found = model(tokens).argmax(-1)
            right += int((found == labels).sum())
            there += int((labels != NOTHING).sum())
    return 100 * right / there


def main() -> None:
    """Train, and log the accuracy."""
    torch.set_num_threads(1)
    name = sys.argv[1]
    asked = penstock.current_run()
    pool = POOLS[name](int(asked.parameters.get("seed", "0")) if asked else 0)
    texts = pool.train
    by = texts.labels.numpy() if texts.labels.dim() == 1 else None
    policy, epochs, seed, choosing = penstock.select.plan_of_run(len(texts), EPOCHS[name], labels=by, data=texts)
    torch.manual_seed(seed)
    model = NETWORKS[name]()
    sampler = penstock.SelectionSampler(policy, seed=seed)
    loader = DataLoader(range(len(texts)), BATCH, sampler=sampler)  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-2)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        batches = math.ceil(len(sampler) / BATCH)
        for i, ids in enumerate(loader):
            part = (epoch + i / batches) / epochs
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * part))
            losses = cross_entropy(model(texts.tokens[ids]), texts.labels[ids])
            policy.report(ids, losses)
            optimizer.zero_grad()
            (losses * torch.from_numpy(sampler.weights(ids))).mean().backward()
            optimizer.step()
    reached = accuracy(model, pool.choosing if choosing else pool.test)
    penstock.log(accuracy=reached)
    print(f"accuracy {reached:.2f}")


if __name__ == "__main__":
    main()
