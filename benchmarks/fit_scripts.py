"""Trainings of several kinds for ``benchmarks.fit``: ``fit_scripts.py KIND --batch-size N --workers N``."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAMPLES = 50_000


class Made(Dataset[Any]):
    """Samples that are computed from their number, at a price."""

    def __init__(self, shape: tuple[int, ...], *, words: bool = False, blurs: int = 0) -> None:
        self._shape, self._words, self._blurs = shape, words, blurs

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        if self._words:
            return torch.randint(1000, self._shape, generator=generator), index % 10
        sample = torch.rand(self._shape, generator=generator)
        for _ in range(self._blurs):
            sample = nn.functional.avg_pool2d(sample, 3, 1, 1)
        return sample, index % 10


class Sequences(nn.Module):
    """A recurrent net or a transformer over words."""

    def __init__(self, net: nn.Module, width: int) -> None:
        super().__init__()
        self.words, self.net, self.out = nn.Embedding(1000, width), net, nn.Linear(width, 10)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        found = self.net(self.words(batch))
        return self.out((found[0] if isinstance(found, tuple) else found)[:, -1])


def convolution(width: int) -> nn.Module:
    layers = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * width, 10))


def training(kind: str) -> tuple[Dataset[Any], nn.Module]:
    match kind:
        case "small":
            return Made((20,)), nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))
        case "convolution":
            return Made((3, 32, 32)), convolution(32)
        case "recurrent":
            return Made((30,), words=True), Sequences(nn.GRU(64, 64, batch_first=True), 64)
        case "transformer":
            layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
            return Made((40,), words=True), Sequences(nn.TransformerEncoder(layer, 2), 64)
        case "tabular":
            wide = [nn.Linear(100, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
            return Made((100,)), nn.Sequential(*wide)
        case _:
            return Made((3, 64, 64), blurs=4), convolution(4)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # two that spin for each other halve in speed whenever a third process runs
    torch.manual_seed(0)
    data, net = training(arguments.kind)
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    loader = DataLoader(data, arguments.batch_size, shuffle=True, num_workers=arguments.workers)
    for _ in range(1000):
        for batch, target in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(batch), target).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
