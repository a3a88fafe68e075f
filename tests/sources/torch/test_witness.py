"""Samples made as a worker makes them, in a child; and workers that die."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate, get_worker_info

from penstock.contracts import Cursor
from penstock.fingerprint.batch import STRUCTURE, LeafDigest, Making
from penstock.sources.adapt import witness_of
from penstock.sources.torch.loader import adapt_loader


class Samples(Dataset[Any]):
    def __init__(self, sample: Any) -> None:
        self._sample = sample

    def __len__(self) -> int:
        return 100

    def __getitem__(self, i: int) -> Any:
        return self._sample(i)


def made(loader: Any, ids: tuple[int, ...] = (5, 3)) -> dict[str, LeafDigest]:
    leaves_of, why = witness_of(loader)
    assert leaves_of is not None and not why
    making = Making(leaves_of, ids)
    while (result := making.result(60)) is None:
        pass
    assert not isinstance(result, str), result
    return {leaf.name: leaf for leaf in result if leaf.name != STRUCTURE}


def same(one: Any, other: Any) -> bool:
    mine, theirs = made(one), made(other)
    assert mine.keys() == theirs.keys()
    return all(mine[name].differs_at(theirs[name]) is None for name in mine)


def of(sample: Any, **options: Any) -> Any:
    return DataLoader(Samples(sample), batch_size=8, **options)


def draws(_: int) -> Any:
    return torch.rand(1), np.random.random(), random.random()


def test_what_draws_from_the_global_generators_comes_out_alike_whatever_seeds_them():
    def init(_: int) -> None:
        torch.manual_seed(7)
        np.random.seed(7)
        random.seed(7)

    torch.manual_seed(1)
    plain = of(draws, num_workers=1)
    assert all(leaf.repeats for leaf in made(plain).values())
    torch.manual_seed(2)
    assert same(plain, of(draws, num_workers=1, worker_init_fn=init))


def test_what_draws_from_a_generator_of_its_own_or_counts_does_not_repeat_and_its_labels_do():
    own, seen = np.random.default_rng(1), list[int]()

    def sample(i: int) -> Any:
        seen.append(i)
        return {"noise": own.random(), "count": len(seen), "label": i}

    repeats = {name: leaf.repeats for name, leaf in made(of(sample)).items()}
    assert repeats == {"batch['noise']": False, "batch['count']": False, "batch['label']": True}
    assert not seen and own.random() == np.random.default_rng(1).random()  # nothing of it has happened here


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_set_finds_itself_in_worker_0_and_initialized_where_its_loader_has_workers(workers: int):
    initialized: list[int] = []

    def sample(_: int) -> Any:
        info: Any = get_worker_info()
        return info.id, info.num_workers, len(initialized), torch.get_num_threads()

    values = (0, max(1, workers), int(workers > 0), 1)
    loader = of(sample, num_workers=workers, worker_init_fn=initialized.append)
    assert same(loader, of(lambda _: values))
    assert get_worker_info() is None and not initialized


def test_it_fetches_as_torch_does_and_collates_as_the_loader_does():
    class Many(Samples):
        def __getitems__(self, ids: list[int]) -> Any:
            return [10 * i for i in ids]

    assert same(DataLoader(Many(None), 8, collate_fn=torch.tensor), of(lambda i: 10 * i))


def test_its_batch_lies_in_no_shared_memory_whose_name_would_outlive_a_killed_child():
    def is_shared(rows: list[int]) -> Any:
        return np.array([default_collate([torch.ones(3)]).is_shared() for _ in rows])

    assert same(of(int, collate_fn=is_shared), of(int, collate_fn=lambda rows: np.zeros(len(rows), bool)))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(9))


@pytest.mark.parametrize(
    ("loader", "expected"),
    [
        (DataLoader(Stream(), 2), "stream"),
        (DataLoader(Samples(int), batch_size=None), "whole batches"),
        (of(int, num_workers=1, multiprocessing_context="spawn"), "spawn"),
    ],
)
def test_what_cannot_be_made_in_a_forked_child_is_named(loader: Any, expected: str):
    assert expected in witness_of(loader)[1]


def test_what_is_no_loader_has_no_witness():
    assert witness_of([1, 2]) == (None, "")


@pytest.mark.parametrize(
    ("sample", "expected"),
    [(lambda _: 1 / 0, "ZeroDivisionError"), (lambda _: threading.Event().wait(), "took over 2 s")],
)
def test_a_data_set_that_raises_or_hangs_has_no_leaves(sample: Any, expected: str):
    leaves_of, _ = witness_of(of(sample))
    assert leaves_of is not None
    making = Making(leaves_of, (1, 2))
    while (result := making.result(60)) is None:
        pass
    assert isinstance(result, str) and expected in result


def break_off(pid: int) -> None:
    """What the receiver of a batch does: find the connection broken by a worker whose death is yet to be seen."""
    threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
    raise EOFError


class BrokenOff:
    def __reduce__(self) -> Any:
        return break_off, (os.getpid(),)


class Broken(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([0, BrokenOff()])


@pytest.mark.parametrize("dataset", [[0, BrokenOff()], Broken()], ids=["map-style", "iterable"])
def test_a_worker_that_dies_while_it_sends_a_batch_is_named(dataset):
    loader = DataLoader(dataset, batch_size=1, num_workers=1, collate_fn=list)
    source = adapt_loader(loader, segments=1, seed=0)
    with pytest.raises(RuntimeError, match=r"worker \(pid \d+\) (was ended|is killed by signal): Killed"):
        list(source.open(Cursor(0, 0)))


class Truncated(IterableDataset[Any]):
    """The first worker's part ends at once, and the second's breaks."""

    def __iter__(self) -> Any:
        worker = get_worker_info()
        assert worker is not None
        yield from range(20 * worker.id)
        if worker.id:
            raise EOFError("shard 7 is truncated")


def test_an_error_of_the_dataset_is_told_as_it_is():
    source = adapt_loader(DataLoader(Truncated(), batch_size=1, num_workers=2), segments=1, seed=0)
    with pytest.raises(EOFError, match="shard 7 is truncated"):
        list(source.open(Cursor(0, 0)))


@pytest.mark.parametrize("shuffle", [False, True])
def test_workers_that_persist_end_with_a_source_that_is_dropped_unclosed(shuffle):
    """At once, not when Python looks for cycles: torch then waits 5 s for each."""
    gc.disable()
    try:
        loader = DataLoader(range(8), 4, shuffle=shuffle, num_workers=2, persistent_workers=True)  # type: ignore[arg-type]
        source = adapt_loader(loader, segments=1, seed=1)
        del loader
        blocks = source.open(Cursor(0, 0))
        list(blocks)
        workers = multiprocessing.active_children()
        assert len(workers) == 2
        del blocks, source
        assert not [worker for worker in workers if worker.is_alive()]
    finally:
        gc.enable()
