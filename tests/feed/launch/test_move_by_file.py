"""A trainer whose environment names a file reads the feed that it names, and moves when it is replaced."""

from __future__ import annotations

import functools
import os
import re
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.feed.launch.test_move import SAMPLES, make, share, whole
from tests.feed.reading import at_once, ids_of

import penstock
from penstock.feed.launch.feeds import move

pytestmark = pytest.mark.whole

Name = Callable[[str], None]


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Name:
    """Replace the file, which is not there yet, by one with this suffix."""
    file = tmp_path / "suffix"
    monkeypatch.setenv("PENSTOCK_FEED_FILE", str(file))

    def replace(suffix: str) -> None:
        (tmp_path / "new").write_text(f"{suffix}\n")
        (tmp_path / "new").replace(file)

    return replace


def names() -> list[str]:
    return [feed.name for feed in penstock.feeds()]


def lines(errors: str) -> list[str]:
    return [line for line in errors.splitlines() if f"this trainer (pid {os.getpid()})" in line]


@pytest.mark.usefixtures("forks_feeders")
class TestMoves:
    def test_there_and_back_each_at_the_next_epoch_and_no_earlier(self, name, capfd):
        with share(make, "a") as first, share(make, "a") as loader:
            name("x")
            with share(make, "a") as there:
                assert (first.name, there.name) == ("a", "a-x")
                feeder = there.statistics().feeder_pid
                name("")
                assert whole(loader) and loader.name == "a"
                batches = iter(loader)
                given = [next(batches)]
                name("x")
                assert whole([*given, *batches]) and loader.name == "a"
                assert whole(loader)
                assert (loader.name, loader.statistics().feeder_pid) == ("a-x", feeder)
                name("")
                assert whole(loader) and loader.name == "a"
                assert whole(first) and first.name == "a"
                assert loader.epoch == 4
                there.close()
        moves = [f"moves from feed {here!r} to {to!r}" for here, to in (("a", "a-x"), ("a-x", "a"))]
        assert [line for line in lines(capfd.readouterr().err) for each in moves if each in line]

    def test_to_a_feed_that_nobody_serves_which_is_started(self, name):
        with share(make, "a", expect=2) as one, share(make, "a") as other:
            name("x")
            assert whole(one)
            feeder = one.statistics().feeder_pid
            assert names() == ["a", "a-x"]
            assert whole(other)
            assert (other.name, other.statistics().feeder_pid) == ("a-x", feeder)
            name("y")
            assert whole(one) and whole(one)
            assert (one.name, other.name, one.epoch) == ("a-y", "a-x", 3)

    def test_the_started_feed_is_replaced_under_its_name_when_it_dies(self, name):
        with share(make, "a") as loader:
            name("x")
            batches = iter(loader)
            given = [next(batches)]
            os.kill(loader.statistics().feeder_pid, 9)
            assert whole([*given, *batches]) and whole(loader)
            assert (loader.name, loader.statistics().failovers) == ("a-x", 1)

    def test_a_state_saved_before_is_loaded_after_and_what_is_selected_before_is_read_there(self, name):
        with share(make, "a") as loader:
            batches = iter(loader)
            seen = ids_of([next(batches), next(batches)])
            state = loader.state_dict()
            name("x")
            list(batches)
            assert whole(loader) and loader.name == "a-x"
            between = loader.state_dict()
            loader.load_state_dict(state)
            assert sorted(seen + ids_of(loader)) == list(range(SAMPLES))
            loader.load_state_dict(between)
            assert whole(loader) and loader.name == "a-x"
            name("y")
            loader.select([3, 5, 7])
            assert sorted(ids_of(loader)) == [3, 5, 7] and loader.name == "a-y"

    def test_the_later_word_counts_the_file_s_or_that_of_who_asks_the_feeder(self, name):
        with share(make, "b"), share(make, "a") as loader:
            name("x")
            assert whole(loader) and loader.name == "a-x"
            move("a-x", os.getpid(), "b")
            for _ in range(2):
                assert whole(loader) and loader.name == "b"
            name("")
            assert whole(loader) and loader.name == "a"


