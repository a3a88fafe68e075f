"""Groups in turn: what a run comes after, what it needs, and what becomes of those that cannot begin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.runs.running import nothing_is_left

from penstock.autosharing.options import ShareOptions
from penstock.runs.launch.groups import GroupsInTurn
from penstock.runs.record import GroupPlan, RunPlan, RunRecord
from penstock.runs.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store") as store:
        yield store
    nothing_is_left(tmp_path)


def plan(name: str, text: str = "true", *after: str, **more: Any) -> RunPlan:
    return RunPlan(command=("sh", "-c", text), name=name, directory="/", after=after, **more)


def run(store: Store, *groups: GroupPlan, **settings: Any) -> tuple[list[tuple[str, str]], list[RunRecord]]:
    """Run groups; return which run began and ended in which order, and what became of them."""
    records = [store.add(group) for group in groups]
    ended = GroupsInTurn(store, records, listeners=[() for _ in groups], **settings).run()
    began = [(run.began, run.name, "begins") for run in ended if run.began]
    ends = [(run.began + (run.seconds or 0.0), run.name, "ends") for run in ended if run.began]
    return [(name, what) for _, name, what in sorted(began + ends)], ended


def group(*runs: RunPlan, name: str = "group", mode: str = "plain") -> GroupPlan:
    return GroupPlan(name=name, mode=mode, runs=runs)


def test_a_run_begins_once_those_before_it_have_ended(store: Store, tmp_path: Path):
    last = plan("last", f"test -e {tmp_path}/b -a -e {tmp_path}/a", "b", "earlier")
    runs = [last, plan("b", f"test -e {tmp_path}/a && touch {tmp_path}/b", "a"), plan("a", f"touch {tmp_path}/a")]
    seen, ended = run(store, group(plan("first"), name="earlier"), group(*runs))
    assert [record.status for record in ended] == 4 * ["finished"]
    assert [name for name, what in seen if what == "ends"] == ["first", "a", "b", "last"]


@pytest.mark.parametrize("mode", ["plain", "alone"])
def test_what_comes_after_a_run_that_has_not_finished_never_begins_and_the_others_do(store: Store, mode: str):
    of_first = [
        plan("c", "true", "b"),
        plan("b", "true", "a"),
        plan("a", "exit 3"),
        plan("d"),
        plan("e", "true", "d"),
    ]
    of_second = [plan("f", "true", "first"), plan("g", "true", "d")]
    _, ended = run(store, group(*of_first, name="first", mode=mode), group(*of_second, name="second", mode=mode))
    assert {record.name: (record.status, record.exit_code, record.reason) for record in ended} == {
        "a": ("failed", 3, "ended with exit code 3"),
        "b": ("failed", None, "never began: it comes after a, which failed"),
        "c": ("failed", None, "never began: it comes after b, which failed"),
        "f": ("failed", None, "never began: it comes after c, which failed"),
        **dict.fromkeys("deg", ("finished", 0, "")),
    }
    assert [record.name for record in ended if record.began is None] == ["c", "b", "f"]


@pytest.mark.parametrize(
    ("text", "more", "how"),
    [
        ("kill -9 $$", {}, "was killed"),
        ("exec sleep 60", {"time_limit_s": 0.1}, "timed out"),
        ("echo 'torch.OutOfMemoryError: CUDA out of memory. Tried'; exit 1", {}, "ran out of memory"),
    ],
)
def test_the_reason_says_what_became_of_the_run_before(store: Store, text: str, more: dict[str, Any], how: str):
    _, (_, never) = run(store, group(plan("a", text, **more), plan("b", "true", "a")))
    assert never.reason == f"never began: it comes after a, which {how}"


ONLY_ONE = "mkdir {0}/there && rmdir {0}/there"
"""Fails if another does it at the same moment."""


@pytest.mark.parametrize(
    ("room", "needs"), [({"gpus": 3}, {"gpus": 2}), ({"gpus": 0, "host": 10}, {"memory_bytes": 6})]
)
def test_runs_that_say_what_they_need_start_while_it_fits(store: Store, tmp_path: Path, room, needs):
    wait = f"until [ -e {tmp_path}/free ]; do sleep 0.01; done"
    large = [plan(f"r{i}", f"{wait}; {ONLY_ONE.format(tmp_path)}", **needs) for i in range(2)]
    seen, ended = run(store, group(*large, plan("free", f"touch {tmp_path}/free")), room=room)
    assert [record.status for record in ended] == 3 * ["finished"], "that which needs nothing starts at once"
    order = [(name, what) for name, what in seen if name != "free"]
    assert order == [(f"r{i}", what) for i in range(2) for what in ("begins", "ends")]


def test_only_runs_that_start_in_one_moment_wait_for_each_other_to_share(store: Store):
    said = "echo $PENSTOCK_TOGETHER"
    shared = {"share": ShareOptions(), "gpus": 1}
    runs = [plan(f"r{i}", said, **shared) for i in range(3)]
    runs += [plan("late", said, "r0", share=ShareOptions()), plan("plain", said)]
    _, ended = run(store, group(*runs), room={"gpus": 2})
    assert [record.status for record in ended] == 5 * ["finished"]
    printed = [(store.folder_of(record.id) / "output").read_text().strip() for record in ended]
    assert printed[:2] == ["2", "2"] and printed[4] == ""
    assert printed[2:4] in (["1", "1"], ["2", "2"]), "r1 may end first, and r2 takes its place"
