"""Cross-validation: five folds train at once on one feed, which loads each image once for all of them.

for fold in 0 1 2 3 4; do python examples/folds.py --fold $fold & done; wait
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

import penstock

FOLDS = 5


class Digits(Dataset[tuple[torch.Tensor, int]]):
    """Noisy 28x28 images of ten patterns: small enough for any machine, and learnable."""

    def __init__(self, size: int = 4000) -> None:
        self.patterns = torch.rand(10, 28, 28, generator=torch.Generator().manual_seed(0))
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        label = i % 10
        noise = torch.rand(28, 28, generator=torch.Generator().manual_seed(i))
        return (self.patterns[label] * 128 + noise * 127).to(torch.uint8), label


def make_loader() -> DataLoader[tuple[torch.Tensor, int]]:
    return DataLoader(Digits(), batch_size=64, shuffle=True, num_workers=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fold", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    fold_of = np.random.default_rng(0).permutation(len(Digits())) % FOLDS  # the same in every run
    held_out = np.flatnonzero(fold_of == arguments.fold)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    # It was: loader = DataLoader(Subset(Digits(), np.flatnonzero(fold_of != fold)), shuffle=True, ...)
    # expect=FOLDS: nobody's first epoch begins before all are there.
    loader = penstock.share(make_loader, "folds", select=fold_of != arguments.fold, expect=FOLDS)
    unseen = DataLoader(Subset(Digits(), held_out.tolist()), batch_size=256)

    for epoch in range(arguments.epochs):
        trained = np.empty(0, np.int64)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images.float() / 255), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            trained = np.concatenate([trained, loader.ids])
        assert np.array_equal(np.sort(trained), np.flatnonzero(fold_of != arguments.fold))
        with torch.no_grad():
            right = sum(int((model(images.float() / 255).argmax(1) == labels).sum()) for images, labels in unseen)
        print(f"fold {arguments.fold}: epoch {epoch}, {len(trained)} images, held out {right / len(held_out):.2f}")
    loader.close()


if __name__ == "__main__":
    main()
