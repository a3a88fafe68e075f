"""A script's epoch number is its own: what it tells its samplers is part of a feed's name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.autosharing.running import Scripts, feeds_read
from tests.autosharing.scripts import epochs as of_script
from tests.autosharing.told import FORMS, KEEPS, Kind, loader_of

from penstock.autosharing import guard
from penstock.autosharing.iterator import ScriptDraws
from penstock.autosharing.options import ShareOptions
from penstock.contracts import Cursor
from penstock.sources.adapt import adapt

KINDS = st.builds(
    Kind,
    st.sampled_from(KEEPS),
    st.sampled_from(FORMS),
    st.booleans(),
    st.sampled_from(["never", "begin", "end"]),
    st.sampled_from(["truth", "17", "nothing"]),
    st.booleans(),
    st.integers(0, 50),
)


@pytest.fixture(scope="module", autouse=True)
def runs() -> Iterator[None]:
    """What the runs of these tests decide is not this process's, and their feeders make samples where they are."""
    before, guard.options = (guard._known, guard.options), ShareOptions(workers=0)
    yield
    guard._known, guard.options = before


def ids(batches: list[list[int]]) -> list[int]:
    return sorted(i for batch in batches for i in batch)


class Script:
    """A run of a script, as far as it chooses feeds, beside one that has none."""

    def __init__(self, kind: Kind, workers: int) -> None:
        self._kind = kind
        (self._loader, self._told), (self._alone, self._alone_told) = loader_of(kind, workers), loader_of(kind)
        self._known = guard._Known()

    def begin(self, epoch: int | None) -> tuple[str, bytes, list[list[int]]]:
        """Begin an epoch; return the feed's name, its recipe as a feeder gets it, and what comes alone."""
        if epoch is not None:
            self._told.set_epoch(epoch)
            self._alone_told.set_epoch(epoch)
        alone = [batch if isinstance(batch, list) else [batch] for batch in self._alone._index_sampler]
        guard._known = self._known
        feed = guard._feed_of(self._loader)
        draws = ScriptDraws(self._loader, of_stream=False)
        for _ in alone[: len(alone) // 2]:
            draws.next()
        recipe = cloudpickle.dumps(feed.recipe)  # as where a feeder is replaced in mid-epoch
        for _ in alone[len(alone) // 2 :]:
            draws.next()
        with pytest.raises(StopIteration):
            draws.next()
        return feed.name, recipe, alone

    def check(self, given: list[list[int]], alone: list[list[int]]) -> None:
        """Check that batches are those that come alone; where torch's own random numbers decide, that ids are."""
        if self._kind.form == "subclass":
            assert [*map(len, given)] == [*map(len, alone)]
            given, alone = [ids(given)], [ids(alone)]
        assert given == alone


class Feed:
    """A feed without processes: what its feeder's source gives."""

    def __init__(self, name: str, recipe: bytes) -> None:
        loader = cloudpickle.loads(recipe)()
        self.cycle = -1
        self._made: list[int] = loader.dataset.made
        self._source: Any = adapt(loader, segments=1, seed=int(name[-4:], 16))

    def read(self, cycle: int, sample: int = 0) -> tuple[list[list[int]], list[int]]:
        """Return the batches of a cycle from a sample on, and where each begins; all of a cycle is made once."""
        self._made.clear()
        blocks = list(self._source.open(Cursor(cycle, sample)))
        batches: list[list[int]] = [block.tree.tolist() for block in blocks]
        assert sample or self._made == [i for batch in batches for i in batch]
        return batches, [block.sample for block in blocks]


@given(
    KINDS,
    st.lists(st.integers(0, 4), min_size=1, max_size=3),
    st.sampled_from(["each", "first", "never"]),
    st.sampled_from([0, 2]),
    st.data(),
)
@settings(max_examples=1000 if settings.get_current_profile_name() == "soak" else 12)
def test_whatever_a_sampler_makes_of_an_epoch_runs_get_what_they_get_alone_and_share_it(
    kind: Kind, firsts: list[int], calls: str, workers: int, data: st.DataObject
):
    feeds: dict[str, Feed] = {}
    scripts = [Script(kind, workers) for _ in firsts]
    for number in range(3):
        read: dict[str, Any] = {}
        names: dict[int, str] = {}
        for script, first in zip(scripts, firsts, strict=True):
            told = first + number if calls == "each" or (calls == "first" and not number) else None
            name, recipe, alone = script.begin(told)
            if name not in feeds or (name not in read and data.draw(st.booleans(), "its feed has ended")):
                feeds[name] = Feed(name, recipe)
            feed = feeds[name]
            if name not in read:
                feed.cycle += 1
                read[name] = feed.read(feed.cycle)
            batches, begin = read[name]
            script.check(batches[: len(alone)], alone)
            if told is not None:
                assert names.setdefault(told, name) == name
                if data.draw(st.booleans(), "it ends, and goes on"):
                    batch = data.draw(st.integers(0, len(batches) - 1), "batch")
                    again, recipe, _ = Script(kind, workers).begin(told)
                    assert again == name
                    assert Feed(name, recipe).read(feed.cycle, begin[batch])[0] == batches[batch:]


def run(scripts: Scripts, *each: tuple[str, int, int], **environment: str) -> tuple[list[Any], str]:
    """Run scripts at once; return the batches of their epochs, and what they said."""
    more = {"together": len(each), "options": {"iterable": True}, **environment}
    runs = [scripts.start(i, "epochs.py", *map(str, words), **more) for i, words in enumerate(each)]
    for each_run in runs:
        assert each_run.wait() == 0, each_run.output
    seen = [json.loads(each_run.output.splitlines()[-1]) for each_run in runs]
    return seen, "".join(each_run.output for each_run in runs)


def alone(kind: str, first: int, epochs: int) -> list[Any]:
    torch.manual_seed(1)
    loader, told = of_script.loader_of(kind)
    seen: list[Any] = []
    for epoch in range(first, first + epochs):
        told.set_epoch(epoch)
        seen.append([batch.tolist() for batch in loader])
    return seen


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["budget", "persistent", "stages", "grows", "drops", "stream"])
def test_runs_get_the_batches_of_the_epochs_that_they_name_and_share_them(scripts: Scripts, kind: str):
    seen, said = run(scripts, (kind, 3, 2), (kind, 3, 2), SHORT="are worth it")
    assert len(feeds_read(said)) == 2 and "is not shared" not in said and seen[0] == seen[1]
    for batches, expected in zip(seen[0], alone(kind, 3, 2), strict=True):
        if kind in ("stages", "grows"):  # torch draws their order
            assert ids(batches) == ids(expected) and [*map(len, batches)] == [*map(len, expected)]
        else:
            assert batches == expected


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["budget", "stream"])
def test_a_run_whose_epochs_are_too_short_for_a_feed_each_says_so_once(scripts: Scripts, kind: str):
    (seen,), said = run(scripts, (kind, 1, 3))
    assert seen == alone(kind, 1, 3)
    assert len(feeds_read(said)) == 1 and said.count("is not shared: what its ") == 1
    assert "less than 10 starts of a feeder" in said


