"""A trainer that waits says what for: its own views, another trainer, ranks that do not come."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tests.forked import eventually

import penstock
from penstock.feed.statistics import FeederStatistics, TrainerStatistics
from penstock.feed.trainer import connection
from penstock.feed.trainer.error_texts import Reasons, slowness

ROW_BYTES = 1024


def arrays(rows: int = 400, block_rows: int = 4) -> penstock.ArraySource:
    ids = np.arange(rows)
    return penstock.ArraySource({"id": np.repeat(ids[:, None], ROW_BYTES // 8, axis=1)}, batch_size=block_rows)


def first_ids(batches: Iterable[Any]) -> list[int]:
    return [int(i) for batch in batches for i in batch["id"][:, 0]]


def test_views_that_fill_the_window_are_an_error_and_the_loader_goes_on_when_they_are_let_go(serve):
    serve(arrays(), window="64KiB")
    kept: list[Any] = []
    with penstock.attach("feed", 4, borrow=True) as loader:
        batches = iter(loader)
        with pytest.raises(penstock.errors.WindowHeld, match="hold 65,536 of the 65,536 bytes of the window"):
            kept.extend(batches)
        assert 12 <= len(kept) <= 16
        ids = first_ids(kept)
        kept.clear()
        ids += first_ids(batches)
    assert sorted(ids) == list(range(400))


def test_views_that_another_trainer_shares_are_an_error_too_once_it_has_caught_up(serve):
    serve(arrays(), window="64KiB")

    def read() -> list[int]:
        with penstock.attach("feed", 5) as loader:
            return first_ids(loader)

    with ThreadPoolExecutor(1) as threads, penstock.attach("feed", 4, borrow=True) as loader:
        batches = iter(loader)
        kept = [next(batches)]
        other = threads.submit(read)
        with pytest.raises(penstock.errors.WindowHeld):
            kept.extend(batches)
        kept.clear()
        first_ids(batches)
        assert sorted(other.result()) == list(range(400))


@pytest.mark.parametrize("rows", [400, 401, 403])
@pytest.mark.parametrize("blocks", [3, 4, 5])
def test_a_plain_loop_over_views_never_waits_for_itself(serve, rows, blocks):
    """Whatever the last, short block of an epoch leaves lying in the middle of the window."""
    serve(arrays(rows), window=4 * ROW_BYTES * blocks)
    with penstock.attach("feed", 4, borrow=True) as loader:
        for _ in range(4):
            assert sorted(first_ids(loader)) == list(range(rows))


def test_a_window_too_small_for_views_is_refused_with_both_sizes(serve):
    serve(arrays(), window=4 * ROW_BYTES * 2)
    too_few = pytest.raises(penstock.errors.BadSetting, match=r"8,192 bytes are fewer than 3 times its 4,096")
    with penstock.attach("feed", 4, borrow=True) as loader, too_few:
        next(iter(loader))
    with penstock.attach("feed", 4) as loader:
        assert len(list(loader)) == 100


class Gated:
    """Batches that come once the gate is open."""

    def __init__(self, gate: threading.Event) -> None:
        self._gate = gate

    def __iter__(self) -> Iterator[np.ndarray]:
        self._gate.wait(60)
        yield np.arange(8)


@pytest.mark.whole
def test_a_trainer_that_waits_long_says_so_once_on_stderr(serve, monkeypatch, capsys):
    monkeypatch.setattr(connection, "_ASK_AFTER_S", 0.5)
    gate = threading.Event()
    serve(Gated(gate))
    threading.Timer(4, gate.set).start()
    with penstock.attach("feed") as loader:
        assert len(list(loader)) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "feed 'feed' has sent this trainer" in lines[0]
    assert "its source (batches of a Gated) has given no batch" in lines[0]


def statistics(*trainers: TrainerStatistics, **changes: Any) -> FeederStatistics:
    return FeederStatistics("feed", 9, "rows", trainers=trainers, **changes)


def trainer(pid: int, **changes: Any) -> TrainerStatistics:
    whole: dict[str, Any] = dict.fromkeys(TrainerStatistics.__struct_fields__, 0)
    return TrainerStatistics(**{**whole, "pid": pid, "state": "reading", "waits_for": "", "world": 1, **changes})


@pytest.mark.parametrize(
    ("feed", "says"),
    [
        (
            statistics(trainer(1), trainer(2), held_back_by=2, held_back_s=31.2),
            "process 2, which holds the most of it, has read nothing for 31 s",
        ),
        (statistics(trainer(1), trainer(2), held_back_by=2, held_back_s=0.2), "process 2, .* is behind"),
        (statistics(trainer(1, waits_for="1 more trainer")), "begins with 1 more trainer, or 9 s after"),
        (statistics(trainer(1), waits_for="source"), r"its source \(rows\) has given no batch"),
        (statistics(trainer(1, state="ahead"), sample=500, cycle=3), "gone back to sample 500 of cycle 3"),
        (
            statistics(trainer(1, waits_for="the other ranks", world=3, rank=0), trainer(4, world=3, rank=2)),
            "of its 3 ranks 1 have yet to begin",
        ),
        (
            statistics(trainer(1, waits_for="cycle 1", cycle=1), sample=12_032, samples_per_cycle=20_000),
            "begins at cycle 1, and the feed is at sample 12,032 of 20,000$",
        ),
        (
            statistics(
                trainer(1, waits_for="cycle 2", cycle=2), samples_per_s=100.0, sample=500, samples_per_cycle=1_000
            ),
            "begins at cycle 2, and the feed is at sample 500 of 1,000 of cycle 0: about 15 s",
        ),
    ],
)
def test_what_is_waited_for_is_named(feed, says):
    line = slowness(feed, 1)
    assert "\n" not in line
    assert re.search(says, line), line


def test_what_was_told_is_told_again_of_a_wait_of_ten_seconds_and_a_feeder_that_is_silent_is_named(capsys):
    reasons = Reasons(1)
    for began_s, waits_for in ((50.0, "source"), (100.0, "source"), (200.0, "")):
        reasons.begin()
        for waited_s in range(2, 13):
            reasons.say(began_s, waited_s)
            reasons.ask("feed", 9)
            if waits_for:
                reasons.hear(statistics(trainer(1), waits_for=waits_for))
    told = [line.partition("nothing for ")[2] for line in capsys.readouterr().err.splitlines()]
    assert [line.partition(" s: ")[0] for line in told] == ["3", "11", "11", "4", "11"]
    assert "its feeder (process 9) does not answer" in told[-1] and "kill -CONT 9" in told[-1]


def test_releases_are_told_when_they_are_a_part_of_the_window_and_not_by_their_number(serve):
    """Sixteen large blocks can be an epoch: its rate and its lag would jump."""
    feeder = serve(arrays(), window="128KiB")
    with penstock.attach("feed", 4) as loader:
        batches = iter(loader)
        for taken in range(1, 12):
            next(batches)
            told = taken * 4
            eventually(lambda told=told: feeder.statistics().trainers[0].sample >= told, "it was not told")
