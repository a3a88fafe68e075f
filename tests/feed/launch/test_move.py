"""A trainer that is asked to move begins its next epoch on the other feed, or stays and says why."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.feed.reading import ids_of

import penstock
from penstock.feed.launch.feeds import move

SAMPLES = 120
pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("forks_feeders")]


def make(samples: int = SAMPLES) -> Any:
    return penstock.ArraySource({"id": np.arange(samples)}, batch_size=10, segments=4)


def make_of_unknown_length() -> Any:
    return [{"id": np.arange(start, start + 10)} for start in range(0, SAMPLES, 10)]


def make_of(path: str) -> Any:
    return penstock.ArraySource({"id": np.fromfile(path, np.uint8).astype(np.int64)}, batch_size=10, segments=4)


share = functools.partial(penstock.share, linger=0.3)


def whole(batches: Any) -> bool:
    return sorted(ids_of(batches)) == list(range(SAMPLES))


@pytest.fixture
def other() -> Iterator[penstock.Loader]:
    """A trainer of feed b."""
    with share(make, "b") as loader:
        yield loader


def test_a_trainer_that_has_moved_selects_where_it_is(other):
    with share(make, "a") as first, penstock.attach("a", 10) as loader:
        list(loader)
        move("a", os.getpid(), "b")
        assert whole(loader) and loader.name == "b" and whole(first)
        loader.select([3, 5, 7])
        assert loader.name == "b" and sorted(ids_of(loader)) == [3, 5, 7]


def test_a_trainer_that_selects_before_it_has_moved_moves_still(other):
    with share(make, "a", 10) as loader:
        list(loader)
        move("a", os.getpid(), "b")
        loader.select([3, 5, 7])
        assert sorted(ids_of(loader)) == [3, 5, 7] and loader.name == "b"


@pytest.mark.parametrize("options", [{}, {"borrow": True}, {"batch_size": 16, "drop_last": True}], ids=str)
def test_a_trainer_moves_at_its_next_epoch_and_no_earlier(options, other, capfd):
    rows = SAMPLES // 16 * 16 if "drop_last" in options else SAMPLES
    with share(make, "a", **options) as loader:
        assert len(set(ids_of(loader))) == rows
        batches = iter(loader)
        first = [next(batches)]
        move("a", os.getpid(), "b")
        feeder = loader.statistics().feeder_pid
        first += list(batches)
        assert loader.statistics().feeder_pid == feeder
        assert loader.name == "a"
        for _ in range(2):
            assert len(set(ids_of(loader))) == rows
            assert loader.name == loader.statistics().name == "b"
            assert loader.statistics().feeder_pid == other.statistics().feeder_pid
        assert loader.epoch == 4
        assert len(set(ids_of(first))) == rows  # views of the first feed's ring still hold what they held
        del batches, first
    assert "moves from feed 'a' to 'b'" in capfd.readouterr().err
    assert whole(other)


def test_a_trainer_that_breaks_its_epoch_off_moves_too(other):
    with share(make, "a") as loader:
        next(iter(loader))
        move("a", os.getpid(), "b")
        assert whole(loader)
        assert (loader.name, loader.epoch) == ("b", 2)
    assert whole(other)


def test_a_trainer_moves_before_its_first_epoch_and_back_again(other):
    with share(make, "a", linger=30) as loader:
        move("a", os.getpid(), "b")
        assert whole(loader)
        assert loader.name == "b"
        other.close()
        move("b", os.getpid(), "a")
        assert whole(loader)
        assert loader.name == "a"
    penstock.stop("a")


def test_a_state_saved_before_a_move_is_loaded_after_it(other):
    with share(make, "a") as loader:
        batches = iter(loader)
        seen = ids_of([next(batches), next(batches)])
        state = loader.state_dict()
        move("a", os.getpid(), "b")
        list(batches)
        assert whole(loader)
        loader.load_state_dict(state)
        assert sorted(seen + ids_of(loader)) == list(range(SAMPLES))
        assert loader.name == "b"
    assert whole(other)


def test_a_trainer_of_a_source_of_unknown_length_moves():
    with share(make_of_unknown_length, "a") as loader, share(make_of_unknown_length, "b") as there:
        assert whole(loader)
        move("a", os.getpid(), "b")
        assert whole(loader)
        assert loader.name == "b"
        assert whole(there)


def test_the_last_word_counts_and_the_present_feed_means_to_stay(other, capfd):
    with share(make, "a") as loader:
        for to in ("b", "nowhere", "a"):
            move("a", os.getpid(), to)
        assert whole(loader)
        assert loader.name == "a"
    assert "this trainer" not in capfd.readouterr().err
    assert other.name == "b"


@pytest.mark.parametrize(
    ("there", "settings", "options", "says"),
    [
        (functools.partial(make, SAMPLES + 1), {}, {}, r"another make_loader: .*121 there and 120 in yours"),
        (functools.partial(make, SAMPLES), {"seed": 3}, {}, "that has other seed$"),
        (functools.partial(make, SAMPLES), {"epochs": 3}, {}, "that has other epochs$"),
        (functools.partial(make, SAMPLES), {"whole_batches": True}, {}, "that has other whole_batches$"),
        (functools.partial(make, SAMPLES), {"window": "1MiB"}, {"borrow": True}, "that has other window$"),
        (functools.partial(make, SAMPLES), {"stall_timeout": 9.0}, {"borrow": True}, "evicts trainers after"),
        (None, {}, {}, "no feed is named 'b'"),
    ],
)
def test_a_trainer_stays_where_the_other_feed_differs_and_says_why(there, settings, options, says, capfd):
    with share(functools.partial(make, SAMPLES), "a", **options) as loader:
        other = share(there, "b", **settings) if there else None
        assert whole(loader)
        move("a", os.getpid(), "b")
        for _ in range(2):
            assert whole(loader)
            assert loader.name == "a"
        if other is not None:
            list(other)
            other.close()
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "this trainer" in line]
    assert line.startswith(
        f"penstock: this trainer (pid {os.getpid()}) stays on feed 'a', and does not move to 'b'"
    )
    assert re.search(says, line)


def test_a_trainer_stays_where_the_other_feed_read_other_files(tmp_path, capfd):
    path = tmp_path / "data"
    path.write_bytes(bytes(range(SAMPLES)))
    with share(functools.partial(make_of, str(path)), "a") as loader:
        path.write_bytes(bytes(range(SAMPLES)) * 2)
        with share(functools.partial(make_of, str(path)), "b"):
            move("a", os.getpid(), "b")
            assert whole(loader)
            assert loader.name == "a"
    assert "that reads other data: " in capfd.readouterr().err


def test_a_feed_of_which_nothing_tells_the_source_is_not_moved_to(serve, capfd):
    serve(make(), "b")
    with share(make, "a") as loader:
        move("a", os.getpid(), "b")
        assert whole(loader)
        assert loader.name == "a"
    assert "only of feeds that share() started is known" in capfd.readouterr().err


def test_only_a_whole_trainer_of_the_feed_can_be_moved(serve):
    feeder = serve(make(), "a")
    with pytest.raises(penstock.errors.FeedNotFound, match=r"no feed is named 'b' \(feeds that run: 'a'\)"):
        move("b", os.getpid(), "a")
    says = f"'a' moves no trainer: process {os.getpid()} does not train from it"
    with pytest.raises(penstock.errors.Refused, match=says):
        move("a", os.getpid(), "b")
    with penstock.attach("a", shard=(0, 2)), pytest.raises(penstock.errors.Refused, match="one of several ranks"):
        move("a", os.getpid(), "b")
    for pid, to in ((0, "b"), (os.getpid(), ""), (os.getpid(), "x" * 1001)):
        with pytest.raises(penstock.errors.BadSetting):
            move("a", pid, to)
    assert feeder.statistics().blocks == 0
