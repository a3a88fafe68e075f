"""Exceptions in the middle of next() (Ctrl-C, alarms, a transform that raises): no sample is lost or repeated."""

from __future__ import annotations

import gc
import itertools
import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tests.feed.reading import at_once, ids_of
from torch.utils.data import DataLoader

import penstock
from penstock.feed.trainer.connection import FeedConnection
from penstock.feed.trainer.rows import RowStream

ROWS = 600
ARMED: list[bool] = []  # empty unless an alarm may interrupt

pytestmark = [
    pytest.mark.timeout(method="thread"),  # the alarm is the tests' own
    pytest.mark.usefixtures("no_gc_callbacks"),
]


class Interrupted(Exception):
    """What an alarm raises."""


def arrays(block_rows: int = 16) -> penstock.ArraySource:
    """Each row says its number in all its bytes."""
    ids = np.arange(ROWS)
    tree = {"id": ids, "payload": np.repeat(ids[:, None], 64, axis=1)}
    return penstock.ArraySource(tree, batch_size=block_rows, segments=4)


def stream() -> list[dict[str, Any]]:
    """Batches of unknown number."""

    class Batches:
        def __iter__(self) -> Iterator[dict[str, Any]]:
            for start in range(0, ROWS, 20):
                ids = np.arange(start, start + 20)
                yield {"id": ids, "payload": np.repeat(ids[:, None], 64, axis=1)}

    return Batches()  # type: ignore[return-value]


def numbers() -> DataLoader[dict[str, int]]:
    return DataLoader([{"id": i, "payload": i} for i in range(ROWS)], batch_size=16, shuffle=True)  # type: ignore[arg-type]


@contextmanager
def alarms(seed: int) -> Iterator[Callable[[], None]]:
    """Arms an alarm at a random instant, from microseconds to some milliseconds on."""
    choose = random.Random(seed)

    def ring(_number: int, _frame: Any) -> None:
        if ARMED:  # else another thread has taken the signal, and is late with it
            raise Interrupted

    def arm() -> None:
        ARMED.append(True)
        signal.setitimer(signal.ITIMER_REAL, 10 ** choose.uniform(-5.3, -2.5))

    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield arm
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def attempt(batches: Iterator[Any], got: list[Any], arm: Callable[[], None]) -> bool:
    """Take the next batch, if there is one, under an alarm; whether that hit."""
    hit = False
    try:
        arm()
        # Inside one call of C's, or Python could lose a batch on its way from next() to us.
        got.extend(map(next, (batches,)))
    except Interrupted:
        hit = True
    while True:
        try:
            ARMED.clear()
            signal.setitimer(signal.ITIMER_REAL, 0)
            return hit
        except Interrupted:
            hit = True


def read_on(loader: penstock.Loader, arm: Callable[[], None], keep: int = 0) -> tuple[int, list[int]]:
    """Read an epoch under alarms; how many hit, and the ids that came."""
    batches = iter(loader)
    got: list[Any] = []
    ids: list[int] = []
    hits = 0
    more = True
    while more:
        seen = len(got)
        interrupted = attempt(batches, got, arm)
        hits += interrupted
        more = interrupted or len(got) > seen
        for batch in got:
            payload = batch["payload"].reshape(len(batch["id"]), -1)
            assert (payload == batch["id"].reshape(-1, 1)).all(), "bytes of another sample"
        ids += ids_of(got[seen:])
        del got[: len(got) - keep]
        batch = payload = None
    return hits, ids


CASES: dict[str, tuple[Callable[[], Any], dict[str, Any], dict[str, Any]]] = {
    "aligned": (arrays, {}, {"batch_size": 16}),
    "unaligned": (arrays, {}, {"batch_size": 37}),
    "small window": (arrays, {"window": "64KiB"}, {"batch_size": 50}),
    "batches larger than the window": (arrays, {"window": "32KiB"}, {"batch_size": 100}),
    "views": (arrays, {"window": "128KiB"}, {"batch_size": 8, "borrow": True}),
    "views across blocks": (arrays, {"window": "128KiB"}, {"batch_size": 11, "borrow": True}),
    "drop_last": (arrays, {}, {"batch_size": 64, "drop_last": True}),
    "evictions": (arrays, {"stall_timeout": 60.0}, {"batch_size": 37}),
    "a stream": (stream, {}, {"batch_size": 33}),
    "a torch loader": (numbers, {}, {"batch_size": 30}),
    "two blocks": (arrays, {"window": "20KiB"}, {"batch_size": 37}),
}


