"""A data-parallel script as users write them, started by torchrun or by hand. Writes what its rank saw as JSON."""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from penstock.autosharing import script_feed

N, EPOCHS, LATER_EPOCHS = 15, 2, 8
script_feed._PAUSE = 0  # pyright: ignore[reportPrivateUsage]


class Forgetful(TensorDataset):
    """Adds something, which it forgets on its way to a feeder."""

    def __init__(self, adds: int) -> None:
        super().__init__(torch.arange(N))
        self.adds = adds

    def __getitem__(self, i):
        return (super().__getitem__(i)[0] + vars(self).get("adds", 0),)

    def __getstate__(self):
        return {**vars(self), "adds": 0}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--drop-last", action="store_true")
    parser.add_argument("--peek", action="store_true")
    parser.add_argument("--no-sampler", action="store_true")
    parser.add_argument("--cycles", action="store_true", help="leave iterators that were broken off in cycles")
    parser.add_argument("--anew", action="store_true", help="make the loader anew after one of other data")
    parser.add_argument("--odd", action="store_true", help="let rank 1 have samples that no name tells")
    parser.add_argument("--later", action="store_true", help="the same, but from the third epoch on")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    data: Any = TensorDataset(torch.arange(N))
    if options.odd or options.later:
        data = Forgetful(100 * rank * options.odd)
    sampler = None if options.no_sampler else DistributedSampler(data, world, rank)
    train = DataLoader(
        data, options.batch_size, sampler=sampler, shuffle=options.no_sampler, drop_last=options.drop_last
    )
    if options.peek and rank == 0:
        next(iter(train))
    for _ in range(3 if options.cycles else 0):
        cycle = [iter(train)]
        next(cycle[0])
        cycle.append(cycle)
    epochs = []
    for epoch in range(LATER_EPOCHS if options.later else EPOCHS):
        if options.later and epoch == 2:
            data.adds = 100 * rank
        if options.anew:
            other = TensorDataset(torch.arange(100, 100 + N))
            for _ in DataLoader(other, options.batch_size, sampler=DistributedSampler(other, world, rank)):
                pass
            train = DataLoader(data, options.batch_size, sampler=sampler)
        if sampler is not None:
            sampler.set_epoch(epoch)
        batches = []
        for (batch,) in train:
            batches.append(batch.tolist())
            time.sleep(0.1 * options.later)
        total = torch.tensor(len(batches))
        dist.all_reduce(total)  # as gradients are: it hangs if a rank has fewer batches
        assert total == world * len(train)
        epochs.append(batches)
    with open(f"seen-{os.environ['PENSTOCK_RUN_INDEX']}-{rank}.json", "w") as file:
        json.dump({"len": len(train), "epochs": epochs}, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
