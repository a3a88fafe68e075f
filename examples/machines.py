"""Data-parallel training over several machines: each rank reads the feed of its own machine.

On each of two machines: torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint FIRST:29400 examples/machines.py
"""

from __future__ import annotations

import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

import penstock

SAMPLES = 2000
EPOCHS = 2
BATCH = 64


class Points(Dataset[tuple[torch.Tensor, int, int]]):
    """Noisy points of two classes, and their numbers."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int, int]:
        return torch.randn(8) + i % 2, i % 2, i


def make_loader() -> DataLoader[tuple[torch.Tensor, int, int]]:
    return DataLoader(Points(), batch_size=BATCH, shuffle=True, num_workers=1)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    # With workers="ray" besides, each block is decoded once for all machines, by all cores of a Ray cluster.
    with penstock.share(make_loader, "points", BATCH // world, shard=(rank, world), across=True) as loader:
        for epoch in range(EPOCHS):
            seen, right = torch.zeros(SAMPLES), torch.zeros(1)
            for points, classes, numbers in loader:
                scores = model(points)
                nn.functional.cross_entropy(scores, classes).backward()
                optimizer.step()
                optimizer.zero_grad()
                seen[numbers] += 1
                right += (scores.argmax(1) == classes).sum()
            for count in (seen, right):
                dist.all_reduce(count)
            if rank == 0:
                once = int((seen == 1).sum())
                print(f"epoch {epoch}: {right.item() / SAMPLES:.0%} right, {once} of {SAMPLES} samples once")
    del model, optimizer
    gc.collect()  # what is left of the model when the group has gone aborts the process at times, as it exits
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
