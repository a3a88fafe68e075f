"""Promise 4: with one segment and the same seed, a source gives bit for bit what its DataLoader gives alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
from tests.sources.drawing import assert_identical, owned
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    SubsetRandomSampler,
    default_collate,
    get_worker_info,
)

from penstock.contracts import Cursor
from penstock.sources.adapt import adapt
from penstock.sources.torch.compat import end_workers

SEED = 1234
EPOCHS = 3
Make = Callable[[], DataLoader[Any]]


class Plain(Dataset[Any]):
    def __len__(self) -> int:
        return 43

    def __getitem__(self, i: int) -> Any:
        return torch.tensor(i), {"half": torch.full((2, 3), i / 7, dtype=torch.bfloat16), "name": f"file {i}"}


class Augmented(Plain):
    """Draws random numbers as augmentation does, from every generator that there is."""

    def __getitem__(self, i: int) -> Any:
        return torch.tensor(i), torch.rand(4), random.random(), np.random.rand(2)


def collate_negated(rows: list[Any]) -> Any:
    first, *rest = default_collate(rows)
    return [-first, *rest, torch.rand(2).expand(len(rows), 2)]


def init_worker(worker: int) -> None:
    torch.manual_seed(1000 + worker)
    info = get_worker_info()
    assert info is not None
    info.dataset.offset = worker * 1000


class Offset(Plain):
    """Gives what ``init_worker`` told the worker."""

    offset = 0

    def __getitem__(self, i: int) -> Any:
        return torch.tensor(i + self.offset), torch.rand(2)


class EvenThenOdd(Sampler[list[int]]):
    """A batch sampler of a user's own, without chance."""

    def __iter__(self) -> Iterator[list[int]]:
        for rows in (range(0, 43, 2), range(1, 43, 2)):
            indices = list(rows)
            for start in range(0, len(indices), 6):
                yield indices[start : start + 6]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return ((torch.tensor(i), torch.rand(3)) for i in range(first, 43, step))


def alone(make: Make, epochs: int = EPOCHS) -> list[list[Any]]:
    """What the loader gives by itself."""
    torch.manual_seed(SEED)
    loader = make()
    given = [list(loader) for _ in range(epochs)]
    # Left to the garbage collector, workers that persist are waited for, 5 s each: they are not told to end.
    end_workers(loader._iterator)
    return given


def fed(make: Make, cycles: range) -> list[list[Any]]:
    """What the source of the loader gives."""
    given: list[list[Any]] = []
    with closing(adapt(make(), segments=1, seed=SEED)) as source:
        for cycle in cycles:
            blocks = source.open(Cursor(cycle, 0))
            with closing(blocks):  # type: ignore[type-var]
                # What fills no batch is left out by the trainers.
                least = make().batch_size if getattr(source, "drop_last", False) else 1
                given.append([block.tree for block in blocks if block.rows >= least])
    return given


def augmented(**options: Any) -> DataLoader[Any]:
    return DataLoader(Augmented(), **{"batch_size": 5, "num_workers": 2, **options})


def subset() -> SubsetRandomSampler:
    return SubsetRandomSampler(range(30), generator=owned())


