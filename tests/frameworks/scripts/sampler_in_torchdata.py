"""Stops amid an epoch of torchdata's loader over selected samples and goes on; says what it saw and should."""

from itertools import product

import torch
from torch.utils.data import TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from penstock import SelectionSampler, select

EPOCHS = 3


def loader(kind: str, workers: int) -> StatefulDataLoader:
    selection = range(40, 90) if kind == "fixed" else select.RandomSubsets(100, 0.5, seed=3)
    data = TensorDataset(torch.arange(100))
    return StatefulDataLoader(data, batch_size=4, sampler=SelectionSampler(selection, seed=1), num_workers=workers)


def epoch(batches: StatefulDataLoader) -> list[int]:
    return [int(id) for (batch,) in batches for id in batch]


if __name__ == "__main__":
    for kind, workers, batches in product(("fixed", "policy"), (0, 2), (3, 13)):
        undisturbed = loader(kind, workers)
        whole = [id for _ in range(EPOCHS) for id in epoch(undisturbed)]
        interrupted = loader(kind, workers)
        seen = epoch(interrupted)
        iterator = iter(interrupted)
        for _ in range(batches):
            seen += next(iterator)[0].tolist()
        resumed = loader(kind, workers)
        resumed.load_state_dict(interrupted.state_dict())
        for _ in range(EPOCHS - 1):
            seen += epoch(resumed)
        print(*seen[: len(whole)])
        print(*whole)
