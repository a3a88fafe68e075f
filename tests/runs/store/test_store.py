"""Runs in the store: what is written is read, by whichever process; the first word about an end counts."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule
from tests.examples import examples
from tests.runs.store.groups import DEAD, group, living

from penstock.errors import BadSetting, NoSuchRun
from penstock.runs.record import ENDED
from penstock.runs.store import SeriesWriter, Store


class Stores(RuleBasedStateMachine):
    """Several stores on one folder against a dictionary."""

    runs = Bundle("runs")
    which = st.integers(0, 2)

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.stores = [Store.open(Path(self.folder.name) / "store") for _ in range(3)]
        self.model: dict[str, list] = {}

    def teardown(self):
        for store in self.stores:
            store.close()
        self.folder.cleanup()

    @rule(target=runs, which=which, count=st.integers(1, 3))
    def add(self, which, count):
        records = self.stores[which].add(group(count))
        assert [record.index for record in records] == list(range(count))
        self.model |= {record.id: ["waiting", None] for record in records}
        return multiple(*(record.id for record in records))

    @rule(run=runs, which=which, lives=st.booleans())
    def begin(self, run, which, lives):
        self.stores[which].began(run, keeper=living() if lives else DEAD, pid=7)
        if self.model.get(run) == ["waiting", None]:
            self.model[run] = ["running" if lives else "lost", None]

    @rule(run=runs, which=which, status=st.sampled_from(sorted(ENDED)), code=st.none() | st.integers(0, 255))
    def end(self, run, which, status, code):
        # Who says so may be late: what was read as lost may have ended well.
        was = self.model.get(run)
        self.stores[which].ended(run, status, code)
        if was and (was[0] in {"waiting", "running"} or was == ["lost", None]):
            self.model[run] = [status, code, "told"]

    @rule(run=consumes(runs), which=which)
    def remove(self, run, which):
        if self.model[run][0] in ENDED:
            self.stores[which].remove([run])
            del self.model[run]
        else:
            with pytest.raises(BadSetting, match="not ended yet"):
                self.stores[which].remove([run])

    @invariant()
    def all_stores_tell_what_the_model_holds(self):
        for store in self.stores:
            found = {run.id: [run.status, run.exit_code] for run in store.runs()}
            assert found == {id: told[:2] for id, told in self.model.items()}
            assert {p.name for p in store.folder.iterdir() if p.is_dir()} == set(self.model)


TestStores = Stores.TestCase
TestStores.settings = settings(max_examples=examples(8), stateful_step_count=15, deadline=None)


def test_a_run_is_found_by_the_first_letters_of_its_id(store):
    runs = store.add(group(30))  # more than there are letters to begin with
    assert [store.run(run.id) for run in runs] == runs
    begins = [run.id[0] for run in runs]
    assert store.run(runs[0].id[:5]) == runs[0]
    with pytest.raises(NoSuchRun, match="runs or more begin with"):
        store.run(next(letter for letter in begins if begins.count(letter) > 1))
    for unknown in ("%", "", runs[0].id + "a"):
        with pytest.raises(NoSuchRun, match=f"has no run '{unknown}'"):
            store.run(unknown)


def test_groups_are_listed_by_name_or_id_the_newest_last(store):
    old, other, new = (store.add(group(name=name))[0] for name in ("a", "b", "a"))
    assert [run.group_id for run in store.runs("a")] == [old.group_id] * 2 + [new.group_id] * 2
    assert [run.group for run in store.runs(other.group_id)] == ["b", "b"]


def test_runs_that_are_added_to_a_group_come_after_its_own_also_where_some_were_removed(store):
    first = store.add(group(2))
    store.ended(first[0].id, "failed", None)
    store.remove([first[0].id])
    (one,), (two,) = store.add(group(1), first[0].group_id), store.add(group(1), first[0].group_id)
    assert one.group_id == two.group_id == first[0].group_id
    assert [run.id for run in store.runs(one.group_id)] == [first[1].id, one.id, two.id]
    assert [run.status for run in store.runs(one.group_id)] == ["waiting"] * 3
    (apart,) = store.add(group(1), "there is none")
    assert apart.group_id != "there is none"


def test_an_end_that_is_told_late_is_believed_but_a_second_one_is_not(store):
    (run,) = store.add(group(1))
    store.began(run.id, keeper=DEAD, pid=1)
    assert store.run(run.id).status == "lost"
    store.ended(run.id, "finished", 0)
    store.ended(run.id, "killed", 137, "too late")
    store.began(run.id, keeper=living(), pid=1)
    ended = store.run(run.id)
    assert (ended.status, ended.exit_code, ended.reason) == ("finished", 0, "")


def update(store: Store, what: str, *values: str) -> None:
    with closing(sqlite3.connect(store.folder / "runs.sqlite")) as database, database:
        database.execute(f"UPDATE {what}", values)


def moved(store: Store, id: str, machine: str) -> None:
    """Note that a run's keeper is of another boot, and of this machine or another."""
    place = "json_set(keeper, '$.place[1]', 'another', '$.place[0]', ?)"
    update(store, f"runs SET keeper = {place} WHERE id = ?", machine, id)


