"""What a loader makes of a few samples, digested: the same in each process that has the same data set."""

# torch's own annotations leave a loader's samples and settings unknown.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from penstock.fingerprint.batch import LeafDigest, leaves_of, twice
from penstock.sources.seeds import seed_process
from penstock.sources.torch.compat import become_worker, map_style_fetcher

_SEED = 0


def hindrance(loader: DataLoader[Any]) -> str:
    """Return why no samples of a loader can be named and made in a forked child; empty if they can."""
    if isinstance(loader.dataset, IterableDataset):
        return "it reads a stream"
    if loader.batch_sampler is None:
        return "its data set gives whole batches"
    chosen = loader.multiprocessing_context or multiprocessing
    method = chosen.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    return f"its workers are started by {method}" if loader.num_workers and method != "fork" else ""


def made_twice(loader: DataLoader[Any], ids: Sequence[int]) -> tuple[LeafDigest, ...]:
    """Make the batch of these samples twice, as a worker of the loader would, each time with the same seeds.

    To be called in a child that ends afterwards: it changes the process's generators, threads and worker.
    """
    torch.set_num_threads(1)
    become_worker(loader, _SEED)
    if loader.num_workers and loader.worker_init_fn is not None:
        loader.worker_init_fn(0)
    fetcher = map_style_fetcher(loader.dataset, True, loader.collate_fn, loader.drop_last)
    made: list[tuple[LeafDigest, ...]] = []
    for _ in range(2):
        seed_process(_SEED)
        made.append(leaves_of(fetcher.fetch(list(ids)), len(ids)))
    return twice(*made)