@pytest.mark.usefixtures("forks_feeders")
class TestStays:
    def test_where_the_other_feed_differs_and_says_so_once(self, name, capfd):
        with share(make, "a") as loader:
            name("x")
            with share(make, "a", seed=3) as other:
                for _ in range(3):
                    assert whole(loader) and loader.name == "a"
                assert len(ids_of(other)) >= SAMPLES
        (line,) = lines(capfd.readouterr().err)
        assert re.search("stays on feed 'a', and does not move to 'a-x': .*that has other seed$", line)

    def test_where_the_other_feed_cannot_be_started(self, name, tmp_path, capfd):
        def make_unless(refusal: str) -> Any:
            if Path(refusal).exists():
                raise ValueError("no disk")
            return make()

        with share(functools.partial(make_unless, str(tmp_path / "refusal")), "a") as loader:
            (tmp_path / "refusal").touch()
            name("x")
            for _ in range(2):
                assert whole(loader) and loader.name == "a"
            (tmp_path / "refusal").unlink()
            name("x")
            assert whole(loader) and loader.name == "a-x"
        stayed, moved = lines(capfd.readouterr().err)
        assert "does not move to 'a-x': " in stayed and "no disk" in stayed
        assert "moves from feed 'a' to 'a-x'" in moved

    def test_where_the_file_names_no_feed(self, name, tmp_path, capfd):
        with share(make, "a") as loader:
            name("x" * 1000)
            assert whole(loader) and loader.name == "a"
            (tmp_path / "suffix").unlink()
            (tmp_path / "suffix").mkdir()
            assert whole(loader) and loader.name == "a"
        long, unreadable = lines(capfd.readouterr().err)
        assert re.search("stays on feed 'a': PENSTOCK_FEED_FILE=.* with 'x+' is appended to 'a': a feed", long)
        assert "suffix cannot be read: Is a directory" in unreadable

    def test_a_rank_of_several(self, name, capfd):
        with share(make, "a") as loader, share(make, "a", shard=(0, 1)) as alone:
            name("x")
            assert whole(alone) and alone.name == "a-x"
            with penstock.attach("a", shard=(0, 2)) as rank:
                assert rank.name == "a-x"
            assert whole(loader)
        assert "ranks" not in capfd.readouterr().err

    def test_ranks_read_on_where_they_are(self, name, capfd):
        name("x")
        with share(make, "a") as keeps:
            both = [penstock.attach("a", shard=(rank, 2)) for rank in range(2)]
            name("y")
            assert sorted(chain(*at_once(lambda rank: ids_of(both[rank]), 2))) == list(range(SAMPLES))
            assert {rank.name for rank in both} == {"a-x"}
            assert keeps.name == "a-x"
            for rank in both:
                rank.close()
        assert len([line for line in lines(capfd.readouterr().err) if "it is one of several ranks" in line]) == 2

    def test_who_attached_if_nobody_serves_the_other_feed(self, name, capfd):
        with share(make, "a") as first, penstock.attach("a") as loader:
            name("x")
            assert whole(loader) and loader.name == "a"
            assert whole(first) and first.name == "a-x"
            name("x")
            assert whole(loader) and loader.name == "a-x"
        stayed, *_ = lines(capfd.readouterr().err)
        assert "does not move to 'a-x': no feed is named 'a-x' (feeds that run: 'a')" in stayed


@pytest.mark.usefixtures("forks_feeders")
class TestJoins:
    def test_the_feed_that_the_file_names_whatever_the_suffix(self, name, monkeypatch):
        monkeypatch.setenv("PENSTOCK_FEED_SUFFIX", "slow")
        for suffix, feed in (("", "a"), ("x", "a-x"), (" x ", "a-x")):
            name(suffix)
            with share(make, "a", linger=0) as loader, penstock.attach("a") as other:
                assert loader.name == other.name == feed

    def test_who_attaches_knows_no_data_and_keeps_the_plain_name(self, name):
        with share(make, "a"):
            name("x-{data}")
            with penstock.attach("a", wait_s=0) as other, share(make, "a", linger=0) as loader:
                assert other.name == "a" and re.fullmatch("a-x-[0-9a-f]{6}", loader.name)

    def test_without_a_file_no_suffix(self, name):
        with share(make, "a") as loader:
            assert loader.name == "a"

    def test_an_empty_variable_is_as_none(self, monkeypatch):
        monkeypatch.setenv("PENSTOCK_FEED_FILE", "")
        monkeypatch.setenv("PENSTOCK_FEED_SUFFIX", "slow")
        with share(make, "a") as loader:
            assert loader.name == "a-slow"

    def test_what_names_no_feed_is_refused(self, name, tmp_path, monkeypatch, feeds_directory):
        name("x" * 1000)
        says = r"^PENSTOCK_FEED_FILE=.* with 'x+' is appended to 'a': a feed"
        with pytest.raises(penstock.errors.BadSetting, match=says):
            penstock.share(make, "a")
        monkeypatch.setenv("PENSTOCK_FEED_FILE", str(tmp_path))
        says = r"^PENSTOCK_FEED_FILE=.* cannot be read: Is a directory"
        with pytest.raises(penstock.errors.BadSetting, match=says):
            penstock.attach("a")
        assert not list(feeds_directory.iterdir())


def make_drawing() -> Any:
    from tests.sources.drawing import Drawing
    from torch.utils.data import DataLoader

    return DataLoader(Drawing(40), batch_size=4, shuffle=True)


def test_a_feed_that_is_started_repeats_no_draw(name, forks_feeders_with_torch):
    seen: dict[str, list[float]] = {}
    with penstock.share(make_drawing, "torch", linger=0.3) as loader:
        for suffix in ("", "x", "x", "y"):
            name(suffix)
            for batch in loader:
                for key, values in batch.items():
                    seen.setdefault(key, []).extend(np.asarray(values).tolist())
        assert loader.name == "torch-y"
    assert Counter(seen.pop("id")) == dict.fromkeys(range(40), 4)
    assert seen
    for key, values in seen.items():
        assert len(set(values)) == len(values) == 160, key
