"""A loader's own samplers: the same order in a cycle whatever was opened before, in whichever process."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.sources.drawing import Drawing, ids_of, owned
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from penstock.contracts import Cursor
from penstock.errors import BadSetting, SourceError
from penstock.sources.adapt import adapt
from penstock.sources.torch.sampling import ToldLoader

SIZE = 60
DATA = Drawing(SIZE)


class Own(Sampler[int]):
    """A sampler of a user's own, which says how many indices it gives."""

    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Iterator[int]:
        raise NotImplementedError


class ShufflesInPlace(Own):
    def __init__(self) -> None:
        self.indices = list(range(SIZE))

    def __iter__(self) -> Iterator[int]:
        random.shuffle(self.indices)
        return iter(self.indices)


class ShufflesAnArrayInPlace(Own):
    def __init__(self) -> None:
        self.indices = np.arange(SIZE)

    def __iter__(self) -> Iterator[int]:
        np.random.shuffle(self.indices)
        yield from self.indices.tolist()


class DrawsAsItGoes(Own):
    """Draws each index from the global generators, when it is asked for it."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(SIZE):
            yield (int(torch.randint(SIZE, ())) + random.randrange(SIZE) + int(np.random.randint(SIZE))) % SIZE


class HoldsGenerators(Own):
    def __init__(self, seed: int | None = 3) -> None:
        self.python, self.numpy = random.Random(seed), np.random.default_rng(seed)

    def __iter__(self) -> Iterator[int]:
        for _ in range(SIZE):
            yield (self.python.randrange(SIZE) + int(self.numpy.integers(SIZE))) % SIZE


class CountsItsPasses(Own):
    passes = 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        return iter((np.arange(SIZE) * 7 + self.passes) % SIZE)


class ByEpoch(Own):
    """As a DistributedSampler, or Accelerate's SeedableRandomSampler: told the epoch, or going on by itself."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        yield from np.random.default_rng(self.epoch).permutation(SIZE).tolist()
        self.epoch += 1


class Buckets(Sampler[list[int]]):
    """A batch sampler that shuffles its buckets, and what is in them."""

    def __init__(self) -> None:
        self.buckets = [list(range(i, i + 6)) for i in range(0, SIZE, 6)]

    def __len__(self) -> int:
        return len(self.buckets)

    def __iter__(self) -> Iterator[list[int]]:
        random.shuffle(self.buckets)
        for bucket in self.buckets:
            np.random.shuffle(bucket)
            yield list(bucket)


class Pairs(Dataset[Any]):
    """Gives whole batches, each of two samples."""

    def __len__(self) -> int:
        return SIZE // 2

    def __getitem__(self, i: int) -> Any:
        return {"id": torch.tensor([2 * i, 2 * i + 1]), "torch": torch.rand(2)}


def over(sampler: Any, batch_size: int = 10, **options: Any) -> DataLoader[Any]:
    return DataLoader(DATA, batch_size, sampler=sampler, **options)


def shared() -> DataLoader[Any]:
    generator = owned()
    return over(RandomSampler(DATA, replacement=True, generator=generator), generator=generator)


WEIGHTS = [1.0, 2.0] * 30
Make = Callable[[], DataLoader[Any]]
MAKERS: dict[str, Make] = {
    "subset": lambda: over(SubsetRandomSampler(range(SIZE))),
    "subset, generator": lambda: over(SubsetRandomSampler(range(SIZE), owned())),
    "weighted": lambda: over(WeightedRandomSampler(WEIGHTS, SIZE)),
    "weighted, generator": lambda: over(WeightedRandomSampler(WEIGHTS, SIZE, generator=owned())),
    "replacement": lambda: over(RandomSampler(DATA, replacement=True, num_samples=70)),
    "generator": lambda: over(RandomSampler(DATA, generator=owned())),
    "generator of the loader too": shared,
    "generator, left out": lambda: over(RandomSampler(DATA, generator=owned()), 7, drop_last=True),
    "batch sampler": lambda: DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 7, True)),
    "shuffles in place": lambda: over(ShufflesInPlace()),
    "shuffles an array in place": lambda: over(ShufflesAnArrayInPlace()),
    "draws as it goes": lambda: over(DrawsAsItGoes()),
    "holds generators": lambda: over(HoldsGenerators()),
    "counts its passes": lambda: over(CountsItsPasses()),
    "by epoch": lambda: over(ByEpoch()),
    "buckets": lambda: DataLoader(DATA, batch_sampler=Buckets()),
    "list": lambda: over(list(range(SIZE))),
    "whole batches": lambda: DataLoader(Pairs(), batch_size=None, shuffle=True),
    "whole batches, generator": lambda: DataLoader(Pairs(), batch_size=None, shuffle=True, generator=owned()),
    "whole batches, sampler": lambda: DataLoader(
        Pairs(), batch_size=None, sampler=RandomSampler(Pairs(), generator=owned())
    ),
}


