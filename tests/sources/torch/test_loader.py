"""Torch loaders of every kind keep the contract of sources, by a torch that has what it does not promise."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.forked import Forked
from tests.sources.drawing import Drawing, DrawingStream
from tests.support.contracts import LOADING, only
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import penstock
from penstock.contracts import Cursor
from penstock.errors import BadSetting
from penstock.sources.adapt import adapt
from penstock.sources.torch import compat
from penstock.sources.torch.iterable import IterableDatasetSource, WholeBatchLoader
from penstock.sources.torch.loader import MapStyleSource, SamplerSource
from penstock.testing.source import SourceContract


class Ids(Dataset[dict[str, int]]):
    """Samples that name themselves and the process that made them."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: int) -> dict[str, int]:
        return {"id": i, "pid": os.getpid()}


class ByEpoch(Sampler[int]):
    """As a DistributedSampler: another order after ``set_epoch``."""

    epoch = 0

    def __len__(self) -> int:
        return 60

    def __iter__(self) -> Iterator[int]:
        return iter([(i * 7 + self.epoch) % 60 for i in range(60)])

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class UnevenBatches(Sampler[list[int]]):
    """Batches of 1, 2, 3 … rows."""

    def __iter__(self) -> Iterator[list[int]]:
        start = 0
        for rows in range(1, 9):
            yield list(range(start, start + rows))
            start += rows


def shuffled(size: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(Drawing(size), batch_size=10, shuffle=True, **options)


SUBSET = range(5, 55)
WHOLE: Any = [{"id": torch.arange(i, i + 5)} for i in range(0, 30, 5)]
KINDS: dict[str, tuple[Callable[[], DataLoader[Any]], int, Iterable[int]]] = {
    "seekable": (lambda: shuffled(103), 4, range(103)),
    "seekable, with workers": (lambda: shuffled(53, num_workers=2), 3, range(53)),
    "seekable, of one segment": (lambda: shuffled(103), 1, range(103)),
    "seekable, in order": (lambda: DataLoader(Drawing(60), batch_size=10), 3, range(60)),
    "persistent": (lambda: shuffled(43, num_workers=2, persistent_workers=True), 2, range(43)),
    "sampled": (lambda: DataLoader(Ids(60), batch_size=7, sampler=SubsetRandomSampler(SUBSET)), 4, SUBSET),
    "sampled, with workers": (
        lambda: DataLoader(Ids(36), batch_sampler=UnevenBatches(), num_workers=2),
        4,
        range(36),
    ),
    "stream": (lambda: DataLoader(DrawingStream(47), batch_size=6), 4, range(47)),
    "stream, with workers": (lambda: DataLoader(DrawingStream(47), batch_size=6, num_workers=2), 4, range(47)),
    "whole batches": (lambda: DataLoader(WHOLE, batch_size=None), 4, range(30)),
}
"""Loaders; the segments asked for; their samples."""

WITH_WORKERS = ("seekable, with workers", "persistent")
SLOW = ("sampled, with workers", "stream, with workers")


class TestLoaders(SourceContract):
    works_for_good = True

    @pytest.fixture(autouse=True, params=[kind for kind in KINDS if kind not in WITH_WORKERS + SLOW])
    def _kind(self, request: pytest.FixtureRequest) -> None:
        self.loader, self.segments, self.ids = KINDS[request.param]

    def make(self, seed: int = 0) -> Any:
        return adapt(self.loader(), segments=self.segments, seed=seed)

    def expected(self) -> Counter[Any]:
        return Counter(self.ids)


@only(*LOADING, "broken_off", "opened_before", "what_is_wanted", "never_begun")
class TestLoadersWithWorkers(TestLoaders):
    @pytest.fixture(
        autouse=True, params=[*WITH_WORKERS, *(pytest.param(kind, marks=pytest.mark.whole) for kind in SLOW)]
    )
    def _kind(self, request: pytest.FixtureRequest) -> None:
        self.loader, self.segments, self.ids = KINDS[request.param]
        self.keeps_workers = request.param == "persistent"

    @pytest.mark.parametrize("cycle", [1])
    def test_it_opens_with_the_block_that_holds_the_position_and_goes_on_as_ever(self, cycle: int) -> None:
        super().test_it_opens_with_the_block_that_holds_the_position_and_goes_on_as_ever(cycle)


DATA = TensorDataset(torch.arange(40))


def by(sampler: Any) -> DataLoader[Any]:
    return DataLoader(DATA, batch_size=4, sampler=sampler)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: DataLoader(DATA, batch_size=4), MapStyleSource),
        (lambda: DataLoader(DATA, batch_size=4, shuffle=True), MapStyleSource),
        (lambda: DataLoader(DATA, batch_size=4, shuffle=True, generator=torch.Generator()), MapStyleSource),
        (lambda: by(SequentialSampler(DATA)), MapStyleSource),
        (lambda: by(SubsetRandomSampler(range(9))), SamplerSource),
        (lambda: by(RandomSampler(DATA, replacement=True)), SamplerSource),
        (lambda: by(RandomSampler(DATA, num_samples=9)), SamplerSource),
        (lambda: by(RandomSampler(DATA, generator=torch.Generator())), SamplerSource),
        (lambda: by(WeightedRandomSampler([1.0] * 40, 40)), SamplerSource),
        (lambda: DataLoader(DATA, batch_sampler=UnevenBatches()), SamplerSource),
        (lambda: DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 4, False)), SamplerSource),
        (lambda: DataLoader(DATA, batch_size=None), WholeBatchLoader),
        (lambda: DataLoader(DrawingStream(9), batch_size=4), IterableDatasetSource),
    ],
)
def test_each_kind_of_loader_gets_the_source_that_can_do_most_with_it(make, kind):
    source = adapt(make(), segments=4, seed=0)
    if kind is SamplerSource and make().batch_size is None and isinstance(source, MapStyleSource):
        return  # a plain BatchSampler that was passed in may be seen through as well
    assert type(source) is kind