def test_a_run_of_an_earlier_boot_is_lost_and_one_of_another_machine_is_not(store):
    here, there = store.add(group())
    for run, machine in ((here, os.uname().nodename), (there, "elsewhere")):
        store.began(run.id, keeper=living(), pid=1)
        moved(store, run.id, machine)
    assert [run.status for run in store.runs()] == ["lost", "running"]


def test_a_group_waits_for_the_process_that_took_it_over(store):
    (run,) = store.add(group(1))
    update(store, "groups SET owner = json_set(owner, '$.started_ticks', 1)")
    assert store.run(run.id).status == "lost"
    store.own(run.group_id)
    assert store.run(run.id).status == "waiting"


def test_a_lost_run_lasted_until_its_last_sign(store):
    (run,) = store.add(group(1))
    store.began(run.id, keeper=DEAD, pid=1)
    began = store.run(run.id).began
    output = store.folder_of(run.id) / "output"
    output.touch()
    os.utime(output, (began + 60, began + 60))
    assert store.run(run.id).seconds == pytest.approx(60)


def test_pruning_removes_the_oldest_that_have_ended_and_says_how_much_room_that_freed(store):
    runs = store.add(group(4))
    for run in runs:
        (store.folder_of(run.id) / "files").mkdir()
        (store.folder_of(run.id) / "files" / "model").write_bytes(bytes(1 << 20))
        store.began(run.id, keeper=living(), pid=1)
    for run in (runs[2], runs[0], runs[1]):  # the last one runs
        store.ended(run.id, "finished", 0)
    tried = store.prune(max_bytes=2 << 20 | 1 << 16, dry_run=True)
    assert len(store.runs()) == 4
    removed = store.prune(max_bytes=2 << 20 | 1 << 16)
    assert [each.run.id for each in removed] == [each.run.id for each in tried] == [runs[2].id, runs[0].id]
    assert all(1 << 20 <= each.nbytes < 1 << 21 for each in removed)
    assert not store.prune(keep_s=3600)
    assert [each.run.id for each in store.prune(keep_s=0)] == [runs[1].id]
    assert [run.id for run in store.runs()] == [runs[3].id]


def test_what_a_killed_removal_left_is_removed_with_the_next(store):
    (run,) = store.add(group(1))
    left, mine = store.folder / "abcdef.removed", store.folder / "sunset"
    left.mkdir()
    mine.mkdir()
    store.ended(run.id, "killed", 137)
    store.remove([run.id])
    assert not left.exists()
    assert mine.exists()


def test_a_run_has_the_series_of_all_its_writers(store):
    (run,) = store.add(group(1))
    assert store.series(run.id) == {}
    for writer, shift in (("sampler", 0.0), ("script", 0.5)):
        with closing(SeriesWriter(store.folder_of(run.id) / "series" / f"{writer}.points")) as points:
            for i in range(3):
                points.add("shared", i, i + shift)
                points.add(writer, i, i)
    store.compact(run.id)
    series = store.series(run.id)
    assert series["shared"].times_s.tolist() == [0, 0.5, 1, 1.5, 2, 2.5]
    assert set(series) == {"shared", "sampler", "script"}


def test_a_run_of_another_machine_is_removed_by_force_only_and_one_that_runs_here_never(store):
    here, there = store.add(group(2))
    for run in (here, there):
        store.began(run.id, keeper=living(), pid=1)
    moved(store, there.id, "another")
    with pytest.raises(BadSetting, match=f"{there.id} .running.*another machine or container: --force"):
        store.remove([there.id])
    with pytest.raises(BadSetting, match=f"{here.id} .running.*They run here: stop them first"):
        store.remove([here.id, there.id], force=True)
    assert [removed.run.id for removed in store.remove([there.id], force=True)] == [there.id]
    assert [run.id for run in store.runs()] == [here.id]


def test_no_id_is_given_twice(store, monkeypatch):
    monkeypatch.setattr("penstock.runs.store.store._FIRST", "a")
    monkeypatch.setattr("penstock.runs.store.store._LETTERS", "ab")
    records = store.add(group(14)) + store.add(group(16))
    assert len({record.id for record in records} | {record.group_id for record in records}) == 32
