"""Unmodified scripts on one feed, compared with the same scripts alone."""

from __future__ import annotations

import json
import os
import signal
from itertools import combinations
from typing import Any

import pytest
from tests.autosharing.running import EPOCHS, N, Scripts, check_like, feeds_read
from tests.forked import Forked, eventually

import penstock
from penstock.errors import BadSetting


def all_differ(orders: list[Any]) -> bool:
    return all(one != other for one, other in combinations(orders, 2))


ONE, TWO = ("plain", "workers", "persistent", "collate", "peek", "break"), ("kept", "zip")


@pytest.mark.parametrize(("kind", "feeds"), [*((kind, 1) for kind in ONE), *((kind, 2) for kind in TWO)])
def test_two_runs_read_one_feed_a_loop_and_get_what_they_get_alone(scripts: Scripts, kind: str, feeds: int):
    seen, said = scripts.shared([kind], [kind])
    assert len(feeds_read(said)) == feeds
    assert kind in {"peek", "break", *TWO} or seen[0]["epochs"] == seen[1]["epochs"]
    # They begin another epoch, and the feed is at most one ahead of that; a look at the first batch costs none.
    assert kind in {"break", *TWO} or scripts.made() <= (EPOCHS + 2) * N
    expected = scripts.alone(kind)
    for each in seen:
        check_like(each, expected)
        assert all_differ(each["epochs"])


def test_batch_sizes_and_learning_rates_may_differ(scripts: Scripts):
    words = [["plain", "--batch-size", size, "--lr", lr, "--drop-last"] for size, lr in (("4", "0.1"), ("7", "1"))]
    seen, said = scripts.shared(*words)
    assert len(feeds_read(said)) == 1
    assert scripts.made() <= (EPOCHS + 2) * N
    for each, alone in zip(seen, words, strict=True):
        check_like(each, scripts.alone(*alone))


@pytest.mark.whole
def test_two_iterations_asked_by_turns_do_not_wait_for_each_other(scripts: Scripts):
    """Their epoch is larger than the window."""
    words = ["zip", "--epochs", "1", "--width", str(3 << 20)]
    (seen,), _ = scripts.shared(words)
    check_like(seen, scripts.alone(*words))


def test_a_pace_that_is_none_is_refused():
    with pytest.raises(BadSetting, match='it must be "together", or left out'):
        penstock.autoshare(pace="slow")


@pytest.mark.whole
def test_two_runs_that_ask_two_loaders_at_different_rates_do_not_wait_for_each_other(scripts: Scripts):
    """Images of 602 KB, batches of 8 and 8 or 56, as with --grid mu=1,7: each gets a window ahead on one feed."""
    words = [(1, 170), (7, 60)]
    # On a busy machine they would part for their pace before one waits for the other.
    asked = {"pace": "together"}
    runs = [
        scripts.start(mu, "fixmatch.py", str(mu), str(steps), together=2, options=asked) for mu, steps in words
    ]
    for run, (mu, steps) in zip(runs, words, strict=True):
        assert run.wait() == 0, run.output
        labelled, unlabelled = json.loads(run.output.splitlines()[-1])
        assert sum(map(len, labelled)) == 8 * steps
        assert sum(map(len, unlabelled)) >= (8 * mu - 7) * steps
        for *whole, last in (labelled, unlabelled):
            assert all(len(set(epoch)) == len(epoch) for epoch in (*whole, last))
            assert all(set(epoch) == set(whole[0]) for epoch in whole)
    said = [line for run in runs for line in run.output.splitlines() if "on a feed of its own" in line]
    assert len(said) == 1
    assert "read the two at different rates" in said[0]


def test_a_second_run_of_a_sampler_without_end_begins_at_once_and_both_go_on_where_their_feeder_died(scripts):
    runs: list[Forked] = []
    for i, size in enumerate(("8", "6")):
        runs.append(scripts.start(i, "endless.py", size, "end"))
        read = scripts.folder / f"reads-{size}"
        eventually(lambda run=runs[-1], read=read: read.exists() or run.ended, f"batches of {size} never came")
        # Whoever comes before anything is released begins where the other has.
        eventually(lambda: penstock.feeds()[0].trainers[0].sample, "nothing was ever released")
    os.kill(penstock.feeds()[0].pid, signal.SIGKILL)
    (scripts.folder / "end").touch()
    assert [run.wait() for run in runs] == [0, 0], runs[0].output + runs[1].output
    assert len(feeds_read("".join(run.output for run in runs))) == 1
    assert "an epoch is 1,666,666,667 batches from where it joins" in runs[1].output
    first, second = [json.loads(run.output.splitlines()[-1]) for run in runs]
    (start,) = [i for i in range(len(first)) if first[i : i + 40] == second[:40]]
    both = min(len(first) - start, len(second))
    assert start > 0 and both > 200 and first[start : start + both] == second[:both]


