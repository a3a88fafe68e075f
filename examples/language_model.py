"""A small language model on blocks of characters. Start it several times: all runs read one feed.

python examples/language_model.py --data FILE.txt --lr 0.003 & \\
python examples/language_model.py --data FILE.txt & wait
"""

from __future__ import annotations

import argparse
import inspect
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

import penstock

BLOCK = 64


def make_blocks(path: str) -> penstock.ArraySource:
    """Cut a file, or the source of Python's argparse, into overlapping blocks of BLOCK + 1 bytes."""
    text = Path(path).read_bytes() if path else inspect.getsource(argparse).encode()
    tokens = np.frombuffer(text, np.uint8)
    blocks = np.lib.stride_tricks.sliding_window_view(tokens, BLOCK + 1)[:: BLOCK // 2]
    return penstock.ArraySource({"tokens": blocks}, batch_size=128)


class Model(nn.Module):
    """Predicts the next byte with one recurrent layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.recur = nn.GRU(width, width, batch_first=True)
        self.predict = nn.Linear(width, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.predict(self.recur(self.embed(tokens))[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="", help="a text file; Python's own argparse.py unless given")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    model = Model(arguments.width).to(arguments.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.lr)
    # The feed carries bytes; each run turns them into what its model needs.
    loader = penstock.share(
        partial(make_blocks, arguments.data),
        "text",
        batch_size=32,
        device=arguments.device,
        framework="torch",
        transform=lambda batch: batch["tokens"].long(),
    )
    for epoch in range(arguments.epochs):
        total = seen = 0.0
        for tokens in loader:
            logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(tokens)
            seen += len(tokens)
        print(f"lr {arguments.lr}, width {arguments.width}: epoch {epoch}, loss {total / seen:.2f}")
    loader.close()


if __name__ == "__main__":
    main()
