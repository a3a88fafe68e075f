"""Trains on a pool of texts as the comparison that has started it asks: ``train_texts.py POOL``."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

from penstock.select.task import cross_entropy

sys.path.insert(0, str(Path(__file__).parent))
from texts import NETWORKS, NOTHING, POOLS, Texts

from train import train

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


def losses_of(model: torch.nn.Module, texts: Texts, ids: Tensor) -> Tensor:
    return cross_entropy(model(texts.tokens[ids]), texts.labels[ids])


if __name__ == "__main__":
    name = sys.argv[1]
    train(POOLS[name], NETWORKS[name], EPOCHS[name], BATCH, LEARNING_RATE, losses_of, accuracy)