def source_of(make: Make, seed: int = 5) -> Any:
    """The source in a feeder's process where others have drawn what they like."""
    for seeded in (random, np.random):
        seeded.seed()
    torch.seed()
    return adapt(make(), segments=4, seed=seed)


@pytest.mark.parametrize("kind", MAKERS)
def test_a_cycle_has_one_order_wherever_and_in_whichever_process_it_is_opened(kind):
    source = source_of(MAKERS[kind])
    cycles = [ids_of(source, Cursor(cycle, 0)) for cycle in range(4)]
    if kind not in ("list",):
        assert len({tuple(ids) for ids in cycles}) == 4
    again = source_of(MAKERS[kind])
    for cycle in (3, 1, 1, 0, 2):
        assert ids_of(again, Cursor(cycle, 0)) == cycles[cycle]
    for cycle in (2, 0, 3):
        rest = ids_of(source_of(MAKERS[kind]), Cursor(cycle, 36))
        assert rest == cycles[cycle][-len(rest) :]
        assert len(rest) >= len(cycles[cycle]) - 36
    ids_of(source, Cursor(2, 0), 20)  # broken off
    assert ids_of(source, Cursor(3, 0)) == cycles[3]


@pytest.mark.parametrize("kind", [kind for kind in MAKERS if "generator" in kind and "holds" not in kind])
def test_a_sampler_with_a_generator_of_its_own_gives_the_epochs_that_it_gives_alone(kind):
    torch.manual_seed(5)
    loader = MAKERS[kind]()
    alone = [[int(i) for batch in loader for i in batch["id"]] for _ in range(3)]
    source = source_of(MAKERS[kind])
    kept = len(alone[0])  # what drop_last leaves out, at the end, is left out by the trainers
    assert [ids_of(source, Cursor(cycle, 0))[:kept] for cycle in range(3)] == alone
    assert ids_of(source_of(MAKERS[kind]), Cursor(2, 0))[:kept] == alone[2]


@pytest.mark.parametrize("kind", MAKERS)
def test_the_loader_that_was_handed_over_keeps_its_sampler_as_it_was(kind):
    untouched, loader = MAKERS[kind](), MAKERS[kind]()
    source = adapt(loader, segments=4, seed=5)
    for cycle in (0, 2):
        ids_of(source, Cursor(cycle, 0))

    def own_order(of: DataLoader[Any]) -> Any:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        return list(of.sampler if of.batch_sampler is None else of.batch_sampler)

    assert own_order(loader) == own_order(untouched)


def test_what_a_data_set_holds_is_not_copied_with_its_sampler():
    class Large(Drawing):
        def __deepcopy__(self, memo: Any) -> Any:
            raise AssertionError("a data set was copied")

    class Keeps(Own):
        def __init__(self, data: Any) -> None:
            self.data = data

        def __iter__(self) -> Iterator[int]:
            return iter(torch.randperm(SIZE).tolist())

    data = Large(SIZE)
    for sampler in (
        Keeps(data),
        RandomSampler(data, generator=owned()),
        Keeps([data]),
        RandomSampler([data] * SIZE),
    ):
        source = adapt(DataLoader(data, 10, sampler=sampler), segments=1, seed=0)
        assert ids_of(source, Cursor(1, 0)) == ids_of(source, Cursor(1, 0))


