"""Train on batches as detectron2 makes them: the sampler hidden in an iterable data set, dicts with objects."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset


class Instances:
    def __init__(self, y: torch.Tensor) -> None:
        self.y = y


class ToIterableDataset(IterableDataset[dict[str, Any]]):
    """Gives the rows that its sampler, here a permutation without end, names."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            for row in torch.randperm(48).tolist():
                x = torch.tensor([row / 48])
                yield {"x": x, "instances": Instances(x.cos())}


model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = iter(DataLoader(ToIterableDataset(), batch_size=8, collate_fn=lambda batch: batch, drop_last=True))
steps = 0
while steps < 12:
    batch = next(batches)
    x, y = (torch.stack(parts) for parts in zip(*((row["x"], row["instances"].y) for row in batch), strict=True))
    optimizer.zero_grad()
    (model(x) - y).square().mean().backward()
    optimizer.step()
    steps += 1
print(f"steps: {steps}")
