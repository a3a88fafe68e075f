"""How far a feed runs ahead: as far as its fastest trainer needs, and never so little that one waits for ever."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.feed.reading import ids_of

import penstock

SAMPLES, ROWS = 200, 10


def arrays(width: int = 1) -> penstock.ArraySource:
    ids = np.arange(SAMPLES)
    return penstock.ArraySource({"id": ids, "row": np.repeat(ids, width).reshape(-1, width)}, batch_size=ROWS)


@pytest.mark.parametrize("batch_size", [1, 7, 10, 35, 1000])
def test_with_one_batch_ready_every_batch_size_gets_its_epochs(serve: Any, batch_size: int) -> None:
    serve(arrays(), prefetch=1)
    with penstock.attach("feed", batch_size) as loader:
        for _ in range(2):
            assert sorted(ids_of(loader)) == list(range(SAMPLES))


def test_who_keeps_every_view_gets_its_epoch_too(serve: Any) -> None:
    serve(arrays(), prefetch=1)
    with penstock.attach("feed", borrow=True) as loader:
        kept = list(loader)
        assert sorted(ids_of(kept)) == list(range(SAMPLES))
        del kept


@pytest.mark.parametrize(
    ("width", "options", "batches", "untold"),
    [(1, {"prefetch": 3}, 3, 1), (1, {}, SAMPLES // ROWS, 5), (100_000, {}, 2, 2)],
    ids=["three batches", "at most a cycle of small ones", "two large ones"],
)
def test_a_feed_is_no_further_ahead_of_its_trainer(
    serve: Any, width: int, options: Any, batches: int, untold: int
) -> None:
    """It may not have told yet that it has released ``untold`` blocks, a quarter of those kept ready."""
    feeder = serve(arrays(width), **options)
    with penstock.attach("feed") as loader:
        seen = 0
        for _ in range(2):
            for batch in loader:
                seen += len(batch["id"])
                assert feeder.statistics().samples <= seen + (batches + untold) * ROWS


def test_a_stream_s_feed_is_no_further_ahead_than_a_cycle_once_it_knows_how_long_that_is(serve: Any) -> None:
    class Stream:
        def __iter__(self) -> Iterator[Any]:
            return ({"id": np.arange(i, i + ROWS)} for i in range(0, SAMPLES, ROWS))

    feeder = serve(Stream())
    with penstock.attach("feed") as loader:
        seen = len(ids_of(loader))
        for batch in loader:
            seen += len(batch["id"])
            time.sleep(0.002)  # it has time to run ahead
            assert feeder.statistics().samples <= seen + SAMPLES + ROWS


def test_who_waits_for_the_next_cycle_is_not_kept_waiting_by_who_does_not_read(serve: Any) -> None:
    serve(arrays(100_000), segments=1)
    with penstock.attach("feed") as slow, penstock.attach("feed") as late:
        batches = iter(slow)
        first = next(batches)["id"].tolist()  # the window no longer holds the beginning of this cycle
        assert sorted(ids_of(late)) == list(range(SAMPLES))
        assert sorted(first + ids_of(batches)) == list(range(SAMPLES))


def test_nothing_is_read_for_a_trainer_that_leaves(serve: Any) -> None:
    feeder = serve(arrays(), prefetch=20)
    for _ in range(30):
        before = feeder.statistics().samples
        with penstock.attach("feed") as loader:
            next(iter(loader))
        while feeder.statistics().trainers:
            time.sleep(0.001)
        assert feeder.statistics().samples - before <= (1 + 20) * ROWS


def test_a_trainer_that_loads_the_state_it_is_in_goes_on_with_what_it_has(serve: Any) -> None:
    feeder = serve(arrays(), segments=1)
    with penstock.attach("feed") as loader:
        batches = iter(loader)
        seen = [i for _ in range(3) for i in next(batches)["id"].tolist()]
        loader.load_state_dict(loader.state_dict())
        assert sorted(seen + ids_of(loader)) == list(range(SAMPLES))
        assert feeder.statistics().reopened == 0
