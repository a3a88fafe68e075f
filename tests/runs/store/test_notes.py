"""Notes, tags and archived runs; runs that are deleted can come back for a week, and then are gone for good."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.runs.store.groups import group, living

from penstock.errors import BadSetting, NoSuchRun
from penstock.runs.record import RunRecord
from penstock.runs.store import Store, database
from penstock.runs.store.notes import Change


def ended(store: Store, runs: int = 2, name: str = "group") -> list[RunRecord]:
    records = store.add(group(runs, name))
    for run in records:
        store.began(run.id, keeper=living(), pid=1)
        store.ended(run.id, "finished", 0)
        (store.folder_of(run.id) / "output").write_text("mine")
    return records


def days_pass(store: Store, days: float) -> None:
    with closing(sqlite3.connect(store.folder / "runs.sqlite")) as connection, connection:
        connection.execute("UPDATE runs SET deleted = deleted - ?", (days * 86400,))


def test_what_is_noted_of_runs_is_kept(store):
    a, b = ended(store)
    both = store.annotate([a.id, b.id], Change(note="läuft\nwell", tag=("good", "paper"), archived=True))
    assert [(run.note, run.tags, run.archived) for run in both] == [("läuft\nwell", ("good", "paper"), True)] * 2
    store.annotate([b.id], Change(tag=("good", "new"), untag=("paper",), archived=False))
    with Store.open(store.folder) as again:
        assert again.run(a.id).tags == ("good", "paper")
        assert again.run(b.id).tags == ("good", "new")
        assert (again.run(b.id).note, again.run(b.id).archived) == ("läuft\nwell", False)


@pytest.mark.parametrize("tag", ["", "two words", "a,b", "x" * 41, "-good", "tab\t", "\x1b[31m", "\udcff"])
def test_what_is_no_tag_is_refused_and_nothing_is_changed(store, tag):
    a, _ = ended(store)
    with pytest.raises(BadSetting, match="is no tag"):
        store.annotate([a.id], Change(note="new", tag=("good", tag)))
    assert (store.run(a.id).note, store.run(a.id).tags) == ("", ())


def test_too_much_is_refused(store):
    a, b = ended(store)
    store.annotate([b.id], Change(tag=tuple(f"t{i}" for i in range(30))))
    with pytest.raises(BadSetting, match="would have 31 tags: at most 30"):
        store.annotate([a.id, b.id], Change(tag=("more",)))
    with pytest.raises(BadSetting, match="at most 10,000 characters, this one 10,001"):
        store.annotate([a.id], Change(note="x" * 10_001))
    assert store.run(a.id).tags == (), "all of them or none"


def test_a_note_that_another_has_changed_meanwhile_stays(store):
    a, _ = ended(store)
    store.annotate([a.id], Change(note="theirs"))
    with pytest.raises(BadSetting, match=f"note of run {a.id} was changed meanwhile, to 'theirs'"):
        store.annotate([a.id], Change(note="mine", before=""))
    assert store.annotate([a.id], Change(note="mine", before="theirs"))[0].note == "mine"


def test_bytes_that_are_no_text_do_not_break_a_note(store):
    a, _ = ended(store)
    assert store.annotate([a.id], Change(note="a\udcff\0b"))[0].note == "a?\0b"


def test_deleted_runs_are_hidden_at_once_and_come_back(store):
    a, b = ended(store)
    [other] = ended(store, 1, "other")
    store.annotate([a.id], Change(tag=("good",)))
    before = store.runs()
    version = store.version()
    store.delete([a.id, other.id])
    assert store.version() != version, "open pages must hear of it"
    assert [run.id for run in store.runs()] == [b.id]
    assert store.runs("other") == []
    for word in (a.id, other.id, "other"):
        with pytest.raises(NoSuchRun):
            store.named([word])
    with pytest.raises(NoSuchRun):
        store.annotate([a.id], Change(note="late"))
    assert [run.id for run in store.runs(deleted=True)] == [a.id, other.id]
    assert store.restore([a.id, other.id]) == [before[0], before[2]]
    assert store.runs() == before, "in their order"
    assert store.restore([a.id])[0].tags == ("good",), "two browsers may undo"
    assert (store.folder_of(a.id) / "output").read_text() == "mine"


def test_a_run_that_goes_on_cannot_be_deleted_nor_what_is_chosen_with_it(store):
    a, _ = ended(store)
    runs = store.add(group(7))
    with pytest.raises(BadSetting, match=f"not ended yet: {runs[0].id} .waiting.,.* and 2 more. Stop them first"):
        store.delete([a.id, *(run.id for run in runs)])
    assert len(store.runs()) == 9


def test_after_a_week_deleted_runs_go_with_the_next_deletion(store):
    a, b = ended(store)
    store.delete([a.id])
    days_pass(store, 6.9)
    store.delete([b.id])
    assert store.restore([a.id])
    store.delete([a.id])
    days_pass(store, 7.1)
    [c] = ended(store, 1)
    store.delete([c.id])
    assert not store.folder_of(a.id).exists() and not store.folder_of(b.id).exists()
    assert store.folder_of(c.id).exists()
    with pytest.raises(NoSuchRun, match=f"run '{a.id}' is gone for good, as after 7 days; none was brought back"):
        store.restore([c.id, a.id])
    assert store.runs() == []


def test_pruning_takes_deleted_runs_first(store):
    a, b = ended(store)
    store.delete([b.id])
    assert [each.run.id for each in store.prune(max_bytes=1 << 12)] == [b.id]
    assert not store.folder_of(b.id).exists()
    ended(store, 1)
    store.delete([a.id])
    assert [each.run.id for each in store.prune(keep_s=1e6)] == [a.id]


def test_a_run_that_is_added_to_a_group_whose_runs_are_deleted_is_in_it(store):
    a, b = ended(store)
    store.delete([a.id, b.id])
    [c] = store.add(group(1), to=a.group_id)
    store.restore([a.id, b.id])
    assert [run.id for run in store.runs(a.group_id)] == [a.id, b.id, c.id]


DELETE = """
import sys
from pathlib import Path
from penstock.runs.store import Store
folder, *ids = sys.argv[1:]
with Store.open(Path(folder)) as store:
    print("ready", flush=True)
    while True:
        store.delete(ids)
        store.restore(ids)