@pytest.mark.whole
@pytest.mark.parametrize(("kind", "feeds"), [("labels", 2), ("anew", 5)])
def test_data_that_change_with_each_epoch_are_read_alone_after_some_changes(
    scripts: Scripts, kind: str, feeds: int
):
    (seen,), said = run(scripts, (kind, 1, 7))
    assert [ids(epoch) for epoch in seen] == [list(range(first, first + 60)) for first in range(100, 800, 100)]
    assert len(feeds_read(said)) == feeds and said.count("is not shared: its data have changed") == 1
    assert "less than 10 starts of a feeder" in said


@pytest.mark.whole
@pytest.mark.parametrize(("kind", "feeds"), [("folds", 3), ("turns", 3), ("pairs", 2)])
def test_data_that_change_now_and_then_or_by_turns_are_read_from_feeds(scripts: Scripts, kind: str, feeds: int):
    (seen,), said = run(scripts, (kind, 2, 6))
    assert len(seen) == 6 and len(set(feeds_read(said))) == feeds and "is not shared" not in said


@pytest.mark.whole
def test_a_distributed_sampler_of_one_replica_shuffles_in_one_feed_for_all_epochs(scripts: Scripts):
    (seen,), said = run(scripts, ("distributed", 0, 3))
    assert len(feeds_read(said)) == 1 and "is not shared" not in said
    assert len({tuple(map(tuple, epoch)) for epoch in seen}) == 3
    assert all(ids(epoch) == list(range(of_script.SIZE)) for epoch in seen)