def test_a_position_of_a_sampled_loader_is_reached_without_loading_what_lies_before():
    loaded: list[int] = []

    class Noting(Ids):
        def __getitem__(self, i: int) -> dict[str, int]:
            loaded.append(i)
            return super().__getitem__(i)

    source = adapt(DataLoader(Noting(60), batch_size=10, sampler=ByEpoch()), segments=1, seed=0)
    rows = [int(i) for block in source.open(Cursor(2, 45)) for i in block.tree["id"]]
    assert rows == loaded == [(i * 7 + 2) % 60 for i in range(40, 60)]


@pytest.mark.parametrize(
    "options",
    [{"batch_size": 10, "sampler": ByEpoch()}, {"batch_sampler": BatchSampler(ByEpoch(), 10, False)}],
    ids=["sampler", "batch sampler"],
)
def test_a_sampler_is_told_the_cycle_inside_a_batch_sampler_too(options):
    source = adapt(DataLoader(Ids(60), **options), segments=1, seed=0)
    for cycle in (0, 3, 1):
        first = next(iter(source.open(Cursor(cycle, 0))))
        assert first.tree["id"].tolist() == [(i * 7 + cycle) % 60 for i in range(10)]


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_workers_load_as_many_as_the_loader_asked_and_those_that_persist_stay(persistent_workers):
    loader = DataLoader(Ids(40), batch_size=10, num_workers=2, persistent_workers=persistent_workers)
    source = adapt(loader, segments=4, seed=0)
    first, second = (
        {int(pid) for block in source.open(Cursor(cycle, 0)) for pid in block.tree["pid"]} for cycle in (0, 1)
    )
    assert len(first) == 2 and os.getpid() not in first and (first == second) == persistent_workers


def test_a_cycle_that_is_broken_off_leaves_nothing_to_the_next():
    loader = DataLoader(Ids(100), batch_size=5, shuffle=True, num_workers=2, persistent_workers=True)
    source, fresh = adapt(loader, segments=4, seed=0), adapt(loader, segments=4, seed=0)
    for cycle, taken in ((0, 1), (1, 7), (0, 3), (2, 0)):
        blocks = source.open(Cursor(cycle, 5))
        for _ in range(taken):
            next(blocks)
        blocks.close()  # type: ignore[attr-defined]
    again = [(b.sample, b.tree["id"].tolist()) for b in source.open(Cursor(1, 0))]
    assert again == [(b.sample, b.tree["id"].tolist()) for b in fresh.open(Cursor(1, 0))]
    assert sorted(i for _, ids in again for i in ids) == list(range(100))


def test_an_error_in_a_worker_comes_out_with_its_traceback():
    class Broken(Ids):
        def __getitem__(self, i: int) -> dict[str, int]:
            if i == 17:
                raise OSError("the disk is on fire")
            return super().__getitem__(i)

    source = adapt(DataLoader(Broken(40), batch_size=10, num_workers=2), segments=2, seed=0)
    with pytest.raises(OSError, match="on fire"):
        list(source.open(Cursor(0, 0)))
    assert len(list(source.open(Cursor(0, 20)))) == 2


class Notes:
    """What a person may hand to ``Feeder``, and what not."""


GIVE_A_LOADER = r"give a DataLoader: DataLoader\(dataset, batch_size=\.\.\.\)"


@pytest.mark.parametrize(
    ("thing", "hint"),
    [
        (lambda: None, "call it first"),
        (None, "returned None: was its `return` forgotten"),
        *((thing, "give a DataLoader") for thing in (3, Notes())),
        *((data, GIVE_A_LOADER) for data in (DATA, Ids(3), DrawingStream(4), range(5), "train")),
    ],
)
def test_what_cannot_be_fed_is_named_and_a_data_set_refused_in_favour_of_its_loader(thing, hint):
    with pytest.raises(BadSetting, match=hint):
        adapt(thing, segments=1, seed=0)