def test_a_sampler_that_cannot_be_copied_is_not_taken_back_in_silence():
    class Locked(ShufflesInPlace):
        def __init__(self) -> None:
            super().__init__()
            self.more = [open(os.devnull)]  # noqa: SIM115

    sampler = Locked()
    source = adapt(DataLoader(DATA, 10, sampler=sampler), segments=1, seed=0)
    first, second = (ids_of(source, Cursor(cycle, 0)) for cycle in range(2))
    with pytest.raises(SourceError, match=r"sampler \(Locked\) cannot be brought back to cycle 1"):
        ids_of(source, Cursor(1, 0))
    sampler.more[0].close()
    assert [first, second] == [
        ids_of(source_of(MAKERS["shuffles in place"], 0), Cursor(cycle, 0)) for cycle in range(2)
    ]


class DrawsFromTheSystem(Own):
    def __iter__(self) -> Iterator[int]:
        yield from random.SystemRandom().sample(range(SIZE), SIZE)


@pytest.mark.parametrize("sampler", [lambda: HoldsGenerators(None), DrawsFromTheSystem])
def test_a_sampler_that_no_seed_reaches_has_another_order_in_each_process_and_says_so(sampler):
    one, other = (source_of(lambda: over(sampler())) for _ in range(2))
    assert one.order != other.order


LENGTHS: dict[str, tuple[Make, int | None, int]] = {
    "weighted": (MAKERS["weighted"], 60, 6),
    "replacement": (MAKERS["replacement"], 70, 7),
    "subset": (lambda: DataLoader(DATA, 8, sampler=SubsetRandomSampler(range(50))), 50, 7),
    "left out": (lambda: DataLoader(DATA, 8, sampler=SubsetRandomSampler(range(50)), drop_last=True), 50, 7),
    "batch sampler": (MAKERS["batch sampler"], 56, 8),
    "buckets": (MAKERS["buckets"], None, 10),
}


@pytest.mark.parametrize("kind", LENGTHS)
def test_the_length_of_a_cycle_is_known_where_the_sampler_knows_it(kind):
    make, samples, batches = LENGTHS[kind]
    source = source_of(make)
    assert (source.samples, source.batches) == (samples, batches)
    assert len(ids_of(source, Cursor(0, 0))) == (samples or SIZE)


@pytest.mark.parametrize(("says", "gives"), [(50, 60), (60, 50), (60, 59)])
def test_a_sampler_that_gives_more_or_less_than_it_said_is_an_error_with_both_numbers(says, gives):
    class Lies(Sampler[int]):
        def __len__(self) -> int:
            return says

        def __iter__(self) -> Iterator[int]:
            return iter(range(gives))

    source = adapt(DataLoader(DATA, 10, sampler=Lies()), segments=1, seed=0)
    given: list[int] = []
    with pytest.raises(SourceError, match=f"makes {says} samples a cycle, and gave {gives} in cycle 0"):
        for block in source.open(Cursor(0, 0)):
            given += block.tree["id"].tolist()
    assert given == list(range(min(says, gives)))


class Counts(Own):
    """Counts its passes in what it holds, beside a generator."""

    def __init__(self) -> None:
        self.held = {"passes": 0}
        self.draws = random.Random(3)

    def __iter__(self) -> Iterator[int]:
        self.held["passes"] += 1
        yield from random.Random(self.held["passes"]).sample(range(SIZE), SIZE)


TOLD = {"by epoch": ByEpoch, "counts": Counts, "in place": ShufflesInPlace, "generators": HoldsGenerators}


@pytest.mark.parametrize("kind", TOLD)
def test_of_a_script_s_sampler_each_cycle_is_the_pass_that_comes_next_and_only_generators_go_on(kind):
    def make() -> Any:
        sampler: Any = TOLD[kind]()
        if kind == "by epoch":
            sampler.set_epoch(5)
        return ToldLoader(DATA, 10, sampler=sampler)

    random.seed(9)
    first = list(make().sampler)
    source = source_of(make)
    cycles = [ids_of(source, Cursor(cycle, 0)) for cycle in range(3)]
    if kind in ("by epoch", "counts"):
        assert cycles == [first] * 3
    else:
        assert len({*map(tuple, cycles)}) == 3
    ids_of(source, Cursor(1, 0), 20)  # broken off
    for cycle in (2, 0, 1):
        assert ids_of(source, Cursor(cycle, 0)) == cycles[cycle]
        assert ids_of(source_of(make), Cursor(cycle, 0)) == cycles[cycle]


