"""Promise 7: a state brings back the very next sample, at any batch size, from any feeder of the same feed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.feed.reading import at_once, ids_of
from tests.sources.drawing import DrawingStream
from torch.utils.data import DataLoader, IterableDataset

import penstock

numbers = itertools.count()


def later_by_json(loader: penstock.Loader) -> dict[str, Any]:
    """A state as a checkpoint keeps it."""
    return json.loads(json.dumps(loader.state_dict()))


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    samples=st.integers(1, 120),
    source=st.integers(1, 30),
    segments=st.integers(1, 9),
    size=st.integers(1, 50),
    other_size=st.integers(1, 50),
    skipped_epochs=st.integers(0, 2),
    taken=st.integers(0, 40),
    restart=st.booleans(),
)
def test_any_state_brings_back_the_very_next_sample(
    serve, samples, source, segments, size, other_size, skipped_epochs, taken, restart
):
    assume(skipped_epochs or taken)

    def start() -> penstock.Feeder:
        arrays = penstock.ArraySource({"id": np.arange(samples)}, batch_size=source, segments=segments, seed=5)
        return serve(arrays, name, seed=5, window="64KiB")

    name = f"feed {next(numbers)}"
    feeder = start()
    with penstock.attach(name, size) as first:
        for _ in range(skipped_epochs):
            ids_of(first)
        batches = iter(first)
        given = ids_of(itertools.islice(batches, taken))
        state = later_by_json(first)
        rest = ids_of(batches)
        epoch_after = ids_of(first)
    if taken and len(given) == samples:  # it was saved behind the last batch: what comes is the next epoch
        assert rest == []
        rest, epoch_after = epoch_after, None
    if restart:
        feeder.close()
        feeder = start()
    with penstock.attach(name, other_size) as second:
        second.load_state_dict(state)
        assert second.epoch == state["epoch"]
        assert ids_of(second) == rest
        if epoch_after is not None:
            assert ids_of(second) == epoch_after
    feeder.close()


SOURCES = {
    "list of batches": lambda: [{"id": np.arange(i, i + 7)} for i in range(0, 49, 7)],
    "stream": lambda: DataLoader(DrawingStream(53), batch_size=6),
    "loader": lambda: DataLoader([{"id": i} for i in range(53)], batch_size=6, shuffle=True),
    "sampler": lambda: DataLoader([{"id": i} for i in range(53)], 6, sampler=list(range(52, -1, -1))),
}


@pytest.mark.parametrize(
    ("taken", "drop_last", "restart"),
    [(1, False, True), (3, True, False), (100, True, True), (100, False, False), (100, False, True)],
)
@pytest.mark.parametrize("kind", SOURCES)
def test_every_kind_of_source_resumes_in_the_second_epoch(serve, kind, taken, restart, drop_last):
    """Also behind the last batch, and behind the last full one, where rows are left out."""
    feeder = serve(SOURCES[kind](), segments=4, seed=3)
    with penstock.attach("feed", 10, drop_last=drop_last) as first:
        ids_of(first)
        batches = iter(first)
        ids_of(itertools.islice(batches, taken))
        state = later_by_json(first)
        rest = ids_of(batches)
        epoch_after = ids_of(first)
    if restart:
        feeder.close()
        serve(SOURCES[kind](), segments=4, seed=3)
    with penstock.attach("feed", 10, drop_last=drop_last) as second:
        second.load_state_dict(state)
        if rest:
            assert ids_of(second) == rest
        assert ids_of(second) == epoch_after


def test_a_late_trainer_of_an_endless_stream_joins_at_the_present_block_and_is_told(serve, capsys):
    class Endless(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return itertools.count()

    serve(DataLoader(Endless(), batch_size=10), window="4KiB")
    with penstock.attach("feed") as early, penstock.attach("feed") as late:
        firsts = [int(batch[0]) for batch in itertools.islice(early, 20)]
        assert firsts == list(range(0, 200, 10))
        joined = [int(batch[0]) for batch in itertools.islice(late, 3)]
        assert joined[0] >= 190  # the window holds the last that was handed out
        assert joined == list(range(joined[0], joined[0] + 30, 10))
        assert f"joins at its sample {joined[0]:,}" in capsys.readouterr().err


def test_a_state_saved_inside_the_loop_at_the_last_batch_is_the_start_of_the_next_epoch(serve):
    serve(penstock.ArraySource({"id": np.arange(40)}, batch_size=8, segments=2))
    with penstock.attach("feed", 10) as first:
        states = [later_by_json(first) for _ in first]
        assert [state["delivered"] for state in states] == [10, 20, 30, 0]
        assert [state["epoch"] for state in states] == [0, 0, 0, 1]
        epoch_after = ids_of(first)
        first.load_state_dict(states[-1])
        assert first.epoch == 1
        assert ids_of(first) == epoch_after


def test_trainers_resume_from_many_positions_at_once(serve):
    """The feeder goes back and forth, and each gets its own rest."""

    def start() -> penstock.Feeder:
        return serve(
            penstock.ArraySource({"id": np.arange(200)}, batch_size=10, segments=5, seed=1), seed=1, window=4096
        )

    feeder = start()
    states, rests = [], []
    for taken in (1, 4, 9, 13):
        with penstock.attach("feed", 13) as loader:
            batches = iter(loader)
            ids_of(itertools.islice(batches, taken))
            states.append(later_by_json(loader))
            rests.append(ids_of(batches) + ids_of(loader))
    feeder.close()
    start()

    def resume(i: int) -> list[int]:
        with penstock.attach("feed", 5 + i) as loader:
            loader.load_state_dict(states[i])
            return ids_of(loader) + ids_of(loader)

    assert at_once(resume, len(states)) == rests


def test_a_loader_goes_back_to_its_own_state_in_the_middle_of_a_loop(serve):
    serve(penstock.ArraySource({"id": np.arange(60)}, batch_size=8, segments=3))
    with penstock.attach("feed", 7) as loader:
        batches = iter(loader)
        ids_of(itertools.islice(batches, 2))
        state = loader.state_dict()
        rest = ids_of(itertools.islice(batches, 3))
        loader.load_state_dict(state)
        with pytest.raises(penstock.errors.LoaderClosed, match="replaced this iterator"):
            next(batches)
        again = ids_of(loader)
        assert again[: len(rest)] == rest
        assert len(again) == 60 - 14


def loader_of(samples: int, batch_size: int) -> Any:
    return DataLoader([{"id": i} for i in range(samples)], batch_size, shuffle=True)


def arrays_of(**options: Any) -> Any:
    return penstock.ArraySource({"id": np.arange(40)}, **{"batch_size": 4, "segments": 2, "seed": 1, **options})


@pytest.mark.parametrize(
    ("first", "other", "settings"),
    [
        (lambda: loader_of(40, 4), lambda: loader_of(40, 4), {"segments": 5}),
        (lambda: loader_of(40, 4), lambda: loader_of(40, 4), {"seed": 9}),
        (lambda: loader_of(40, 4), lambda: loader_of(41, 4), {}),
        (lambda: loader_of(40, 4), lambda: loader_of(40, 5), {}),
        (arrays_of, lambda: arrays_of(seed=2), {}),  # what decides the order stands in the source
        (arrays_of, lambda: arrays_of(shuffle=False), {}),
    ],
)
def test_a_state_of_another_order_is_refused(serve, first, other, settings):
    feeder = serve(first(), segments=2)
    with penstock.attach("feed", 10) as loader:
        next(iter(loader))
        state = later_by_json(loader)
    feeder.close()
    serve(other(), **{"segments": 2, **settings})
    with penstock.attach("feed", 10) as loader:
        with pytest.raises(penstock.errors.BadSetting, match="another order of samples"):
            loader.load_state_dict(state)
        assert sorted(ids_of(loader)) == list(range(loader.samples))


@pytest.mark.parametrize(
    ("state", "says"),
    [
        *((state, "does not come from") for state in (None, [], {}, {"version": 2})),
        ({"version": 1, "plan": None}, "has version 1, and penstock"),
    ],
)
def test_a_state_of_nonsense_is_refused(serve, state, says):
    serve({"id": np.arange(9)})
    with penstock.attach("feed", 4) as loader, pytest.raises(penstock.errors.BadSetting, match=says):
        loader.load_state_dict(state)


def test_a_state_is_plain_numbers_also_for_torch(serve, tmp_path):
    serve({"id": torch.arange(20)})
    with penstock.attach("feed", 4) as loader:
        next(iter(loader))
        torch.save(loader.state_dict(), tmp_path / "state.pt")
        assert torch.load(tmp_path / "state.pt", weights_only=True) == loader.state_dict()
