"""Unmodified scripts on one feed, compared with the same scripts alone."""

from __future__ import annotations

import json
import shutil
from itertools import combinations
from typing import Any

import pytest
from tests.autosharing.running import EPOCHS, SCRIPTS, N, Scripts, check_like, feeds_read

import penstock


def all_differ(orders: list[Any]) -> bool:
    return all(one != other for one, other in combinations(orders, 2))


@pytest.mark.parametrize("kind", ["plain", "workers", "persistent", "collate"])
def test_two_runs_read_one_feed_and_each_sees_every_sample_once_an_epoch(scripts: Scripts, kind: str):
    seen, said = scripts.shared([kind], [kind])
    assert len(feeds_read(said)) == 1
    assert seen[0]["epochs"] == seen[1]["epochs"]
    assert scripts.made() <= (EPOCHS + 2) * N  # they begin another, and the feed is at most one ahead of that
    expected = scripts.alone(kind)
    for each in seen:
        check_like(each, expected)


def test_batch_sizes_and_learning_rates_may_differ(scripts: Scripts):
    words = [["plain", "--batch-size", size, "--lr", lr, "--drop-last"] for size, lr in (("4", "0.1"), ("7", "1"))]
    seen, said = scripts.shared(*words)
    assert len(feeds_read(said)) == 1
    assert scripts.made() <= (EPOCHS + 2) * N
    for each, alone in zip(seen, words, strict=True):
        check_like(each, scripts.alone(*alone))


@pytest.mark.parametrize(("kind", "feeds"), [("peek", 1), ("kept", 2), ("break", 1), ("zip", 2)])
def test_loops_of_every_kind_get_what_they_get_alone(scripts: Scripts, kind: str, feeds: int):
    seen, said = scripts.shared([kind], [kind])
    assert len(feeds_read(said)) == feeds
    expected = scripts.alone(kind)
    for each in seen:
        check_like(each, expected)
        assert all_differ(each["epochs"])


@pytest.mark.whole
def test_two_iterations_asked_by_turns_do_not_wait_for_each_other(scripts: Scripts):
    """Their epochs are larger than the window."""
    words = ["zip", "--width", str(3 << 20)]
    (seen,), _ = scripts.shared(words)
    check_like(seen, scripts.alone(*words))


def test_a_feed_that_is_started_again_does_not_repeat_itself(scripts: Scripts):
    shutil.copy(SCRIPTS / "again.py", scripts.folder)
    run = scripts.start(0, "again.py")
    assert run.wait() == 0, run.output
    orders = json.loads(run.output.splitlines()[-1])
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert all_differ(orders)


def test_feeds_of_another_name_have_an_order_of_their_own(scripts: Scripts):
    orders: list[list[list[list[int]]]] = []
    for name in ("one", "other", "one"):
        (seen,), said = scripts.shared(["plain"], name=name)
        (feed,) = (each for each in feeds_read(said) if each.startswith(f"{name}-"))
        penstock.stop(feed)  # else the next of that name would go on where it stands
        orders.append(seen["epochs"])
    assert orders[0] == orders[2] != orders[1]
    assert sorted(id for batch in orders[1][0] for id in batch) == list(range(N))


def test_runs_with_other_data_have_a_feed_of_their_own(scripts: Scripts):
    words = [["plain", "--scale", scale] for scale in ("1", "2")]
    seen, said = scripts.shared(*words)
    assert len(feeds_read(said)) == 2
    there, yours = ("1.0", "2.0") if "there and 2.0 in yours" in said else ("2.0", "1.0")
    assert f"is another one: dataset.scale is {there} there and {yours} in yours" in said
    for each, alone in zip(seen, words, strict=True):
        check_like(each, scripts.alone(*alone))


def test_one_line_tells_what_others_of_many_are_made_of(scripts: Scripts):
    runs = [scripts.start(i, "loops.py", "plain", "--scale", str(i), "--pause", "0.1") for i in range(4)]
    assert all(run.wait() == 0 for run in runs)
    told = [[line for line in run.output.splitlines() if "is another one" in line] for run in runs]
    assert max(map(len, told)) == 1
    assert any(line.endswith("; it is one of 3 that differ") for (line,) in filter(None, told))
    assert all("dataset.scale is " in line for (line,) in filter(None, told))


def test_data_that_change_with_the_epoch_are_read_from_a_feed_for_each_epoch(scripts: Scripts):
    seen, said = scripts.shared(["told"], ["told"])
    assert len(feeds_read(said)) == EPOCHS
    expected = scripts.alone("told")
    for each in seen:
        check_like(each, expected)
        assert each["told"] == expected["told"] == [[epoch] for epoch in range(EPOCHS)]
        assert all_differ(each["epochs"])


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("own", "nothing tells whether its OwnOrder shuffles"),
        ("lock", "is not shared: dataset.lock (lock) cannot go to another process"),
        ("rank", "WorkerInit"),
    ],
)
def test_what_is_in_doubt_runs_by_itself_and_says_why_in_one_line(scripts: Scripts, kind: str, why: str):
    (seen,), said = scripts.shared([kind])
    (line,) = [line for line in said.splitlines() if line.startswith("penstock: ")]
    assert line.startswith("penstock: loops.py:") and " is not shared: " in line and why in line
    assert seen == scripts.alone(kind)
    assert not penstock.feeds()


def test_each_verdict_is_explained_where_that_is_asked_for(scripts: Scripts):
    _, said = scripts.shared(["plain"], explain=True)
    assert "is shared as loops-" in said and ": it shuffles; batches of any size" in said
    assert "is not shared: it reads in order: it validates" in said


def test_strict_ends_a_script_that_cannot_share(scripts: Scripts):
    run = scripts.start(0, "loops.py", "lock", options={"strict": True})
    assert run.wait() == 1 and "dataset.lock" in run.output.splitlines()[-1]


def test_only_what_matches_is_shared_and_a_feed_bears_the_name_given(scripts: Scripts):
    (seen,), said = scripts.shared(["plain"], only="Other*")
    assert not feeds_read(said) and seen == scripts.alone("plain")
    _, said = scripts.shared(["plain"], only="Row?", name="mine")
    (name,) = feeds_read(said)
    assert name.startswith("mine-")


def test_a_look_at_the_first_batch_costs_no_epoch(scripts: Scripts):
    scripts.shared(["peek"], ["peek"])
    assert scripts.made() <= (EPOCHS + 2) * N
