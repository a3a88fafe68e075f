"""A trainer that leaves now reads on from its place on another feed, which it starts first if need be."""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.feed.reading import ids_of
from tests.forked import eventually

import penstock
from penstock.errors import Refused
from penstock.feed.launch.feeds import move

SAMPLES = 2_005
pytestmark = pytest.mark.usefixtures("forks_feeders_with_torch")


def make() -> Any:
    return penstock.ArraySource({"id": np.arange(SAMPLES)}, batch_size=10, segments=4, seed=3)


class Numbered(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 500

    def __getitem__(self, i: int) -> Any:
        return {"id": i, "draw": torch.rand(1)}


def make_loader() -> Any:
    return torch.utils.data.DataLoader(Numbered(), 10, shuffle=True, num_workers=1)


def make_stream() -> Any:
    return [{"id": np.arange(start, start + 5)} for start in range(0, SAMPLES, 5)]


class OpenedOnce(penstock.ArraySource):
    """Whose blocks one process only can have."""

    def __init__(self, opened: str) -> None:
        super().__init__({"id": np.arange(SAMPLES)}, batch_size=10, segments=4, seed=3)
        self._opened_by = Path(opened)

    def open(self, *args: Any) -> Any:
        self._opened_by.touch()
        if (pid := self._opened_by.read_text()) not in ("", str(os.getpid())):
            raise OSError(f"process {pid} has it open")
        self._opened_by.write_text(str(os.getpid()))
        return super().open(*args)


def make_opened_once(opened: str) -> Any:
    return OpenedOnce(opened)


def make_once(made: str) -> Any:
    if Path(made).exists():
        raise OSError("it can be opened by one process only")
    Path(made).touch()
    return make()


share = functools.partial(penstock.share, linger=0.3, window="64KiB")


def until_on(loader: penstock.Loader, name: str, batches: Iterator[Any]) -> list[Any]:
    """Take batches, few until that feed has blocks, until the loader reads it; return them."""
    taken = list[Any]()

    def is_there() -> bool:
        taken.append(next(batches))
        if not any(feed.name == name and feed.blocks for feed in penstock.feeds()):
            time.sleep(0.2)
        return loader.name == name

    eventually(is_there)
    return taken


def until_said(batches: Iterator[Any], capfd: Any, *words: str) -> tuple[list[Any], str]:
    """Take few batches until one of these words is on standard error; return them, and what it is."""
    taken, said = list[Any](), ""

    def is_said() -> bool:
        nonlocal said
        taken.append(next(batches))
        time.sleep(0.1)
        said += capfd.readouterr().err
        return any(word in said for word in words)

    eventually(is_said)
    return taken, said


OPTIONS: list[dict[str, Any]] = [
    {},
    {"borrow": True},
    {"batch_size": 16, "drop_last": True},
    {"batch_size": 7},
    {"batch_size": 4, "select": range(0, SAMPLES, 3)},
]


@pytest.mark.parametrize(
    ("made", "options"),
    [
        (make, OPTIONS[0]),
        *(pytest.param(make, options, marks=pytest.mark.whole) for options in OPTIONS[1:]),
        pytest.param(make_loader, {}, marks=pytest.mark.whole),
        (make_loader, {"batch_size": 3}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_it_reads_on_amid_its_epoch_in_the_same_order_and_stays_there(made: Any, options: Any, capfd: Any) -> None:
    with share(made, "there", **options) as loader:
        expected = [ids_of(loader) for _ in range(3)]
    with share(made, "a", **options) as loader:
        batches = iter(loader)
        seen = [*islice(batches, 5)]
        move("a", os.getpid(), "b", now=True)
        seen += until_on(loader, "b", batches)
        assert ids_of([*seen, *batches]) == expected[0]
        del seen, batches
        assert [ids_of(loader) for _ in range(2)] == expected[1:]
        assert (loader.name, loader.epoch) == ("b", 3)
    assert capfd.readouterr().err.count("reads on from its place on feed 'b', and no more on 'a'") == 1


@pytest.mark.whole
def test_it_leaves_and_comes_back_in_one_epoch_and_resumes_what_was_saved_on_either() -> None:
    with share(make, "there") as loader:
        expected = ids_of(loader)
    with share(make, "a") as loader, penstock.attach("a", 10) as other:
        next(iter(other))
        batches = iter(loader)
        seen, states = ids_of(islice(batches, 3)), list[Any]()
        for here, to in (("a", "b"), ("b", "a")):
            move(here, os.getpid(), to, now=True)
            seen += ids_of(until_on(loader, to, batches))
            states.append((len(seen), loader.state_dict()))
        assert seen + ids_of(batches) == expected
        for passed, state in states:
            loader.load_state_dict(state)
            assert seen[:passed] + ids_of(loader) == expected


def test_nobody_leaves_for_a_feed_that_cannot_be_started(tmp_path: Path, capfd: Any) -> None:
    with share(functools.partial(make_once, str(tmp_path / "made")), "a") as loader:
        batches = iter(loader)
        move("a", os.getpid(), "b", now=True)
        seen, said = until_said(batches, capfd, "stays")
        assert sorted(ids_of([*seen, *batches])) == list(range(SAMPLES))
        assert loader.name == "a"
    said = next(line for line in said.splitlines() if "stays" in line)
    assert said.endswith("make_loader raised OSError: it can be opened by one process only")


def test_nobody_leaves_for_a_feed_that_fails_before_its_first_block(tmp_path: Path, capfd: Any) -> None:
    with share(functools.partial(make_opened_once, str(tmp_path / "opened")), "a") as loader:
        batches = iter(loader)
        seen = [next(batches)]
        move("a", os.getpid(), "b", now=True)
        more, said = until_said(batches, capfd, "stays")
        assert sorted(ids_of([*seen, *more, *batches])) == list(range(SAMPLES))
        assert loader.name == "a"
    said = next(line for line in said.splitlines() if "stays" in line)
    assert (
        "feed 'b' cannot be started, and who would leave 'a' for it stays: the source of feed 'b' raised" in said
    )


MODULE = f"""
import numpy as np
import penstock

def make():
    return penstock.ArraySource({{"id": np.arange({SAMPLES})}}, batch_size=10, segments=4, seed=3)
"""


@pytest.mark.whole
@pytest.mark.parametrize("edited", [False, True])
def test_code_that_was_edited_since_starts_no_feed(
    edited: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    (tmp_path / "edited_later.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    with share(importlib.import_module("edited_later").make, "a") as loader:
        batches = iter(loader)
        seen = [next(batches)]
        if edited:
            (tmp_path / "edited_later.py").write_text(MODULE.replace("seed=3", "seed=33"))
        move("a", os.getpid(), "b", now=True)
        more, said = until_said(batches, capfd, "stays", "reads on")
        assert loader.name == ("a" if edited else "b")
        assert sorted(ids_of([*seen, *more, *batches])) == list(range(SAMPLES))
    assert ("has been edited since the first feed of it began" in said) == edited
    sys.modules.pop("edited_later")


@pytest.mark.whole
def test_who_attached_leaves_for_a_feed_that_runs_and_starts_none(capfd: Any) -> None:
    with share(make, "a") as first, penstock.attach("a", 10) as loader:
        batches = iter(loader)
        seen = [next(batches)]
        first.close()
        eventually(lambda: len(penstock.feeds()[0].trainers) == 1)
        move("a", os.getpid(), "b", now=True)
        more, said = until_said(batches, capfd, "stays")
        assert "which does not run: only a trainer of share() can start it" in said
        with share(make, "b") as there:
            next(iter(there))
            move("a", os.getpid(), "b", now=True)
            seen += [*more, *until_on(loader, "b", batches)]
            assert sorted(ids_of([*seen, *batches])) == list(range(SAMPLES))


@pytest.mark.whole
@pytest.mark.parametrize("now", [False, True])
def test_a_later_word_keeps_it_where_it_is(now: bool) -> None:
    with share(make, "a") as loader:
        batches = iter(loader)
        seen = [next(batches)]
        move("a", os.getpid(), "b", now=True)
        move("a", os.getpid(), "a", now=now)
        for _ in range(20):
            time.sleep(0.1)
            seen.append(next(batches))
        assert loader.name == "a"
        assert sorted(ids_of([*seen, *batches])) == list(range(SAMPLES))


@pytest.mark.whole
def test_a_feed_ends_to_which_nobody_comes_and_for_which_nobody_asks() -> None:
    with share(make, "a", linger=30) as loader:
        batches = iter(loader)
        next(batches)
        move("a", os.getpid(), "b", now=True)
        eventually(lambda: [next(batches), time.sleep(0.1), len(penstock.feeds()) == 2][-1])
        os.kill(loader.statistics().feeder_pid, signal.SIGKILL)
    eventually(lambda: not penstock.feeds())


def test_an_epoch_that_a_joint_began_is_read_on_in_its_order(capfd: Any) -> None:
    with share(make, "a", window="16KiB") as first, penstock.attach("a", 10) as late:
        reading = iter(first)
        taken = [*islice(reading, 40)]
        batches = iter(late)
        seen = [next(batches)]
        assert late.state_dict()["start"][1], "it did not join late"
        move("a", os.getpid(), "b", now=True)
        taken += until_on(first, "b", reading)
        seen += until_on(late, "b", batches)
        assert sorted(ids_of([*taken, *reading])) == list(range(SAMPLES))
        assert sorted(ids_of([*seen, *batches])) == list(range(SAMPLES))
        assert sorted(ids_of(late)) == sorted(ids_of(first)) == list(range(SAMPLES))
    assert "apart" not in capfd.readouterr().err


def test_ranks_stay() -> None:
    with (
        share(make, "a", shard=(0, 2)),
        share(make, "a", shard=(1, 2)),
        pytest.raises(Refused, match="one of several ranks"),
    ):
        move("a", os.getpid(), "b", now=True)


@pytest.mark.whole
def test_one_that_reads_a_stream_of_unknown_length_leaves_too() -> None:
    with share(make_stream, "a") as loader:
        batches = iter(loader)
        seen = [*islice(batches, 5)]
        move("a", os.getpid(), "b", now=True)
        seen += until_on(loader, "b", batches)
        assert sorted(ids_of([*seen, *batches])) == list(range(SAMPLES))
