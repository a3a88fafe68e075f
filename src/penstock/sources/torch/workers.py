"""Workers of a torch loader, which end with their process; and a digest of what one would make of few samples."""

# torch's own annotations leave a loader's settings unknown.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from penstock.fingerprint.batch import LeafDigest, leaves_of, twice
from penstock.linux.process import die_with_parent
from penstock.sources.seeds import seed_process
from penstock.sources.torch.compat import become_worker, map_style_fetcher, workers_of

_DEATH_S = 2.0


class EndsWithItsParent:
    """A ``worker_init_fn`` after which the kernel kills a worker when its parent dies.

    Torch's workers watch for that themselves, but look up their parent only when
    they are ready: if it was killed before that, they live on for ever.
    """

    def __init__(self, then: Callable[[int], None] | None, context: Any) -> None:
        self._then = then  # the loader's own ``worker_init_fn``
        method = context.get_start_method() if context is not None else multiprocessing.get_start_method()
        self._parent = None if method == "forkserver" else os.getpid()  # the fork server ends with this process

    def __call__(self, worker: int) -> None:
        die_with_parent(self._parent)
        if self._then is not None:
            self._then(worker)


def init_fn_of(loader: DataLoader[Any]) -> EndsWithItsParent:
    """The loader's ``worker_init_fn``, for workers that end with this process."""
    return EndsWithItsParent(loader.worker_init_fn, loader.multiprocessing_context)


@contextmanager
def naming_who_died(iterator: Any) -> Generator[None]:
    """Name the killed worker, where torch only finds that a connection broke.

    Torch names one that dies while a batch is waited for, but not one that dies while it sends a batch.
    """
    try:
        yield
    except (EOFError, ConnectionError) as error:
        if str(error).startswith("Caught "):  # the dataset's own, as torch brings it from the worker
            raise
        workers = [worker for worker in workers_of(iterator) if worker.exitcode != 0]
        ended = wait([worker.sentinel for worker in workers], _DEATH_S) if workers else []
        for worker in workers:
            if worker.sentinel in ended:
                worker.join()  # its end is seen before its exit status can be had
                status = worker.exitcode
                how = signal.strsignal(-status) if status and status < 0 else f"status {status}"
                raise RuntimeError(f"DataLoader worker (pid {worker.pid}) was ended: {how}") from error
        raise


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


def begin_worker(loader: DataLoader[Any]) -> None:
    """Let this process be a worker of the loader, for good."""
    torch.set_num_threads(1)
    become_worker(loader, _SEED)
    if loader.num_workers and loader.worker_init_fn is not None:
        loader.worker_init_fn(0)


def made_twice(loader: DataLoader[Any], ids: Sequence[int]) -> tuple[LeafDigest, ...]:
    """Make the batch of these samples twice, as a worker of the loader would, each time with the same seeds.

    To be called in a child that ends afterwards: it changes the process's generators, threads and worker.
    """
    begin_worker(loader)
    fetcher = map_style_fetcher(loader.dataset, True, loader.collate_fn, loader.drop_last)
    made: list[tuple[LeafDigest, ...]] = []
    for _ in range(2):
        seed_process(_SEED)
        made.append(leaves_of(fetcher.fetch(list(ids)), len(ids)))
    return twice(*made)
