"""Cross-validation: five folds train at once on one feed, which loads each image once for all of them.

for fold in 0 1 2 3 4; do python examples/folds.py --fold $fold & done; wait
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

import penstock
from train import Digits, make_loader

FOLDS = 5


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