def test_a_script_s_sampler_may_give_more_or_less_than_it_says_and_none_that_is_told_begins_anywhere():
    class Says(ByEpoch):
        replacement = True
        says: int | None = 40

        def __len__(self) -> int:
            if self.says is None:
                raise TypeError("it is counted")
            return self.says

    for says, batches in ((40, 4), (None, 6), (3, 6)):
        sampler = Says()
        sampler.says = says
        source = adapt(ToldLoader(DATA, 10, sampler=sampler), segments=1, seed=0)
        assert (source.samples, source.batches, source.anywhere) == (None, batches, False)
        assert sorted(ids_of(source, Cursor(1, 0))) == list(range(SIZE))


class NeverEnds(Sampler[int]):
    """Gives indices for ever, as samplers of diffusion models do, and counts them."""

    def __init__(self, says: int | None, drawn: list[int]) -> None:
        self.says = says
        self.shuffle = True
        self.drawn = drawn

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return type(self)(self.says, self.drawn)

    def __len__(self) -> int:
        if self.says is None:
            raise TypeError("it never ends")
        return self.says

    def __iter__(self) -> Iterator[int]:
        while True:
            self.drawn[0] += 1
            yield self.drawn[0] % SIZE


@pytest.mark.parametrize("says", [None, SIZE, 10])
@pytest.mark.parametrize("form", ["samples", "batches", "whole batches"])
def test_of_a_script_s_sampler_that_never_ends_few_times_the_data_set_are_drawn_before_it_is_fed(form, says):
    drawn = [0]
    sampler = NeverEnds(says, drawn)
    given: dict[str, Any] = {"batch_size": 10, "sampler": sampler}
    if form == "batches":
        given = {"batch_sampler": BatchSampler(sampler, 10, drop_last=False)}
    if form == "whole batches":
        given = {"batch_size": None, "sampler": BatchSampler(sampler, 10, drop_last=False)}
    source = adapt(ToldLoader(DATA, **given), segments=1, seed=0)
    assert (source.samples, source.batches) == (None, None)
    assert drawn[0] < 6 * SIZE
    source.close()


class Shard(BatchSampler):
    """As Accelerate's BatchSamplerShard."""

    def __init__(self, batch_sampler: BatchSampler, num_processes: int) -> None:
        self.batch_sampler, self.num_processes = batch_sampler, num_processes
        self.batch_size, self.drop_last = batch_sampler.batch_size, batch_sampler.drop_last


class Wrapped(Sampler[int]):
    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler


PARTS: dict[str, tuple[Make, str]] = {
    "sampler": (
        lambda: over(DistributedSampler(DATA, 4, 1)),
        r"DistributedSampler \(num_replicas=4\).*shard=\(rank, 4\)",
    ),
    "inside a batch sampler": (
        lambda: DataLoader(DATA, batch_sampler=BatchSampler(Wrapped(DistributedSampler(DATA, 2, 1)), 10, False)),
        r"DistributedSampler \(num_replicas=2\)",
    ),
    "batch sampler": (
        lambda: DataLoader(DATA, batch_sampler=Shard(BatchSampler(SequentialSampler(DATA), 5, False), 3)),
        r"Shard \(num_processes=3\)",
    ),
    "whole batches": (
        lambda: DataLoader(Pairs(), None, sampler=DistributedSampler(Pairs(), 2, 0)),
        "DistributedSampler",
    ),
}


@pytest.mark.parametrize("kind", PARTS)
def test_a_loader_of_one_ranks_part_is_refused(kind):
    make, message = PARTS[kind]
    with pytest.raises(BadSetting, match=message):
        adapt(make(), segments=1, seed=0)


def test_a_distributed_sampler_of_one_replica_is_none():
    source = adapt(DataLoader(DATA, 10, sampler=DistributedSampler(DATA, 1, 0)), segments=1, seed=0)
    assert sorted(ids_of(source, Cursor(1, 0))) == list(range(SIZE))
