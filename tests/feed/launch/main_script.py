"""A training script whose loader lives in it, with all that it needs: to be run, not imported.

Arguments: how the training process comes to be, what ``share`` is given, how the loader's workers are started.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.multiprocessing
from torch.utils.data import DataLoader, Dataset

import penstock

with open("executed", "a") as executed:
    executed.write(f"{os.getpid()}\n")

ORIGIN, KIND, WORKERS = sys.argv[1:4] if len(sys.argv) > 3 else ("plain", "function", "spawn")


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass
class Sample:
    id: Any
    point: Point


class Numbers(Dataset[Sample]):
    def __init__(self, samples: int = 200) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, i: int) -> Sample:
        return sample(i)


class Held:
    class Numbers(Numbers):
        pass


def sample(i: int) -> Sample:
    return Sample(torch.tensor(i), Point(torch.tensor(2 * i), torch.tensor(i * i)))


def collate(samples: list[Sample]) -> Sample:
    point = Point(torch.stack([s.point.x for s in samples]), torch.stack([s.point.y for s in samples]))
    return Sample(torch.stack([s.id for s in samples]), point)


def make_over(dataset: Dataset[Sample]) -> DataLoader[Any]:
    if WORKERS == "none":
        return DataLoader(dataset, batch_size=16, collate_fn=collate)
    return DataLoader(dataset, batch_size=16, collate_fn=collate, num_workers=1, multiprocessing_context=WORKERS)


def make() -> DataLoader[Any]:
    assert __name__ and __file__
    return make_over(Numbers())


class Maker:
    def __init__(self, samples: int) -> None:
        self.samples = samples

    def make(self) -> DataLoader[Any]:
        return make_over(Numbers(self.samples))

    def __call__(self) -> DataLoader[Any]:
        return self.make()


KINDS = {
    "function": make,
    "lambda": lambda: make_over(Numbers()),
    "partial": functools.partial(make_over, Held.Numbers()),
    "method": Maker(200).make,
    "object": Maker(200),
}


def train() -> None:
    with penstock.share(KINDS[KIND], "numbers", 7, linger=0.5) as loader:
        ids: list[int] = []
        for batch in loader:
            assert type(batch) is Sample and type(batch.point) is Point
            assert (batch.point.x == 2 * batch.id).all() and (batch.point.y == batch.id**2).all()
            ids += batch.id.tolist()
        assert sorted(ids) == list(range(200))
        told = json.dumps({"pid": os.getpid(), "feeder": loader.statistics().feeder_pid})
        os.write(sys.stdout.fileno(), f"{told}\n".encode())  # in one piece: two trainers share the pipe


def train_rank(_: int) -> None:
    train()


def main() -> None:
    how, _, context = ORIGIN.partition(" ")
    if how == "plain":
        train()
    elif how == "process":
        process = multiprocessing.get_context(context).Process(target=train)
        process.start()
        process.join()
        assert process.exitcode == 0
    elif how == "pool":
        with multiprocessing.get_context(context).Pool(1) as pool:
            pool.apply(train)
    elif how == "executor":
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(context)) as executor:
            executor.submit(train).result()
    elif how == "torch":
        torch.multiprocessing.spawn(train_rank, nprocs=2)
    else:  # the script and a process of its, one after the other, on one feed
        assert how == "both"
        with penstock.share(KINDS[KIND], "numbers", 7, linger=0.5):
            train()
            process = multiprocessing.get_context(context).Process(target=train)
            process.start()
            process.join()
            assert process.exitcode == 0


if __name__ == "__main__":
    main()