@pytest.mark.whole
def test_feeds_of_another_name_have_an_order_of_their_own(scripts: Scripts):
    orders: list[list[list[list[int]]]] = []
    for name in ("one", "other", "one"):
        (seen,), said = scripts.shared(["plain"], name=name)
        (feed,) = (each for each in feeds_read(said) if each.startswith(f"{name}-"))
        penstock.stop(feed)  # else the next of that name would go on where it stands
        orders.append(seen["epochs"])
    assert orders[0] == orders[2] != orders[1]
    assert sorted(id for batch in orders[1][0] for id in batch) == list(range(N))


@pytest.mark.whole
def test_runs_with_other_data_have_a_feed_of_their_own_and_one_line_tells_what_differs(scripts: Scripts):
    words = [["plain", "--scale", str(i), "--pause", "0.1"] for i in range(4)]
    runs = [scripts.start(i, "loops.py", *its) for i, its in enumerate(words)]
    assert all(run.wait() == 0 for run in runs)
    assert len(feeds_read("".join(run.output for run in runs))) == 4
    told = [[line for line in run.output.splitlines() if "is another one" in line] for run in runs]
    assert max(map(len, told)) == 1
    assert any("; it is one of 3 that differ" in line for (line,) in filter(None, told))
    for i, line in ((i, lines[0]) for i, lines in enumerate(told) if lines):
        assert "is another one: dataset.scale is " in line and f".0 there and {i}.0 in yours" in line
    check_like(scripts.seen(2), scripts.alone("plain", "--scale", "2"))


@pytest.mark.whole
def test_data_that_change_with_the_epoch_are_read_from_a_feed_for_each_epoch(scripts, monkeypatch):
    monkeypatch.setenv("SHORT", "are worth it")
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
        ("own", "nothing shows whether its OwnOrder shuffles"),
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


@pytest.mark.parametrize(
    ("kind", "why"), [("lock", "dataset.lock"), ("own", "is not shared, and --strict is asked for: nothing shows")]
)
def test_strict_ends_a_script_that_cannot_share(scripts: Scripts, kind: str, why: str):
    run = scripts.start(0, "loops.py", kind, options={"strict": True})
    assert run.wait() == 1 and why in run.output.splitlines()[-1]


def test_only_what_matches_is_shared_and_a_feed_bears_the_name_given(scripts: Scripts):
    (seen,), said = scripts.shared(["plain"], only="Other*")
    assert not feeds_read(said) and seen == scripts.alone("plain")
    assert "is not shared: neither Rows nor loops.py:" in said and "is among --only Other*" in said
    _, said = scripts.shared(["plain"], only="Row?", name="mine")
    (name,) = feeds_read(said)
    assert name.startswith("mine-")


@pytest.mark.whole
@pytest.mark.parametrize("how", ["log", "lock", "index"])
def test_a_file_that_is_being_written_or_written_as_it_was_does_not_count_though_the_data_set_names_it(
    scripts: Scripts, how: str
):
    runs = [scripts.start(i, "files.py", how, "file", together=2) for i in range(2)]
    assert [run.wait() for run in runs] == [0, 0], runs[0].output + runs[1].output
    said = "".join(run.output for run in runs)
    assert len(feeds_read(said)) == 1 and "is another one" not in said


@pytest.mark.whole
def test_two_feeds_because_of_a_file_that_was_written_to_are_explained(scripts: Scripts):
    first = scripts.start(0, "files.py", "append", "file", "go")
    eventually(lambda: "reads feed" in first.output or first.ended, "the first never read")
    second = scripts.start(1, "files.py", "append", "file")
    assert second.wait() == 0, second.output
    (scripts.folder / "go").touch()
    assert first.wait() == 0, first.output
    (feed,) = feeds_read(first.output.splitlines()[0])
    file = f"{scripts.folder}/file (7 bytes then, 14 now)"
    why = "the data set names a file that was written to in between"
    assert f"feed {feed} is another one: {why}, {file}" in second.output
