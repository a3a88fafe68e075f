"""Small tasks that tests score."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from penstock.select.task import Task

SAMPLES = 50


class Images:
    """Images of noise, with a class that shows in their brightness."""

    def __init__(self, samples: int = SAMPLES, seed: int = 0) -> None:
        draws = np.random.default_rng(seed)
        self.labels = draws.integers(0, 3, samples)
        self.images = (draws.standard_normal((samples, 2, 8, 8)) + self.labels[:, None, None, None]).astype("f4")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, id: int) -> tuple[Tensor, int]:
        return torch.from_numpy(self.images[id]), int(self.labels[id])


class Texts:
    """Sequences of words, each followed by the next number."""

    def __init__(self, samples: int = SAMPLES, seed: int = 0) -> None:
        self.first = np.random.default_rng(seed).integers(0, 11, samples)

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, id: int) -> tuple[Tensor, Tensor]:
        words = (self.first[id] + torch.arange(7)) % 11
        labels = words[1:].clone()
        labels[:2] = -100
        return words[:-1], labels


def convolutions(width: int = 4) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, width, 3, stride=2, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=2, dilation=2, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(3),
    )


class Language(nn.Module):
    """A linear layer that is used twice, over positions, and one that gives words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.twice = nn.Linear(6, 6)
        self.out = nn.Linear(6, 11)

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.twice(torch.relu(self.twice(self.words(words))))
        return self.out(torch.relu(hidden))


def convolutional() -> nn.Module:
    model = convolutions()
    model(torch.zeros(2, 2, 8, 8))
    return model


def small() -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(2, 3))


def images(**changes: Any) -> Task:
    given: dict[str, Any] = {"data": Images(), "make_model": convolutional, "validation": Images(9, seed=1)}
    return Task(**given | changes)


def texts(**changes: Any) -> Task:
    given: dict[str, Any] = {"data": Texts(), "make_model": Language, "validation": Texts(9, seed=1)}
    given["mask"] = lambda batch: torch.ones_like(batch[0])
    return Task(**given | changes)
