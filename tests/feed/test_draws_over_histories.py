"""Random numbers over feeders, kills, selections and resumes: no trainer gets a draw twice, for other samples."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from threading import Thread
from typing import Any

import numpy as np
import pytest
from tests.sources.drawing import GENERATORS, Drawing, drawn
from torch.utils.data import DataLoader, WeightedRandomSampler

import penstock
from penstock.sources.seeds import seed_process

N = 60


class Trained:
    """A trainer over its life, in whichever Loader: what it has drawn, and the state that it goes on from."""

    def __init__(self, select: Any) -> None:
        self.select = select
        self.loader: penstock.Loader | None = None
        self.seen: dict[str, list[float]] = {name: [] for name in GENERATORS}
        self._state: Any = None
        self._loop: Iterator[Any] = iter(())

    def come(self) -> None:
        self.loader = penstock.attach("feed", select=self.select)
        if self._state is not None:
            self.loader.load_state_dict(self._state)
        self._loop = iter(self.loader)

    def read(self, batches: int) -> None:
        assert self.loader is not None
        for _ in range(batches):
            if (batch := next(self._loop, None)) is None:
                self._loop = iter(self.loader)
                continue
            for name in self.seen.keys() & batch.keys():
                self.seen[name] += np.asarray(batch[name]).tolist()

    def choose(self, select: Any) -> None:
        if self.loader is not None:
            self.loader.select(select)
            self._loop = iter(self.loader)
            self.select = select

    def go(self) -> None:
        if self.loader is not None:
            self._state = self.loader.state_dict()
            self.loader.close()
            self.loader = None


class Fed:
    """A feed whose feeder is replaced by one that has just begun, as in a process of its own."""

    def __init__(self, make: Callable[[], Any], **settings: Any) -> None:
        self._make = make
        self._settings = settings
        self._begin()

    def _begin(self) -> None:
        seed_process(0)
        self._feeder = penstock.Feeder(self._make(), "feed", **self._settings)
        self._thread = Thread(target=self._feeder.run)
        self._thread.start()

    def end(self) -> None:
        self._feeder.close()
        self._thread.join()

    def die(self) -> None:
        self.end()
        self._begin()


def add_draws(tree: Any) -> Any:
    """A transform that draws for the rows of a block."""
    rows = [drawn(i) for i in np.asarray(tree["id"]).tolist()]
    return {key: np.array([row[key] for row in rows]) for key in rows[0]}


def weighted(workers: int) -> DataLoader[Any]:
    return DataLoader(Drawing(N), 5, sampler=WeightedRandomSampler([1.0] * N, N), num_workers=workers)


KINDS: dict[str, tuple[Callable[[int], Any], dict[str, Any]]] = {
    "shuffled": (lambda workers: DataLoader(Drawing(N), 5, shuffle=True, num_workers=workers), {}),
    "one segment": (lambda workers: DataLoader(Drawing(N), 5, num_workers=workers), {"segments": 1}),
    "persistent": (
        lambda workers: DataLoader(Drawing(N), 5, num_workers=workers, persistent_workers=workers > 0),
        {"segments": 3},
    ),
    "weighted": (weighted, {}),
    "transform": (lambda _: penstock.ArraySource({"id": np.arange(N)}, batch_size=5), {"transform": add_draws}),
    "transform of batches": (
        lambda _: [{"id": np.arange(start, start + 5)} for start in range(0, N, 5)],
        {"transform": add_draws},
    ),
}


def live(choose: random.Random, workers: int) -> list[Trained]:
    """Let trainers come, read, select, go and come again, and feeders die."""
    kind = choose.choice([*KINDS] if workers == 0 else [*KINDS][:4])
    make, settings = KINDS[kind]
    selects = kind in {"shuffled", "one segment", "persistent", "transform"}

    def some() -> Any:
        if not selects or choose.random() < 0.3:
            return None
        return sorted(choose.sample(range(N), choose.choice([7, 20, 40])))

    fed = Fed(lambda: make(workers), window="4MiB", prefetch=choose.choice([None, 1]), **settings)
    trained = [Trained(some()), Trained(some())]
    try:
        for _ in range(choose.randint(6, 20)):
            match choose.choice(["read", "read", "read", "die", "select", "go", "new"]):
                case "read":
                    one = choose.choice(trained)
                    if one.loader is None:
                        one.come()
                    one.read(choose.randint(1, 14))
                case "select" if selects:
                    choose.choice(trained).choose(some())
                case "go":
                    choose.choice(trained).go()
                case "new" if len(trained) < 4:
                    trained.append(Trained(some()))
                case "die":
                    for each in trained:
                        each.go()
                    fed.die()
                case _:
                    pass
    finally:
        for each in trained:
            with suppress(penstock.PenstockError):
                each.go()
        fed.end()
    return trained


@pytest.mark.whole
@pytest.mark.parametrize(
    ("workers", "histories"),
    [(0, 30), (2, 6), *(pytest.param(*many, marks=pytest.mark.soak) for many in ((0, 300), (2, 40)))],
)
def test_over_any_history_a_trainer_never_gets_a_draw_twice(workers: int, histories: int) -> None:
    for seed in range(histories):
        for i, each in enumerate(live(random.Random(seed), workers)):
            for name, draws in each.seen.items():
                again = [draw for draw, times in Counter(draws).items() if times > 1]
                assert not again, f"history {seed}: trainer {i} had {len(again)} draws of {name} twice"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_new_feeder_that_begins_for_one_that_selects_repeats_nothing_for_one_ahead(workers: int) -> None:
    fed = Fed(lambda: DataLoader(Drawing(N), 5, num_workers=workers), segments=1, window="4MiB")
    ahead, behind = Trained(None), Trained(range(0, N, 3))
    ahead.come()
    ahead.read(6)
    ahead.go()
    fed.die()
    behind.come()
    behind.read(1)
    ahead.come()
    ahead.read(6)
    behind.go()
    ahead.go()
    fed.end()
    for name in GENERATORS:
        assert len(set(ahead.seen[name])) == len(ahead.seen[name]) == N


class Shuffled:
    """Batches in an order that it draws as it goes."""

    def __iter__(self) -> Iterator[Any]:
        left = list(range(N))
        while left:
            yield {"id": np.array([left.pop(random.randrange(len(left))) for _ in range(5)])}


def test_a_transform_that_draws_does_not_move_a_stream_s_order(serve: Any) -> None:
    state, ids = None, list[int]()
    for most in (5, N):
        seed_process(0)
        feeder = serve(Shuffled(), transform=add_draws)
        with penstock.attach("feed", 5) as loader:
            if state is not None:
                loader.load_state_dict(state)
            ids += [id for batch in islice(loader, most) for id in batch["id"].tolist()]
            state = loader.state_dict()
        feeder.close()
    assert sorted(ids) == list(range(N))


def test_a_state_of_an_epoch_that_has_yet_to_begin_says_where_it_may(serve: Any) -> None:
    """In a feed that begins anew, its samples would come with the draws of the epoch before."""
    feeder = serve(DataLoader(Drawing(N), 5), segments=1)
    with penstock.attach("feed") as loader:
        list(loader)
        loader.select(range(10))
        state = loader.state_dict()
    feeder.close()
    serve(DataLoader(Drawing(N), 5), segments=1)
    with penstock.attach("feed", select=range(10)) as loader:
        loader.load_state_dict(state)
        next(iter(loader))
        assert loader.state_dict()["start"] == [1, 0]
