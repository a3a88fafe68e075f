"""What `--explain` and the board say of a schedule that stands still."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from penstock.errors import BadSetting
from penstock.runs.record import GroupPlan, RunPlan
from penstock.runs.store import Store
from penstock.schedule.board import explain, page, summary
from penstock.schedule.estimates import Estimates
from penstock.schedule.jobs import GpuMachine, HostMachine
from penstock.schedule.ledger import begin, ledger_of
from penstock.schedule.planner import Planner
from penstock.schedule.present import LiveSchedule
from penstock.schedule.profiles import Profile, Profiles

GIB = 2**30
MACHINE = HostMachine(GpuMachine(cores=2, memories=(16.0 * GIB,) * 2), (), "simulated", True)
Make = Callable[..., LiveSchedule]


@pytest.fixture
def scheduled(tmp_path: Path) -> Iterator[Make]:
    with Store.open(tmp_path / "store") as store:

        def make(
            *runs: RunPlan, policy: str = "fifo", needs: dict[str, frozenset[str]] | None = None
        ) -> LiveSchedule:
            groups = [GroupPlan(name="g", runs=runs)]
            ledger = ledger_of(groups, None)
            begin(store, groups, ledger)
            nobody = {run.name: frozenset[str]() for run in runs}

            def planner(model: GpuMachine, most_s: float) -> Planner:
                return Planner(model, names=(policy,), sharings=("all",), most_s=most_s)

            estimates = Estimates(ledger.entries, Profiles(store.folder, "simulated"), MACHINE)
            return LiveSchedule(store, ledger, MACHINE, estimates, nobody | (needs or {}), planner)

        yield make


def run(name: str, tmp_path: Path, **known: object) -> RunPlan:
    """A run of which something is known, or nothing."""
    plan = RunPlan(name=name, command=("train.py", name), directory="/")
    if known:
        (tmp_path / "store").mkdir(mode=0o700, exist_ok=True)
        values = {"preparation_s": 4e-3, "own_s": 1e-4, "gpu_s": 1e-3, "start_s": 1.0, "samples": 1e5, **known}
        profiles = Profiles(tmp_path / "store", "simulated")
        profiles.put(profiles.key(plan), Profile(**values))  # type: ignore[arg-type]
    return plan


def said(schedule: LiveSchedule, name: str) -> str:
    return "\n".join(explain(schedule, schedule.plan(1.0), name))


def test_a_run_that_waits_is_told_when_it_starts_and_whom_it_would_slow(scheduled: Make, tmp_path: Path) -> None:
    runs = [run(name, tmp_path, memory_bytes=GIB, data=f"{name}:1") for name in "abc"]
    text = said(scheduled(*runs), "c")
    assert text.startswith("c waits: the plan starts it at ")
    assert "On GPU 0 now, it would train" in text and "it would slow" in text
    assert "a from " in text and "b from " in text
    runs = [run(name, tmp_path, memory_bytes=GIB, data="x:1") for name in "abc"]
    assert "It reads what a and b read." in said(scheduled(*runs), "c")


def test_a_run_without_room_is_told_how_much_is_missing(scheduled: Make, tmp_path: Path) -> None:
    runs = [run(name, tmp_path, memory_bytes=10 * GIB) for name in "abc"]
    assert "On GPU 0: it needs 10.0 GiB, and 6.0 GiB are free." in said(scheduled(*runs), "c")


def test_what_nothing_is_known_of_and_what_comes_after(scheduled: Make, tmp_path: Path) -> None:
    runs = run("a", tmp_path), run("b", tmp_path), run("c", tmp_path)
    schedule = scheduled(*runs, needs={"c": frozenset({"a", "b"})})
    assert "It comes after a and b." in said(schedule, "c")
    assert "a starts now on GPU 0." in said(schedule, "a")
    assert "until it has been measured it takes a whole GPU" in said(schedule, "a")
    schedule = scheduled(*runs)
    assert "On GPU 1: b runs there, and one of the two needs the GPU for itself." in said(schedule, "c")


def test_pairs_that_are_never_made_again_are_named(scheduled: Make, tmp_path: Path) -> None:
    runs = [run(name, tmp_path, memory_bytes=GIB, data=f"{name}:1") for name in "abc"]
    schedule = scheduled(*runs)
    key = schedule.profiles.key
    for other in runs[:2]:
        assert schedule.profiles.mark_incompatible(key(other), key(runs[2]))
        assert not schedule.profiles.mark_incompatible(key(runs[2]), key(other))
    assert "never again beside" in said(schedule, "c")


def test_a_name_that_is_not_there_is_one_error(scheduled: Make, tmp_path: Path) -> None:
    schedule = scheduled(run("a", tmp_path))
    with pytest.raises(BadSetting, match=r"--explain b: no run of the file has this name; there are a"):
        said(schedule, "b")


def shown(schedule: LiveSchedule, width: int = 90) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(page(schedule, schedule.plan(1.0), width))
    return console.export_text()


def test_the_board_shows_every_run_and_where_it_is_to_run(scheduled: Make, tmp_path: Path) -> None:
    runs = [run(name, tmp_path, memory_bytes=GIB, data="x:1") for name in "abc"]
    schedule = scheduled(*runs)
    plan, text = schedule.plan(1.0), shown(schedule)
    assert [f" {i} {name}" in text for i, name in enumerate("abc", 1)] == [True] * 3
    assert "GPU 1" in text and "plan: fifo, feeds: all" in text
    assert [each["status"] for each in summary(schedule, plan)["runs"]] == ["waiting"] * 3
    narrow = shown(schedule, 40).splitlines()
    assert narrow[0].split() == ["run", "status", "done", "ends,", "s"]
    assert [narrow[place].split()[:4] for place in (1, 2, 3)] == [
        [str(i), name, "waiting", "0%"] for i, name in enumerate("abc", 1)
    ]


def test_a_deadline_that_cannot_be_met_is_said_wherever_the_plan_is(scheduled: Make, tmp_path: Path) -> None:
    runs = [run(name, tmp_path, memory_bytes=GIB, data=f"{name}:1") for name in "ab"]
    runs = [replace(each, deadline_s=deadline_s) for each, deadline_s in zip(runs, (20.0, 1e5), strict=True)]
    schedule = scheduled(*runs)
    text, plan = shown(schedule), schedule.plan(1.0)
    (late,) = re.findall(r"^a: it is to end at (\d+) s, and its deadline is at 20 s", text, re.MULTILINE)
    assert re.search(rf" 1 a .* {late} late ", text) and "b: it is to end" not in text
    assert f"It is to end at {late} s, and its deadline is at 20 s." in said(schedule, "a")
    assert "deadline" not in said(schedule, "b")
    assert [each["deadline_s"] for each in summary(schedule, plan)["runs"]] == [20.0, 1e5]


def test_what_is_a_guess_looks_like_one_and_no_gpu_is_drawn_where_none_is(
    scheduled: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = scheduled(run("a", tmp_path, memory_bytes=GIB), *(run(name, tmp_path) for name in "bc"))
    text = shown(schedule)
    assert re.search(r" 1 a .* 0 +\d+ ", text) and re.search(r" 2 b .* 0 +~[\d,]+ ", text)
    assert "all ended at ~" in text and re.search(r" 3 c .* \d+ +~[\d,]+ ", text)
    guesses = [each["ends_by_guess"] for each in summary(schedule, schedule.plan(1.0))["runs"]]
    assert guesses == [False, True, True]
    schedule = scheduled(run("d", tmp_path), run("e", tmp_path), run("f", tmp_path, memory_bytes=GIB))
    text = shown(schedule)  # what is known comes after what is not
    assert re.search(r" 1 d .* 0 +~[\d,]+ ", text) and re.search(r" 3 f .* ~[\d,]+ +~[\d,]+ ", text)
    assert re.search(r"^f waits: the plan starts it at ~[\d,]+ s on GPU", said(schedule, "f"))
    host = HostMachine(GpuMachine(cores=2, memories=(16.0 * GIB,)))
    monkeypatch.setitem(globals(), "MACHINE", host)
    text = shown(scheduled(run("c", tmp_path, memory_bytes=GIB)))
    assert "GPU 0" not in text and "CPUs" in text and "ρ" not in text


def test_python_and_python3_are_one(tmp_path: Path) -> None:
    profiles = Profiles(tmp_path, "")
    keys = [
        profiles.key(RunPlan(name="a", command=(first, "train.py", "--python", "python3"), directory="/"))
        for first in ("python", "python3", "/opt/bin/python3", "/opt/bin/python", "python3.11", "mypython3")
    ]
    assert keys[0] == keys[1] != keys[2] == keys[3] and len({*keys}) == 4


def test_the_board_counts_the_unknown_runs_that_are_to_come_and_says_rho_without_any(
    scheduled: Make, tmp_path: Path
) -> None:
    known = run("a", tmp_path, data="x:1")
    unknown = [RunPlan(name=name, command=(f"{name}.py",), directory="/") for name in "bcd"]
    schedule = scheduled(known, *unknown)
    schedule.waiting.remove("b")
    text = shown(schedule)
    assert "2 runs are unknown" in text and "plan: fifo, feeds: all" in text and "ρ" not in text
    schedule.waiting[:] = ["a"]
    text = shown(schedule)
    assert "unknown" not in text and "; ρ = 4.00" in text