@pytest.mark.parametrize("interrupts", [15, pytest.param(1000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("case", CASES)
def test_interrupts_at_random_instants_lose_and_repeat_nothing(clean, serve, case, interrupts):
    make, settings, options = CASES[case]
    serve(make(), **settings)
    hit = epochs = 0
    with alarms(interrupts) as arm, penstock.attach("feed", **options) as loader:
        while hit < interrupts:
            assert loader.epoch == epochs
            hits, ids = read_on(loader, arm, keep=1 if options.get("borrow") else 0)
            hit, epochs = hit + hits, epochs + 1
            if options.get("drop_last"):
                assert len(ids) == len(set(ids)) == ROWS // 64 * 64
            else:
                assert sorted(ids) == list(range(ROWS)), f"epoch {epochs}, after {hit} interrupts"
        assert loader.statistics().samples == epochs * len(ids)


def test_an_interrupt_in_the_last_epoch_of_a_feed_that_has_ended_costs_nothing(clean, serve):
    """The feeder is gone when the interrupt comes: what lies in the ring is enough."""
    feeder = serve(arrays(), epochs=1)
    with alarms(3) as arm, penstock.attach("feed", 50) as loader:
        batches = iter(loader)
        ids = [int(i) for i in next(batches)["id"]]
        feeder.wait_until_ending() if feeder.statistics().blocks < ROWS // 16 else None
        while len(ids) < ROWS:
            got: list[Any] = []
            attempt(batches, got, arm)
            ids += ids_of(got)
    assert sorted(ids) == list(range(ROWS))


def test_small_blocks_that_are_kept_never_stop_the_feed(serve):
    """As it was found: 1,024 blocks of one row were kept for one batch, and no more may be on their way."""
    serve(penstock.ArraySource({"id": np.arange(2500)}, batch_size=1, segments=2))
    with penstock.attach("feed", 2000) as loader:
        assert sorted(ids_of(loader)) == list(range(2500))
    with penstock.attach("feed", 8) as loader:
        next(iter(loader))
        assert sorted(ids_of(loader)) == list(range(2500))


@pytest.mark.parametrize("place", ["RowStream.start", "Connection.close", "Connection.start"])
def test_a_failover_that_is_broken_off_is_gone_on_with(forks_feeders_with_torch, monkeypatch, place):
    """As it was found: a feeder that was never asked for rows was waited for."""
    owner_name, method = place.split(".")
    owner = {"RowStream": RowStream, "Connection": FeedConnection}[owner_name]
    true = getattr(owner, method)
    with penstock.share(arrays, "failover", 37, linger=0.5, window="64KiB") as loader:  # not all lies there
        batches = iter(loader)
        ids = [int(i) for i in next(batches)["id"]]
        os.kill(loader.statistics().feeder_pid, signal.SIGKILL)

        def broken_off(self: Any, *rest: Any, **named: Any) -> Any:
            if loader.statistics().feeder_pid != before or method == "close":
                monkeypatch.setattr(owner, method, true)
                raise Interrupted
            return true(self, *rest, **named)

        before = loader.statistics().feeder_pid
        monkeypatch.setattr(owner, method, broken_off)
        got: list[Any] = []
        interrupted = 0
        while len(ids) + sum(len(batch["id"]) for batch in got) < ROWS:
            try:
                got.append(next(batches))
            except Interrupted:
                interrupted += 1
        assert interrupted == 1
        ids += ids_of(got)
        assert loader.statistics().failovers == 1
    assert sorted(ids) == list(range(ROWS))
    gc.collect()  # which tells of a socket that nobody closed


def test_ranks_of_a_stream_go_on_where_one_was_interrupted(serve):
    """As it was found: the rows of the other ranks were skipped again."""
    serve(stream())

    def train(rank: int) -> list[int]:
        got: list[int] = []
        with penstock.attach("feed", 8, shard=(rank, 2), drop_last=True) as loader:
            batches = iter(loader)
            poll = loader._rows.connection.poll
            for n in range(1000):
                if rank == 0 and n == 1:
                    loader._rows.connection.poll = raises_once(loader._rows.connection, poll)  # type: ignore[method-assign]
                try:
                    got += [int(i) for i in next(batches)["id"]]
                except Interrupted:
                    continue
                except StopIteration:
                    break
        return got

    def raises_once(connection: Any, poll: Callable[[], None]) -> Callable[[], None]:
        calls = iter(range(100))

        def polled() -> None:
            if next(calls) == 1:
                connection.poll = poll
                raise Interrupted
            poll()

        return polled

    one, other = at_once(train, 2)
    assert sorted(one + other) == list(range(ROWS // 16 * 16))


def test_a_loop_over_an_endless_stream_that_was_broken_off_begins_again_at_once(serve):
    class Endless:
        def __iter__(self) -> Iterator[np.ndarray]:
            for start in itertools.count():
                yield np.arange(8) + start * 8

    serve(Endless())
    with penstock.attach("feed") as loader, penstock.attach("feed") as other:
        others = iter(other)
        for _ in range(3):
            seen = [int(batch[0]) for batch in itertools.islice(loader, 5)]
            assert [b - a for a, b in itertools.pairwise(seen)] == [8] * 4
            next(others)


class Raises:
    """A transform that raises at some calls, after it has spoilt its batch."""

    def __init__(self, at: set[int], error: type[BaseException]) -> None:
        self.calls = 0
        self._at, self._error = at, error

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.calls += 1
        if self.calls in self._at:
            batch["id"][:] = -1
            raise self._error("spoilt")
        return batch


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("size", [16, 37, 300])
def test_a_batch_whose_transform_raised_comes_again_as_it_was(serve, size, error):
    serve(arrays())
    raises = Raises({1, 3, 4}, error)
    with penstock.attach("feed", size, transform=raises) as loader:
        batches, ids = iter(loader), []
        while len(ids) < ROWS:
            try:
                ids += [int(i) for i in next(batches)["id"]]
            except error:
                assert f"{len(ids)}" in repr(loader)
        assert sorted(ids) == list(range(ROWS))
        assert loader.epoch == 1


@pytest.mark.parametrize("size", [16, 37, 300])
def test_a_state_saved_after_the_transform_raised_brings_the_batch_that_was_not_handed_out(serve, size):
    """As it was found: 93 of 100 samples came, without an error."""
    serve(arrays())
    ids: list[int] = []
    with penstock.attach("feed", size, transform=Raises({2}, ValueError)) as loader:
        with pytest.raises(ValueError, match="spoilt"):
            for batch in loader:
                ids += [int(i) for i in batch["id"]]
        state = json.loads(json.dumps(loader.state_dict()))
        assert state["delivered"] == len(ids) == size
        assert loader.statistics().samples == size
    with penstock.attach("feed", size) as loader:
        loader.load_state_dict(state)
        ids += ids_of(loader)
    assert sorted(ids) == list(range(ROWS))


@pytest.mark.parametrize("resumes", [20, pytest.param(1000, marks=pytest.mark.soak)])
def test_states_saved_at_random_under_alarms_bring_back_the_very_next_sample(serve, resumes):
    """Interrupted, saved, loaded into another Loader of another batch size, and again."""
    serve(arrays(), window="256KiB")
    choose = random.Random(resumes)
    state: dict[str, Any] | None = None
    ids: list[int] = []
    with alarms(7) as arm:
        for _ in range(resumes):
            loader = penstock.attach("feed", choose.randint(1, 90))
            if state is not None:
                loader.load_state_dict(state)
            batches, got = iter(loader), []
            for _ in range(choose.randint(1, 6)):
                attempt(batches, got, arm)
            epoch = state["epoch"] if state else 0
            state = json.loads(json.dumps(loader.state_dict()))
            loader.close()
            ids += ids_of(got)
            if state["epoch"] > epoch:
                assert sorted(ids) == list(range(ROWS))
                ids = []
            assert len(ids) == state["delivered"]
            assert len(set(ids)) == len(ids)
