"""An image classifier. Start it several times at once: all runs read one loader.

python examples/train.py --width 32 & python examples/train.py --width 64 --lr 0.01 & wait
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import penstock


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
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    width = arguments.width
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 10)).to(
        arguments.device
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr)

    # The one changed line. It was: loader = make_loader()
    loader = penstock.share(make_loader, "digits", batch_size=arguments.batch_size, device=arguments.device)

    for epoch in range(arguments.epochs):
        began, right, seen = time.perf_counter(), 0, 0
        for images, labels in loader:
            logits = model(images.float() / 255)
            loss = nn.functional.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += int((logits.argmax(1) == labels).sum())
            seen += len(labels)
        took = time.perf_counter() - began
        print(
            f"width {width}, lr {arguments.lr}: epoch {epoch}, {seen} images, {seen / took:.0f}/s, "
            f"accuracy {right / seen:.2f}"
        )
    loader.close()


if __name__ == "__main__":
    main()
