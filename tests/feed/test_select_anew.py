"""A trainer selects other samples: between its epochs, amid one, beside others that come, leave and resume."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.feed.reading import at_once
from tests.feed.squares import N, arrays, epoch_of, part, right
from tests.forked import eventually

import penstock
from penstock.errors import BadSetting, LoaderClosed, SettingsDiffer


def test_a_trainer_changes_its_part_between_epochs_and_amid_one(serve: Any) -> None:
    feeder = serve(arrays(), window="1MiB")
    parts: list[Any] = [part(9, 0.3), part(10, 0.3), None, part(9, 0.3)]
    with penstock.attach("feed", 12, select=parts[0]) as loader:
        for i, chosen in enumerate(parts):
            loader.select(chosen)
            assert loader.samples == (N if chosen is None else len(chosen))
            assert loader.epoch == i
            assert sorted(epoch_of(loader)) == (chosen or list(range(N)))
        looping = iter(loader)
        next(looping)
        loader.select([1, 2, 3])
        with pytest.raises(LoaderClosed, match=r"select\(\) has replaced"):
            next(looping)
        assert sorted(epoch_of(loader)) == [1, 2, 3]
        assert loader.statistics().samples == sum(N if each is None else len(each) for each in parts) + 12 + 3
        eventually(lambda: len(feeder.statistics().trainers) == 1)


def test_a_change_never_gives_the_pass_again_that_was_just_read(serve: Any) -> None:
    """Even where that pass lies in the ring yet, for a slower trainer."""
    serve(arrays(), window="1MiB")
    with penstock.attach("feed", 10) as slow, penstock.attach("feed", 10) as loader:
        looking = iter(slow)
        next(looking)
        list(loader)
        for chosen in (part(0, 0.5), None):
            before = loader.state_dict()["start"]
            loader.select(chosen)
            first = iter(loader)
            next(first)
            assert loader.state_dict()["start"] >= before
            with ThreadPoolExecutor(1) as other:
                others = other.submit(list, looking)
                assert len([*first]) == len(loader) - 1
                others.result()
            looking = iter(slow)
            next(looking)


def test_a_change_that_cannot_be_leaves_the_loader_as_it_was(serve: Any) -> None:
    feeder = serve(arrays(), window="1MiB")
    with penstock.attach("feed", 12, select=[1, 2, 3]) as loader:
        list(loader)
        for wrong in ([N], np.ones(N + 1, np.bool_), []):
            with pytest.raises(BadSetting):
                loader.select(wrong)
        assert sorted(epoch_of(loader)) == [1, 2, 3] and loader.epoch == 2
        eventually(lambda: len(feeder.statistics().trainers) == 1)


def test_ranks_select_before_their_first_epoch_and_may_read_two_parts_at_once(serve: Any) -> None:
    serve(arrays(), window="1MiB")

    def train(rank: int) -> list[list[int]]:
        shard = rank, 2
        with (
            penstock.attach("feed", 5, shard=shard) as loader,
            penstock.attach("feed", 5, shard=shard, select=[7, 8]) as two,
        ):
            loader.select(None)  # as it is
            for chosen in ([1, 2, 3, 4], [5, 6, 7, 8]):
                loader.select(chosen)
            first = epoch_of(loader), epoch_of(two)
            loader.select([1, 2])
            return [*first, epoch_of(loader)]

    seen = [sorted([*one, *other]) for one, other in zip(*at_once(train, 2), strict=True)]
    assert seen == [[5, 6, 7, 8], [7, 8], [1, 2]]


def test_ranks_that_select_the_same_after_they_have_loaded_a_state_begin_an_epoch(serve: Any) -> None:
    serve(arrays(), window="1MiB")

    def train(rank: int) -> list[int]:
        with penstock.attach("feed", 5, shard=(rank, 2)) as loader:
            amid = iter(loader)
            next(amid)
            saved = loader.state_dict()
        both_have_left.wait()
        with penstock.attach("feed", 5, shard=(rank, 2)) as loader:
            loader.load_state_dict(saved)
            loader.select(None)
            return epoch_of(loader)

    both_have_left = Barrier(2)
    one, other = at_once(train, 2)
    assert sorted([*one, *other]) == list(range(N))


def test_a_part_is_changed_between_the_epochs_of_a_feed_that_has_sent_them_all(serve: Any) -> None:
    feeder = serve(arrays(), window="1MiB", epochs=3, prefetch=100)
    with penstock.attach("feed", 10, select=part(1, 0.5)) as loader:
        list(loader)
        eventually(lambda: feeder.statistics().trainers[0].state == "finished")
        loader.select(part(2, 0.5))
        assert sorted(epoch_of(loader)) == sorted(epoch_of(loader)) == part(2, 0.5)
        with pytest.raises(penstock.errors.FeedEnded):
            list(loader)


def test_who_selects_before_the_first_epoch_is_waited_for_still(serve: Any) -> None:
    feeder = serve(arrays(), window="1MiB", expect=2)

    def train(i: int) -> list[int]:
        with penstock.attach("feed", 10) as loader:
            loader.select(part(i, 0.5))
            return epoch_of(loader)

    with ThreadPoolExecutor(2) as threads:
        for i, seen in enumerate(threads.map(train, range(2))):
            assert sorted(seen) == part(i, 0.5)
    assert feeder.statistics().samples >= len({*part(0, 0.5), *part(1, 0.5)})


def test_views_that_are_kept_leave_no_room_for_another_part(serve: Any) -> None:
    serve(penstock.ArraySource({"x": np.zeros((1000, 1000), np.uint8)}, batch_size=10), window=100_000)
    with penstock.attach("feed", 10, borrow=True) as loader:
        kept = list(islice(loader, 7))
        with pytest.raises(penstock.errors.WindowHeld, match="before it selects other samples"):
            loader.select([1, 2, 3])
        del kept[1:]
        loader.select([1, 2, 3])
        assert sum(len(batch["x"]) for batch in loader) == 3


@pytest.mark.whole
@pytest.mark.usefixtures("forks_feeders")
def test_a_change_goes_on_where_the_others_are_when_the_feeder_has_died() -> None:
    with (
        penstock.share(arrays, "feed", 20, linger=5, window="1MiB") as one,
        penstock.share(arrays, "feed", 20, window="1MiB") as other,
    ):
        for _ in range(2):
            with ThreadPoolExecutor(2) as threads:
                list(threads.map(epoch_of, (one, other)))
        at = one.state_dict()["start"]
        os.kill(penstock.feeds()[0].pid, signal.SIGKILL)
        one.select([5, 50, 150])
        assert sorted(epoch_of(one)) == [5, 50, 150]
        assert one.state_dict()["start"] == [at[0] + 1, at[1]]


SCRIPTS = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(["epoch", "epoch", "some", "resume", "change", "again"]),
            st.one_of(st.none(), st.tuples(st.integers(0, 99), st.sampled_from([0.02, 0.3, 0.5, 0.9]))),
            st.sampled_from([1, 7, 10, 33, 300]),
        ),
        min_size=1,
        max_size=5,
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(scripts=SCRIPTS, prefetch=st.sampled_from([None, 1, 3]), ahead=st.sampled_from(["64KiB", "1MiB"]))
def test_trainers_that_come_leave_change_and_resume_get_their_parts(scripts, prefetch, ahead):
    with (
        ThreadPoolExecutor(len(scripts) + 1) as threads,
        penstock.Feeder(arrays(), "scripts", prefetch=prefetch, window=ahead) as feeder,
    ):
        feeding = threads.submit(feeder.run)
        for done in [threads.submit(act, script) for script in scripts]:
            done.result(timeout=100)
        feeder.close()
        feeding.result()


def act(script: list[Any]) -> None:
    loader = None
    for what, chosen, size in script:
        mine = (
            list(range(N)) if chosen is None else [*part(*chosen), 5] if 5 not in part(*chosen) else part(*chosen)
        )
        select = None if chosen is None else mine
        if loader is None or what == "again":
            if loader is not None:
                loader.close()
            loader = penstock.attach("scripts", size, select=select)
        elif what == "change":
            loader.select(select)
        else:
            select = loader._options.select
            mine = list(range(N)) if select is None else select.ids.tolist()
        seen: list[int] = []
        if what in ("some", "resume"):
            seen = [id for batch in islice(loader, 2) for id in right(batch)]
        if what == "resume":
            state = loader.state_dict()
            loader.close()
            loader = penstock.attach("scripts", size, select=select)
            loader.load_state_dict(state)
        if what == "some" or (what == "resume" and not state["delivered"]):
            seen = []  # that epoch was given up, or over
        try:
            seen += [id for batch in loader for id in right(batch)]
        except SettingsDiffer as differs:  # its joint has gone meanwhile, since nobody else's epoch began there
            if what != "resume" or "Begin that epoch anew" not in str(differs):
                raise
            assert seen
            assert state["start"][1] not in arrays().segment_starts
            loader.close()
            loader = None
            continue
        assert sorted(seen) == sorted(mine)
    if loader is not None:
        loader.close()