def test_a_sampler_that_asks_a_policy_is_refused_since_it_would_hear_of_no_trainer():
    with pytest.raises(BadSetting, match=r"SelectionSampler asks a policy \(InfoBatch\).*select=policy"):
        sampler = penstock.SelectionSampler(penstock.select.InfoBatch(25, epochs=3))
        adapt(DataLoader(Ids(25), 5, sampler=sampler), segments=1, seed=0)
    drawn_once = penstock.select.RandomSubsets(25, 0.2, fresh=False)
    for selection in ([1, 3, 5], drawn_once):
        sampler = penstock.SelectionSampler(selection)
        source: Any = adapt(DataLoader(Ids(25), 5, sampler=sampler), segments=1, seed=0)
        given = sorted(i for block in source.open(Cursor(1, 0)) for i in block.tree["id"].tolist())
        assert given == sampler.selection.ids.tolist()


@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("order", [{}, {"shuffle": True}, {"sampler": range(25)}], ids=str)
def test_a_loader_that_drops_its_last_batch_leaves_that_to_the_trainers(order, segments):
    source: Any = adapt(DataLoader(Ids(25), 10, drop_last=True, **order), segments=segments, seed=0)
    assert (source.samples, source.batches, source.drop_last) == (25, 3, True)
    blocks = list(source.open(Cursor(2, 0)))
    assert [block.rows for block in blocks] == [10, 10, 5]
    assert sorted(i for block in blocks for i in block.tree["id"].tolist()) == list(range(25))


class Unsized(ByEpoch):
    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __len__(self) -> int:
        raise self.error


@pytest.mark.parametrize("error", [TypeError, NotImplementedError])
def test_a_sampler_that_does_not_know_its_length_is_fed_without_one(error):
    source = adapt(DataLoader(Ids(60), batch_size=10, sampler=Unsized(error)), segments=None, seed=0)
    assert (source.samples, source.batches) == (None, None)
    source.close()


class Endless(IterableDataset[dict[str, int]]):
    """A stream without end, of which each worker gives a copy, as torch does."""

    def __iter__(self) -> Iterator[dict[str, int]]:
        return ({"id": i} for i in count())


@pytest.mark.parametrize(("workers", "persistent_workers"), [(0, False), (2, False), (2, True)])
def test_a_stream_without_end_opens_at_a_position_of_its_first_cycle(workers, persistent_workers):
    def source() -> Any:
        loader = DataLoader(Endless(), 5, num_workers=workers, persistent_workers=persistent_workers)
        return adapt(loader, segments=4, seed=0)

    def taken(at: Cursor, blocks: int) -> list[tuple[int, list[int]]]:
        opened = source().open(at)
        with closing(opened):
            return [(block.sample, block.tree["id"].tolist()) for block in islice(opened, blocks)]

    first = taken(Cursor(0, 0), 6)
    assert (source().samples, source().batches) == (None, None)
    assert taken(Cursor(0, 17), 3) == first[3:]
    copies = max(1, workers)
    assert [ids[0] for _, ids in first] == [5 * (i // copies) for i in range(6)]


ROOM = Path(compat.__file__).parent
SOURCE = Path(compat.__file__).parents[2]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter._shutdown_workers"),
        ("torch.utils.data._utils.collate", "default_collate_fn_map"),
        ("torch.utils.data._utils.collate", "collate_tensor_fn"),
    ],
)
def test_a_torch_without_a_name_that_is_needed_is_refused_when_a_loader_is_adapted(
    servers, tmp_path, module, name
):
    owner, _, last = name.rpartition(".")
    (tmp_path / "script.py").write_text(
        f"import {module} as module\n"
        f"delattr(module{'.' + owner if owner else ''}, {last!r})\n"
        "from torch.utils.data import DataLoader\nimport penstock\n"
        "penstock.Feeder(DataLoader([1, 2]), 'feed')\n"
    )
    done = Forked(servers["torch"], str(tmp_path / "script.py"), [], tmp_path / "said")
    assert done.wait() == 1
    said = (
        f"ImportError: torch {torch.__version__} has no {module}.{name}, which Penstock needs; it was tested with"
    )
    assert said in done.output


def test_no_other_file_uses_what_torch_does_not_promise():
    uses = re.compile(r"torch[\w.]*\._\w|import _[A-Za-z]|\b(loader|iterator)\._[a-z]|vars\(|reportPrivateUsage")
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        if "torch" in text and path.name != "compat.py" and path.is_relative_to(ROOM.parent):
            assert not uses.search(text), path


def test_the_release_that_these_tests_run_with_is_among_those_that_are_claimed():
    release = ".".join(torch.__version__.split(".")[:2])
    assert release in compat.TESTED
