"""Say what Accelerate's prepare and accumulate do with a Loader, and with a DataLoader that is shared."""

import json

import torch
from accelerate import Accelerator
from accelerate.data_loader import DataLoaderShard
from torch.utils.data import DataLoader, TensorDataset

import penstock
from penstock.feed.launch import feeds

ROWS, EPOCHS = 48, 2
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)


def make_loader() -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(TensorDataset(torch.arange(float(ROWS))), batch_size=8, shuffle=True)


def steps(loader: object) -> list[bool]:
    """Return, batch by batch, whether the optimizer steps."""
    stepped: list[bool] = []
    accelerator.step = 0
    for _ in range(EPOCHS):
        for _ in loader:
            with accelerator.accumulate():
                stepped.append(accelerator.sync_gradients)
    return stepped


given = penstock.share(make_loader, "loader")
loader = accelerator.prepare(given)
assert loader is given
shared = accelerator.prepare(penstock.share(make_loader(), "prepared"))
assert isinstance(shared, DataLoaderShard)
print(
    json.dumps(
        {"Loader": steps(loader), "prepared": steps(shared), "without": steps(accelerator.prepare(make_loader()))}
    )
)
for feed in feeds.feeds():
    feeds.stop(feed.name)
