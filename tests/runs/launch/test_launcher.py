"""The launcher by itself: runs that start at any time, are stopped, cannot start, and what it reports of them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.forked import eventually
from tests.runs.running import nothing_is_left

from penstock.errors import BadSetting
from penstock.runs.keeper.command import STOP
from penstock.runs.launch import groups
from penstock.runs.launch.groups import GroupsInTurn
from penstock.runs.launch.launched import Launched
from penstock.runs.launch.launcher import Launcher, RunBegan, RunEnded, RunEvent, RunPrinted
from penstock.runs.modes.mode import Mode, mode_of, opened
from penstock.runs.record import GroupPlan, RunPlan, RunRecord
from penstock.runs.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store") as store:
        yield store
    nothing_is_left(tmp_path)


def added(store: Store, *programs: str, mode: str = "plain") -> list[RunRecord]:
    commands = (("sh", "-c", text) for text in programs)
    plans = (RunPlan(command=each, name=f"run-{i}", directory="/") for i, each in enumerate(commands))
    return store.add(GroupPlan(name="group", mode=mode, runs=tuple(plans)))


def until(launcher: Launcher, last: RunEvent) -> list[RunEvent]:
    """Return what the launcher reports, up to this."""
    events: list[RunEvent] = []
    while last not in events and launcher.running:
        events += launcher.events()
    assert last in events
    return events


def test_runs_start_when_they_are_started_and_their_events_come_in_order(store: Store):
    first, second = added(store, "echo one; read line; exit 3", "echo two")
    with Launcher(store) as launcher:
        launcher.start(first, listeners=())
        began = until(launcher, RunPrinted(first.id, 1, b"one\n"))
        assert store.run(second.id).status == "waiting"
        launcher.start(second, listeners=())
        events = [*began, *until(launcher, RunEnded(second.id))]
        while launcher.running:
            events += launcher.events()
        for run, printed in ((first, b"one\n"), (second, b"two\n")):
            (pid,) = [event.pid for event in events if isinstance(event, RunBegan) and event.id == run.id]
            its = [event for event in events if event.id == run.id]
            assert its == [RunBegan(run.id, pid), RunPrinted(run.id, 1, printed), RunEnded(run.id)]
            assert pid == store.run(run.id).pid
    assert (store.run(first.id).exit_code, store.run(second.id).status) == (3, "finished")
    assert (store.folder_of(first.id) / "environment.json").exists()


def test_a_run_is_stopped_and_its_reason_says_why(store: Store):
    stopped, other = added(store, "echo ready; exec sleep 60", "exec sleep 60")
    with Launcher(store) as launcher:
        for run in (stopped, other):
            launcher.start(run, listeners=())
        until(launcher, RunPrinted(stopped.id, 1, b"ready\n"))
        launcher.stop(stopped.id, "another run needs its GPU")
        until(launcher, RunEnded(stopped.id))
        assert [run.record.id for run in launcher.running] == [other.id]
        launcher.stop(stopped.id, "it has ended already")
    assert (store.run(stopped.id).status, store.run(stopped.id).reason) == ("killed", "another run needs its GPU")
    assert store.run(other.id).reason == "what had started it has closed"


def test_a_run_that_cannot_be_executed_ends_without_having_begun(store: Store, tmp_path: Path):
    plan = RunPlan(command=(str(tmp_path / "missing"),), name="missing", directory="/")
    (run,) = store.add(GroupPlan(name="group", runs=(plan,)))
    with Launcher(store) as launcher:
        launcher.start(run, listeners=())
        assert until(launcher, RunEnded(run.id)) == [RunEnded(run.id)]
    assert (store.run(run.id).status, store.run(run.id).exit_code) == ("failed", 127)


def test_nothing_is_reported_in_vain(store: Store):
    with Launcher(store) as launcher:
        assert not list(launcher.events())
        (run,) = added(store, "exec sleep 60")
        launcher.start(run, listeners=())
        while RunBegan not in map(type, launcher.events()):
            pass
        assert not list(launcher.events(0.05))


def test_a_mode_is_opened_for_runs_of_several_groups(store: Store):
    (first,), (second,) = added(store, "true"), added(store, "true", mode="alone")
    with opened("plain", [first, second]) as mode, Launcher(store) as launcher:
        for run in (first, second):
            launcher.start(run, mode, listeners=(), variables={"PYTHON": sys.executable})
        until(launcher, RunEnded(first.id))
    assert mode_of([first]) == "plain"


def test_some_runs_of_a_group_have_their_own_mig_profiles(store: Store):
    records = added(store, "true", "true", "true", mode="mig:a,b,c")
    assert mode_of(records[1:]) == "mig:b,c"
    assert mode_of(added(store, "true", "true", mode="mig:a")[1:]) == "mig:a"


def test_runs_end_before_their_mode_closes_whatever_is_raised_beside_them(store, monkeypatch):
    (record,) = added(store, "sleep 1000")
    closed = list[str]()

    @contextmanager
    def mode(name: str, records: Sequence[RunRecord]) -> Iterator[Mode]:
        with opened(name, records) as known:
            try:
                yield known
            finally:
                closed.append(store.run(record.id).status)

    def fail(_: GroupsInTurn, timeout_s: float | None = None) -> None:
        raise RuntimeError("it has begun")

    monkeypatch.setattr(groups, "opened", mode)
    monkeypatch.setattr(GroupsInTurn, "_attend", fail)
    with pytest.raises(RuntimeError, match="it has begun"):
        GroupsInTurn(store, [[record]], listeners=[()]).run()
    assert closed == ["killed"]


def test_a_run_that_has_ended_is_not_started_again(store: Store):
    (record,) = added(store, "true")
    with Launcher(store) as launcher:
        launcher.start(record, listeners=())
        until(launcher, RunEnded(record.id))
        with pytest.raises(BadSetting, match=f"run {record.id} cannot start: it has begun already"):
            launcher.start(record, listeners=())


def test_what_may_outlive_the_launcher_is_left_at_once_and_sampled_no_more(store: Store):
    (record,) = added(store, "exec sleep 60")
    with Launcher(store, orphans="keep") as launcher:
        run = launcher.start(record, listeners=("host",))
        while RunBegan not in map(type, launcher.events()):
            pass
        assert run.keeper is not None
    assert store.run(record.id).status == "running"
    os.kill(run.keeper, STOP)
    eventually(lambda: store.run(record.id).status == "killed")


def test_a_start_that_fails_ends_the_others_says_why_and_leaves_signals_as_they_were(store, monkeypatch):
    started = Launcher.start

    def start(self: Launcher, record: RunRecord, *arguments: Any, **settings: Any) -> Launched:
        if record.name == "run-1":
            raise BlockingIOError(11, "no process more")
        return started(self, record, *arguments, **settings)

    monkeypatch.setattr(Launcher, "start", start)
    records = added(store, "exec sleep 60", "true", "true")
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(BlockingIOError):
        GroupsInTurn(store, [records], listeners=[()]).run()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == blocked
    assert [store.run(record.id).status for record in records] == ["killed", "failed", "failed"]
    assert "no process more" in store.run(records[2].id).reason