"""


@pytest.mark.whole
def test_a_kill_in_between_deletes_all_of_them_or_none(store):
    ids = [run.id for run in ended(store, 20)]
    states = set()
    for after_s in range(8):
        command = [sys.executable, "-c", DELETE, str(store.folder), *ids]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        process.stdout.readline()
        try:
            process.wait(0.01 * after_s)
        except subprocess.TimeoutExpired:
            process.kill()
        process.wait()
        process.stdout.close()
        there, deleted = len(store.runs()), len(store.runs(deleted=True))
        states.add((there, deleted))
        store.restore(ids)
        assert [run.id for run in store.runs()] == ids
        assert all((store.folder_of(id) / "output").exists() for id in ids)
    assert states <= {(20, 0), (0, 20)}


def test_a_store_of_an_earlier_version_opens_and_its_runs_have_no_notes(tmp_path, monkeypatch):
    steps = list(database.STEPS)
    folder = tmp_path / "store"
    with monkeypatch.context() as earlier:
        earlier.setattr(database, "STEPS", steps[:1])
        folder.mkdir(mode=0o700)
        with closing(database.connect(folder / "runs.sqlite")) as connection:
            me = database.this_process()
            connection.execute(
                "INSERT INTO groups VALUES (1, 'gggggg', 'old', 'plain', 'null', 0, ?)",
                (f'{{"pid":{me.pid},"started_ticks":1,"place":["a","b","c"]}}',),
            )
            connection.execute(
                "INSERT INTO runs (id, group_id, position, plan) VALUES ('rrrrrr', 'gggggg', 0, ?)",
                ('{"command":["true"],"name":"a","directory":"/"}',),
            )
    Path(folder, "rrrrrr").mkdir()
    with Store.open(folder) as store:
        run = store.run("rrrrrr")
        assert (run.group, run.note, run.tags, run.archived) == ("old", "", (), False)
        assert store.annotate([run.id], Change(tag=("old",)))[0].tags == ("old",)
    assert (folder / "runs.sqlite.version-1").exists()
