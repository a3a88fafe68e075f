"""A frozen encoder runs once, in the feeder; any number of heads train on its embeddings.

python examples/frozen_encoder.py feed & python examples/frozen_encoder.py head --lr 0.1 &
python examples/frozen_encoder.py head --lr 0.01 & wait
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader

import penstock
from train import Digits

NAME = "embeddings"


class Encoder(nn.Module):
    """A small convolutional network that stands for a large, pretrained one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 5, stride=2), nn.ReLU(), nn.Conv2d(32, 64, 5, stride=2), nn.ReLU(), nn.Flatten()
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


def feed(arguments: argparse.Namespace) -> None:
    """Load, encode, and feed the embeddings to the heads; end with the last head."""
    encoder = Encoder().to(arguments.device).eval()

    @torch.no_grad()
    def encode(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        images, labels = batch
        embedded = encoder(images[:, None].to(arguments.device).float() / 255)
        return {"embedding": embedded.half().cpu(), "label": labels}

    loader = DataLoader(Digits(), batch_size=128, shuffle=True, num_workers=1)
    with penstock.Feeder(loader, NAME, transform=encode, epochs=arguments.epochs, linger=5) as feeder:
        feeder.run()
    print(f"encoded {feeder.statistics().samples} images")


def head(arguments: argparse.Namespace) -> None:
    """Train a linear classifier on the embeddings."""
    loader = penstock.attach(NAME, batch_size=64, device=arguments.device, wait_s=60)
    model = nn.LazyLinear(10).to(arguments.device)
    optimizer = None
    for epoch in range(arguments.epochs):
        right = seen = 0
        for batch in loader:
            logits = model(batch["embedding"].float())
            optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=arguments.lr)
            loss = nn.functional.cross_entropy(logits, batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += int((logits.argmax(1) == batch["label"]).sum())
            seen += len(logits)
        print(f"lr {arguments.lr}: epoch {epoch}, {seen} embeddings, accuracy {right / seen:.2f}")
    loader.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["feed", "head"])
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    {"feed": feed, "head": head}[arguments.role](arguments)


if __name__ == "__main__":
    main()