WHOLE: dict[str, Make] = {
    "in order": lambda: DataLoader(Plain(), 5),
    "in order, short batch left out": lambda: DataLoader(Plain(), 5, drop_last=True),
    "shuffled": lambda: DataLoader(Plain(), 5, shuffle=True),
    "generator": lambda: DataLoader(Plain(), 5, shuffle=True, generator=owned()),
    "generator, 2 workers": lambda: DataLoader(Plain(), 5, shuffle=True, num_workers=2, generator=owned()),
    "augmented, left out, 2 workers": lambda: augmented(shuffle=True, drop_last=True),
    "augmented, generator, 2 workers": lambda: augmented(shuffle=True, generator=owned()),
    "augmented, generator, in order, 2 workers": lambda: augmented(generator=owned()),
    "persistent": lambda: augmented(shuffle=True, persistent_workers=True),
    "persistent, generator": lambda: augmented(shuffle=True, persistent_workers=True, generator=owned()),
    "collate_fn": lambda: DataLoader(Plain(), 5, num_workers=2, shuffle=True, collate_fn=collate_negated),
    "worker_init_fn": lambda: DataLoader(Offset(), 5, num_workers=2, shuffle=True, worker_init_fn=init_worker),
    "batch sampler, 2 workers": lambda: DataLoader(Plain(), batch_sampler=EvenThenOdd(), num_workers=2),
    "sampler with a generator, left out": lambda: augmented(
        batch_size=7, sampler=subset(), drop_last=True, generator=owned()
    ),
    "sampler with a generator, augmented, loader's generator, 2 workers": lambda: augmented(
        sampler=subset(), generator=owned()
    ),
    "stream, generator, 2 workers": lambda: DataLoader(Stream(), 5, num_workers=2, generator=owned()),
}
FIRST: dict[str, Make] = {
    "augmented in the main process": lambda: DataLoader(Augmented(), 5, shuffle=True),
    "augmented in the main process, in order": lambda: DataLoader(Augmented(), 5),
    "augmented batch sampler, 2 workers": lambda: DataLoader(
        Augmented(), batch_sampler=EvenThenOdd(), num_workers=2
    ),
    "sampler": lambda: DataLoader(Plain(), 5, sampler=SubsetRandomSampler(range(30))),
    "sampler, augmented": lambda: DataLoader(Augmented(), 5, sampler=SubsetRandomSampler(range(30))),
    "sampler, augmented, 2 workers": lambda: DataLoader(
        Augmented(), 5, sampler=SubsetRandomSampler(range(30)), num_workers=2
    ),
    "stream": lambda: DataLoader(Stream(), 5),
    "stream, 2 workers": lambda: DataLoader(Stream(), 5, num_workers=2),
    "stream, left out": lambda: DataLoader(Stream(), 5, drop_last=True),
}


@pytest.fixture(autouse=True)
def other_seeds() -> None:
    """What was drawn before must not matter; NumPy and Python are seeded by torch in workers only."""
    torch.manual_seed(987)


@pytest.mark.whole
@pytest.mark.parametrize("case", WHOLE)
def test_cycles_are_the_epochs_of_the_loader_alone_also_when_a_later_one_is_opened_at_once(case):
    expected = alone(WHOLE[case])
    assert_identical(fed(WHOLE[case], range(EPOCHS)), expected)
    later = fed(WHOLE[case], range(2, 3))
    if "persistent" in case:  # the workers' own random numbers depend on what they have drawn: a whole history
        assert_identical([batch[0] for batch in later[0]], [batch[0] for batch in expected[2]])
    else:
        assert_identical(later, expected[2:])


@pytest.mark.parametrize("case", FIRST)
def test_the_first_cycle_is_the_first_epoch_of_the_loader_alone(case):
    for module in (random, np.random):
        module.seed(5)
    expected = alone(FIRST[case], 1)
    for module in (random, np.random):
        module.seed(5)
    assert_identical(fed(FIRST[case], range(1)), expected)


def test_augmentation_in_the_main_process_under_a_generator_is_seeded_too():
    def make() -> DataLoader[Any]:
        return DataLoader(Augmented(), 5, shuffle=True, generator=owned())

    given, expected = fed(make, range(1)), alone(make, 1)
    assert_identical([batch[1] for batch in given[0]], [batch[1] for batch in expected[0]])


@pytest.mark.parametrize("case", ["shuffled", "generator", "in order"])
def test_the_rest_of_a_cycle_is_the_rest_of_that_epoch(case):
    source = adapt(WHOLE[case](), segments=1, seed=SEED)
    rest = [block.tree for block in source.open(Cursor(1, 22))]
    assert_identical(rest, alone(WHOLE[case])[1][4:])


def test_the_loader_that_was_handed_over_keeps_its_own_generator():
    generator = owned()
    before = generator.get_state()
    source = adapt(DataLoader(Plain(), 5, shuffle=True, generator=generator), segments=1, seed=SEED)
    for _ in range(2):
        list(source.open(Cursor(1, 0)))
    assert torch.equal(generator.get_state(), before)
