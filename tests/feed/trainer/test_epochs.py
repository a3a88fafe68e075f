"""Promises 1 to 4: each sample once, at any batch size, in the loader's own batches, whose ids a trainer knows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from tests.feed.reading import at_once
from tests.forked import Forked
from tests.sources.drawing import DrawingStream, assert_identical
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

import penstock


@pytest.mark.parametrize(
    ("order", "segments"), [({}, 1), ({"shuffle": True}, 3), ({"sampler": range(100)}, 3)], ids=str
)
def test_each_trainer_gets_what_its_own_loader_would_count(serve, order, segments):
    """Whoever made the feed: its loader's ``drop_last`` cuts nobody's batches but those of its own size."""
    data: Any = [{"id": i} for i in range(100)]
    serve(DataLoader(data, 64, drop_last=True, **order), segments=segments)
    for size in (64, 32, 7, 100, 101):
        for drop_last in (None, True, False):
            own = DataLoader(data, size, drop_last=drop_last is not False, collate_fn=len, **order)
            with penstock.attach("feed", size, drop_last=drop_last) as loader:
                for _ in range(2):
                    assert len(loader) == len(own)
                    assert [len(batch["id"]) for batch in loader] == list(own)


TRAINER = """
import sys, numpy as np, penstock
assert "torch" not in sys.modules
seen = []
with penstock.attach("many", int(sys.argv[1])) as loader:
    for _ in range(2):
        ids = np.concatenate([batch["id"] for batch in loader])
        assert np.array_equal(np.sort(ids), np.arange(3000)), "lost or repeated"
"""


@pytest.mark.whole
def test_sixty_four_trainers_finish_with_every_sample_once(serve, servers, tmp_path):
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    source = penstock.ArraySource({"id": np.arange(3000), "x": np.zeros((3000, 64), np.float32)}, batch_size=64)
    serve(source, "many", window="4MiB")
    trainers = [Forked(servers["numpy"], str(script), [str(7 + i)], tmp_path / f"{i}") for i in range(64)]
    for trainer in trainers:
        assert trainer.wait() == 0, trainer.output


N = 103
SQUARES: Any = [{"square": i * i, "name": str(i)} for i in range(N)]


SOURCES: dict[str, Callable[[], Any]] = {
    "arrays": lambda: penstock.ArraySource({"square": np.arange(N) ** 2}, batch_size=10, segments=4),
    "shuffled": lambda: DataLoader(SQUARES, 10, shuffle=True),
    "in order": lambda: DataLoader(SQUARES, 10),
    "sampler": lambda: DataLoader(SQUARES, 10, sampler=WeightedRandomSampler([1.0] * N, N)),
}


@pytest.mark.parametrize(
    ("kind", "size", "borrow"),
    [
        ("arrays", 10, True),
        ("arrays", 33, False),
        ("shuffled", 7, True),
        ("in order", 33, True),
        ("sampler", 10, False),
    ],
)
def test_ids_are_those_of_the_batch(serve: Any, kind: str, size: int, borrow: bool) -> None:
    serve(SOURCES[kind](), window="1MiB")
    with penstock.attach("feed", size, borrow=borrow) as loader:
        assert loader.ids is None
        for _ in range(2):
            seen = []
            for batch in loader:
                assert loader.ids is not None and loader.ids.dtype == np.int64
                assert (loader.ids**2).tolist() == np.asarray(batch["square"]).tolist()
                seen += loader.ids.tolist()
            assert kind == "sampler" or sorted(seen) == list(range(N))


def test_ids_of_ranks_are_their_own_also_after_a_resume(serve: Any) -> None:
    serve(SOURCES["arrays"](), window="1MiB")
    states: list[Any] = []

    def some_of(rank: int) -> list[int]:
        seen = []
        with penstock.attach("feed", 8, shard=(rank, 2)) as loader:
            for batch in islice(loader, 3):
                assert loader.ids is not None and (loader.ids**2).tolist() == batch["square"].tolist()
                seen += loader.ids.tolist()
            states.append(loader.state_dict())
        return seen

    seen = [id for part in at_once(some_of, 2) for id in part]
    assert len(seen) == 48 and states[0] == states[1]
    with penstock.attach("feed", 8) as alone:
        alone.load_state_dict(states[0])
        for batch in alone:
            assert alone.ids is not None and (alone.ids**2).tolist() == batch["square"].tolist()
            seen += alone.ids.tolist()
    assert sorted(seen) == list(range(N))


def test_whole_batches_have_the_ids_of_what_went_into_them(serve: Any) -> None:
    def collate(samples: list[Any]) -> Any:
        return torch.tensor([sample["square"] for sample in samples])

    serve(DataLoader(SQUARES, 10, shuffle=True, collate_fn=collate), whole_batches=True)
    with penstock.attach("feed") as loader:
        for batch in loader:
            assert loader.ids is not None and (loader.ids**2).tolist() == batch.tolist()


def test_a_stream_s_samples_have_no_ids(serve: Any) -> None:
    serve(DataLoader(DrawingStream(N), 10))
    with penstock.attach("feed") as loader:
        next(iter(loader))
        assert loader.ids is None


def test_ids_that_are_too_many_for_a_message_are_not_told(serve: Any) -> None:
    serve(penstock.ArraySource({"x": np.arange(20_000)}, batch_size=10_000))
    with penstock.attach("feed", 10) as loader:
        next(iter(loader))
        assert loader.ids is None


SEED = 4321


class Images(Dataset[Any]):
    """Random crops, labels and names, as a trainer has them."""

    def __len__(self) -> int:
        return 45

    def __getitem__(self, i: int) -> Any:
        return {"image": torch.rand(3, 4, 4) + i, "label": i, "name": f"{i}.jpg", "pair": (float(i), i % 2 == 0)}


MAKERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "in order": lambda: DataLoader(Images(), 8, num_workers=2),
    "shuffled": lambda: DataLoader(Images(), 8, num_workers=2, shuffle=True),
    "drop_last": lambda: DataLoader(Images(), 8, num_workers=1, shuffle=True, drop_last=True),
}


def alone(make: Callable[[], DataLoader[Any]], epochs: int) -> list[list[Any]]:
    torch.manual_seed(SEED)
    loader = make()
    return [list(loader) for _ in range(epochs)]


@pytest.mark.parametrize(("case", "borrow"), [("in order", True), ("drop_last", False)])
def test_a_trainer_gets_the_batches_of_the_loader_alone(serve, case, borrow):
    expected = alone(MAKERS[case], 2)
    serve(MAKERS[case](), segments=1, seed=SEED)
    with penstock.attach("feed", borrow=borrow) as loader:
        assert len(loader) == len(expected[0])
        for epoch in expected:
            for batch, own in zip(loader, epoch, strict=True):
                assert_identical(batch, own)
                del batch


def test_all_trainers_get_the_same_order_at_any_batch_size(serve):
    expected = [batch for epoch in alone(MAKERS["shuffled"], 2) for batch in epoch]
    labels = torch.cat([batch["label"] for batch in expected])
    images = torch.cat([batch["image"] for batch in expected])
    serve(MAKERS["shuffled"](), segments=1, seed=SEED)
    loaders = [penstock.attach("feed", size) for size in (1, 7, 8, 45)]

    def train(i: int) -> None:
        with loaders[i] as loader:
            batches = [batch for _ in range(2) for batch in loader]
        assert torch.equal(torch.cat([batch["label"] for batch in batches]), labels)
        assert torch.equal(torch.cat([batch["image"] for batch in batches]), images)

    at_once(train, len(loaders))
