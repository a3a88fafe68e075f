"""``penstock runs``: what the store keeps, as a table, as JSON, as files; mistakes are one clear error."""

from __future__ import annotations

import csv
import json
import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.conftest import refused, told
from tests.forked import Forked, ForkServer, eventually
from tests.runs.store.groups import DEAD, group, living

from penstock.cli.runs_table import Looks
from penstock.runs.record import RunRecord
from penstock.runs.store import SeriesWriter, Store, points_file


@pytest.fixture
def runs(store) -> list[RunRecord]:
    """One that failed, one that runs, one that is lost, and one that waits."""
    runs = store.add(group(4, name="[red]sweep"))
    for run, keeper in zip(runs, (living(), living(), DEAD), strict=False):
        store.began(run.id, keeper=keeper, pid=1)
    store.ended(runs[0].id, "failed", 1, "ValueError: no \x1b[2J")
    folder = store.folder_of(runs[0].id)
    with closing(SeriesWriter(folder / "series" / "script.points")) as writer:
        for step, loss in enumerate([4.0, 2.0, 1.5]):
            writer.add("loss", loss, 1e9 + step)
        writer.add("gone", float("nan"), 1e9)
    (folder / "output").write_text("epoch 1\nValueError\n")
    (folder / "environment.json").write_text(
        '{"command": ["true"], "git": "0abc", "packages": {"torch": "2.13"}, "driver": null}'
    )
    return store.runs()


def test_ls_shows_each_run_in_a_line_and_names_as_they_are(command, runs):
    lines = told(command("runs", "ls")).splitlines()
    assert lines[0].split() == ["id", "name", "group", "mode", "status", "exit", "began", "seconds"]
    ends = zip(runs, ["failed", "running", "lost", "waiting"], strict=True)
    shown = [[run.id, f"run-{i}", "[red]sweep", "plain", status] for i, (run, status) in enumerate(ends)]
    assert [line.split()[:5] for line in lines[1:]] == shown


def test_in_a_pipe_a_run_is_a_line_and_in_a_narrow_terminal_no_heading_is_broken(command, store, monkeypatch):
    store.add(group(2, name="a study of " + 20 * "long names and "))
    monkeypatch.delenv("COLUMNS")
    lines = told(command("runs", "ls")).splitlines()
    assert len(lines) == 3 and all("long names and" in line for line in lines[1:])
    monkeypatch.setenv("COLUMNS", "50")
    heading = told(command("runs", "ls")).splitlines()[0]
    assert heading.split() == ["id", "name", "group", "mode", "status", "exit", "began", "seconds"]


def test_ls_as_json_has_all_fields_and_chooses_by_group_and_status(command, runs, store):
    store.add(group(1, name="other"))
    listed = json.loads(told(command("runs", "ls", "--json", "--group", "[red]sweep")))
    assert [run["id"] for run in listed] == [run.id for run in runs]
    first = listed[0]
    assert first["seconds"] == pytest.approx(runs[0].seconds)
    its = {"id": runs[0].id, "name": "run-0", "group": "[red]sweep", "group_id": runs[0].group_id, "index": 0}
    end = {"mode": "plain", "status": "failed", "exit_code": 1, "reason": "ValueError: no \x1b[2J"}
    noted = {"note": "", "tags": [], "archived": False, "memory_bytes": None, "parameters": {"i": "0"}}
    assert first | {"seconds": 0.0} == its | end | {"began": runs[0].began, "seconds": 0.0, "pid": 1} | noted
    waiting = json.loads(told(command("runs", "ls", "--json", "--status", "waiting")))
    assert [run["name"] for run in waiting] == ["run-3", "run-0"]
    assert "give one of waiting, running" in refused(command("runs", "ls", "--status", "done"))


def test_show_tells_plan_parameters_environment_and_series(command, runs, store):
    shown = json.loads(told(command("runs", "show", runs[0].id[:5], "--json")))
    assert shown["plan"]["command"] == ["true"]
    assert shown["parameters"] == {"i": "0"}
    assert shown["environment"]["packages"] == {"torch": "2.13"} and shown["environment"]["driver"] is None
    gone, loss = {"last": None, "mean": None, "points": 1}, {"last": 1.5, "mean": 2.5, "points": 3}
    assert shown["series"] == {"gone": gone, "loss": loss}
    page = told(command("runs", "show", runs[0].id))
    assert r"failed, exit code 1: ValueError: no \x1b[2J" in page
    assert ["loss", "1.5", "2.5", "3"] in [line.split() for line in page.splitlines()]
    assert page.count("command ") == 1 and "driver" not in page
    (store.folder_of(runs[1].id) / "environment.json").write_text('{"git": "0a')
    assert "unreadable: Input data was truncated" in told(command("runs", "show", runs[1].id))


def compared(store: Store, mode: str, seconds: float, waited_s: float | None) -> list[RunRecord]:
    """Two runs of a mode that took so long, and waited so long for data."""
    runs = store.add(group(2, name="small", mode=mode))
    for i, run in enumerate(runs):
        began_s = 1e9 + (i * seconds if mode == "alone" else 0.0)
        store.began(run.id, keeper=living(), pid=1, time_s=began_s)
        store.ended(run.id, "finished", 0)
        with sqlite3.connect(store.folder / "runs.sqlite") as database:
            database.execute("UPDATE runs SET ended = ? WHERE id = ?", (began_s + seconds, run.id))
        with closing(SeriesWriter(store.folder_of(run.id) / "series" / "script-1.points")) as writer:
            for at_s in (0.0, seconds):
                writer.add("host.cpu_s", 2 * at_s, began_s + at_s)
                writer.add("host.cpus", 2, began_s + at_s)
            if waited_s is not None:
                for name, value in (("wait_s", waited_s), ("loop_s", seconds - 1), ("epoch_s", seconds / 2)):
                    writer.add(f"feed.{name}", value, began_s + seconds)
    return runs


def test_groups_are_compared_and_each_run_is_told_what_to_change(command, store):
    runs = compared(store, "alone", 10.0, 1.0)
    runs += compared(store, "plain", 12.5, 5.0)
    page = told(command("runs", "compare", "small"))
    lines = [line.split() for line in page.splitlines()]
    assert ["each", "epoch,", "seconds", "5.00", "6.25"] in lines
    assert ["waits", "for", "data,", "worst", "run", "10%", "40%"] in lines
    assert ["small", "(plain)", "run-0", "8%", "40%", "52%", "0%"] in lines, "it starts for a second"
    assert "energy" not in page, "nobody recorded it"
    assert "- 2 runs of 'small' (plain) finish 1.6 times sooner than one after the other; each epoch takes" in page
    assert "--watch-dataloader" not in page
    share = "waits 40% of its time for data while the CPUs are busy 100%: those of the 2 that read the same data"
    assert f"- In 'small' (plain), run 'run-0' {share}" in page
    assert f"It {share}" in told(command("runs", "show", runs[2].id))
    plain = json.loads(told(command("runs", "compare", "small", "--json")))["groups"][1]
    assert plain["runs"][0]["parts"] == {
        "starting": 0.08, "waiting": 0.4, "copying": None, "computing": 0.52, "other": 0.0,
    }  # fmt: skip
    assert (plain["seconds"], plain["epoch_s"], plain["energy_estimated_j"]) == (12.5, 6.25, None)
    assert plain["advice"][runs[2].id][0] == "share"


def test_of_groups_of_one_name_the_newest_is_compared_and_the_others_are_named(command, store):
    alone = compared(store, "alone", 10.0, 1.0)
    started = [compared(store, "plain", seconds, 5.0)[0].group_id for seconds in (20.0, 15.0, 12.5)]
    ran = command("runs", "compare", "small", "--json")
    assert [group["seconds"] for group in json.loads(ran.stdout)["groups"]] == [20.0, 12.5]
    assert ran.stderr == (
        f"penstock: 'small' (plain) was started 3 times: the newest, {started[2]}, is compared. "
        f"--all takes all as one; to compare others, give their ids: {started[1]}, {started[0]}\n"
    )
    together = json.loads(told(command("runs", "compare", "small", "--all", "--json")))["groups"]
    assert [(group["starts"], len(group["runs"])) for group in together] == [(1, 2), (3, 6)]
    assert [group["seconds"] for group in together] == [20.0, 47.5]
    page = told(command("runs", "compare", alone[0].group_id, started[0]))
    assert ["all,", "seconds", "20.0", "20.0"] in [line.split() for line in page.splitlines()]


def test_whole_numbers_are_shown_with_all_their_digits(command, runs, store):
    with closing(SeriesWriter(points_file(store.folder_of(runs[1].id), "script-1"))) as writer:
        for name, value in (("step", 1_234_567), ("loss", 2.3456789)):
            writer.add(name, value, 1e9)
    shown = told(command("runs", "show", runs[1].id)).splitlines()
    assert ["step", "1,234,567", "1,234,567", "1"] in [line.split() for line in shown]
    shown = Console(file=StringIO(), width=200)
    shown.print(Looks(store).table())
    assert "loss=2.346 step=1,234,567" in shown.file.getvalue()


def test_a_run_where_a_group_is_wanted_is_told_with_its_group(command, runs):
    assert f": {runs[0].id} is a run of group '[red]sweep'" in refused(command("runs", "compare", runs[0].id))


def test_on_40_columns_an_id_is_whole_and_what_has_no_room_is_left_out(command, store, monkeypatch):
    runs = store.add(group(1, name="a group with a long name"))
    monkeypatch.setenv("COLUMNS", "40")
    shown = told(command("runs", "ls"))
    assert runs[0].id in shown and "waiting" in shown and "began" not in shown
    assert all(len(line.rstrip()) <= 40 for line in shown.splitlines())
    monkeypatch.setenv("COLUMNS", "80")
    assert "began" in told(command("runs", "ls"))


def test_on_40_columns_groups_stand_below_each_other(command, store, monkeypatch):
    for mode, seconds in (("alone", 10.0), ("plain", 12.5), ("mps", 11.0)):
        compared(store, mode, seconds, 3.0)
    monkeypatch.setenv("COLUMNS", "40")
    lines = [line.split() for line in told(command("runs", "compare", "small")).splitlines()]
    assert [line for line in lines if line in (["alone"], ["plain"], ["mps"])] == [["alone"], ["plain"], ["mps"]]
    monkeypatch.setenv("COLUMNS", "80")
    assert ["alone", "plain", "mps"] in [
        line.split() for line in told(command("runs", "compare", "small")).splitlines()
    ]


def test_runs_without_a_record_of_waits_say_once_how_to_have_one(command, store):
    compared(store, "alone", 10.0, None)
    compared(store, "plain", 12.5, None)
    page = told(command("runs", "compare", "small"))
    assert page.count("--no-watch-dataloader") == 1
    assert "waits for data" not in page.partition("--no-watch")[0].replace("run waits for data is recorded", "")


def test_show_takes_groups_and_tells_of_each_of_their_runs(command, runs):
    shown = json.loads(told(command("runs", "show", runs[1].id, "[red]sweep", "--json")))
    assert [run["id"] for run in shown] == [runs[place].id for place in (1, 0, 2, 3)]
    page = told(command("runs", "show", "[red]sweep"))
    assert page.count("of [red]sweep (plain)") == len(shown)


def test_logs_are_printed_or_given_as_json_and_that_there_are_none_is_said(command, runs):
    assert told(command("runs", "logs", runs[0].id)) == "epoch 1\nValueError\n"
    nothing = command("runs", "logs", "-f", runs[2].id)
    assert nothing.stderr == f"Run {runs[2].id} (lost) has printed nothing.\n"
    one, silent = json.loads(told(command("runs", "logs", runs[0].id, runs[2].id, "--json")))
    assert (one["output"], silent["output"]) == ("epoch 1\nValueError\n", "")
    assert json.loads(told(command("runs", "logs", runs[0].id, "--json"))) == one
    assert "not with --follow" in refused(command("runs", "logs", "-f", runs[0].id, "--json"))


@pytest.fixture
def followed(servers: dict[str, ForkServer], tmp_path: Path) -> Callable[..., Forked]:
    """Follow what runs print, in a process."""

    def follow(*runs: RunRecord) -> Forked:
        words = ["runs", "logs", "-f", *(run.id for run in runs)]
        return Forked(servers["command"], "penstock", words, tmp_path / "out", errors=tmp_path / "errors")

    return follow


def test_logs_that_follow_print_all_until_the_run_has_ended(followed, runs, store, tmp_path):
    process = followed(runs[1])
    with (store.folder_of(runs[1].id) / "output").open("wb", 0) as output:
        for line, all_of_it in ((b"one\n", "one\n"), (b"two\n", "one\ntwo\n")):
            output.write(line)
            eventually(lambda all_of_it=all_of_it: process.output == all_of_it)
        output.write(b"last")
    store.ended(runs[1].id, "finished", 0)
    assert (process.wait(), process.output, (tmp_path / "errors").read_text()) == (0, "one\ntwo\nlast", "")


def test_logs_of_several_runs_have_their_names_before_the_lines(followed, runs, store, tmp_path):
    process = followed(*runs[:3])
    with (store.folder_of(runs[1].id) / "output").open("wb", 0) as output:
        for text in (b"one\nt", b"wo"):
            output.write(text)
        eventually(lambda: process.output == "run-0 | epoch 1\nrun-0 | ValueError\nrun-1 | one\n")
    store.ended(runs[1].id, "finished", 0)
    silent = f"Run {runs[2].id} (lost) has printed nothing.\n"
    assert (process.wait(), (tmp_path / "errors").read_text()) == (0, silent)
    assert process.output.endswith("one\nrun-1 | two\n")


def test_ctrl_c_ends_logs_that_follow_without_a_traceback(followed, runs, store, tmp_path):
    (store.folder_of(runs[1].id) / "output").write_bytes(b"one\n")
    process = followed(runs[1])
    eventually(lambda: process.output == "one\n")
    process.signal("SIGINT")
    assert process.wait() == 130
    assert "Traceback" not in (tmp_path / "errors").read_text()


def test_rm_refuses_what_has_not_ended_and_removes_the_rest(command, runs, store):
    error = refused(command("runs", "rm", runs[0].id, runs[1].id))
    assert f"not ended yet: {runs[1].id} (running)" in error
    assert len(store.runs()) == 4
    assert "2 runs removed" in told(command("runs", "rm", runs[0].id, runs[2].id[:5], runs[0].id))
    assert [run.id for run in store.runs()] == [runs[1].id, runs[3].id]


def test_groups_are_removed_and_exported_by_name_or_id(command, store, tmp_path):
    runs = [*compared(store, "alone", 10.0, 1.0), *compared(store, "plain", 12.5, 5.0)]
    file = tmp_path / "all.csv"
    assert "points into" in told(command("runs", "export", runs[0].group_id, str(file)))
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert {row["run"] for row in rows} == {run.id for run in runs if run.group_id == runs[0].group_id}
    assert {(row["mode"], row["status"]) for row in rows} == {("alone", "finished")}
    assert "2 runs removed" in told(command("runs", "rm", runs[0].group_id))
    assert f"{len(runs) - 2} runs removed" in told(command("runs", "rm", "small"))
    assert store.runs() == []


def test_prune_says_what_it_removes_and_how_much_room_that_frees(command, runs, store):
    assert "give --keep" in refused(command("runs", "prune"))
    assert "--keep '3 years'" in refused(command("runs", "prune", "--keep", "3 years"))
    assert "--max='much'" in refused(command("runs", "prune", "--max", "much"))
    assert "0 runs removed" in told(command("runs", "prune", "--keep", "90d", "--max", "20GB"))
    assert "2 runs would be removed" in told(command("runs", "prune", "--keep", "0s", "--dry-run"))
    lines = told(command("runs", "prune", "--keep", "0s")).splitlines()
    assert {line.split()[0] for line in lines[:2]} == {runs[0].id, runs[2].id}
    assert lines[2].startswith("2 runs removed: ")
    assert lines[2].endswith("KiB are free again.")


def test_an_export_has_all_points(command, runs, tmp_path):
    file = tmp_path / "all.csv"
    assert told(command("runs", "export", runs[0].id, runs[1].id, str(file))).startswith("Wrote 4 points")
    rows = list(csv.DictReader(file.read_text().splitlines()))
    loss = [("loss", 1e9 + i, value) for i, value in enumerate(("4.0", "2.0", "1.5"))]
    found = [(row["series"], float(row["time_s"]), row["value"]) for row in rows]
    assert found == [("gone", 1e9, "nan"), *loss]
    assert {(row["run"], row["name"], row["group"]) for row in rows} == {(runs[0].id, "run-0", "[red]sweep")}


def test_an_export_that_cannot_be_is_one_error(command, runs, tmp_path):
    assert "an export ends in .csv or .parquet" in refused(command("runs", "export", runs[0].id, "all.xlsx"))
    assert "give runs or groups before" in refused(command("runs", "export", "all.csv"))
    nowhere = str(tmp_path / "nowhere" / "all.csv")
    assert "cannot be written: No such file" in refused(command("runs", "export", runs[0].id, nowhere))
    assert "has no run 'none'" in refused(command("runs", "export", "none", str(tmp_path / "all.csv")))
    assert not list(tmp_path.glob("*all*"))


def test_another_store_is_named_by_an_option(command, runs, tmp_path):
    other = tmp_path / "other"
    assert f"there is no store of runs in {other}" in refused(command("runs", "ls", "--store", str(other)))
    assert not other.exists(), "a name that was mistyped makes none"
    Store.open(other).close()
    assert "No run is in the store" in told(command("runs", "ls", "--store", str(other)))
    assert os.stat(other).st_mode & 0o777 == 0o700
    (tmp_path / "file").touch()
    assert "there is no store of runs in" in refused(command("runs", "ls", "--store", str(tmp_path / "file")))
    assert "the store cannot use" in refused(command("run", "--store", str(tmp_path / "file"), "true"))


def test_runs_get_notes_and_tags_by_id_or_group(command, store, runs):
    words = ("--text", "two\nlines \x1b[2J", "--tag", "good", "--tag", "paper")
    changed = json.loads(told(command("runs", "note", "[red]sweep", *words, "--json")))
    assert [each["tags"] for each in changed] == [["good", "paper"]] * 4
    assert "paper" not in told(command("runs", "note", runs[0].id[:5], "--untag", "paper"))
    assert [run.tags for run in store.runs()] == [("good",), *[("good", "paper")] * 3]
    lines = [line.rstrip() for line in told(command("runs", "ls")).splitlines()]
    assert lines[0].endswith("tags") and lines[1].endswith("good") and lines[2].endswith("good paper")
    page = told(command("runs", "show", runs[0].id))
    assert re.search(r"\ntags +good +\nnote +two +\n +lines \\x1b\[2J", page)


def test_a_change_of_nothing_and_what_is_no_tag_are_refused(command, store, runs):
    assert "give --text, --tag, --untag, --archive or --unarchive" in refused(command("runs", "note", runs[0].id))
    assert "'two words' is no tag" in refused(command("runs", "note", runs[0].id, "--tag", "two words"))
    assert "no run 'absent'" in refused(command("runs", "note", "absent", "--tag", "good"))
    assert all(run.tags == () for run in store.runs())


def test_archived_runs_are_left_out_which_is_said(command, store, runs):
    told(command("runs", "note", runs[0].id, runs[2].id, "--archive"))
    listed = command("runs", "ls", "--json")
    assert [each["id"] for each in json.loads(listed.stdout)] == [runs[1].id, runs[3].id]
    assert "archived runs that are left out: 2; --archived lists them, too" in listed.stderr
    assert len(json.loads(told(command("runs", "ls", "--json", "--archived")))) == 4
    told(command("runs", "note", runs[0].id, "--unarchive"))
    assert not store.run(runs[0].id).archived


def test_deleted_runs_are_listed_and_brought_back(command, store, runs):
    assert "No run was deleted on the page within a week." in told(command("runs", "restore"))
    store.delete([runs[0].id, runs[2].id])
    assert [each["id"] for each in json.loads(told(command("runs", "restore", "--json")))] == [
        runs[0].id,
        runs[2].id,
    ]
    assert f"no run or group '{runs[1].id}' was deleted" in refused(command("runs", "restore", runs[1].id))
    assert runs[0].id in told(command("runs", "restore", runs[0].id))
    assert len(store.runs()) == 3
    told(command("runs", "restore", "[red]sweep"))
    assert [run.id for run in store.runs()] == [run.id for run in runs]


def test_an_export_names_each_step_of_a_series_once_with_its_newer_value(command, store, tmp_path):
    (run,) = store.add(group(1))
    with closing(SeriesWriter(store.folder_of(run.id) / "series" / "script.points")) as writer:
        for second, step in enumerate([*range(6), *range(4, 9)]):
            writer.add("step", step, 1e9 + second)
            writer.add("loss", 100 * second, 1e9 + second)
    told(command("runs", "export", run.id, str(tmp_path / "all.csv")))
    with (tmp_path / "all.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["series"] == "loss"]
    assert [float(row["value"]) for row in rows] == [100.0 * second for second in range(11)]
    steps = [row["step"] for row in rows]
    assert steps == ["0.0", "1.0", "2.0", "3.0", "", "", "4.0", "5.0", "6.0", "7.0", "8.0"]


def damaged(store: Store, run: RunRecord) -> None:
    """Write three blocks of a run's points, and turn a bit of the number in the second."""
    path = store.folder_of(run.id) / "series" / "b.points"
    ends: list[int] = []
    with closing(SeriesWriter(path)) as writer:
        for value in range(3):
            writer.add("x", value, value)
            writer.flush()
            ends.append(path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[ends[0] + 12] ^= 1
    path.write_bytes(content)


def test_what_is_gone_of_a_run_is_said_once_by_show_and_export(command, store, runs, tmp_path):
    damaged(store, runs[0])
    says = f"points of run {runs[0].id} that are gone: about 1; files in "
    assert " ".join(told(command("runs", "show", runs[0].id)).split()).count(says) == 1
    assert json.loads(told(command("runs", "show", runs[0].id, "--json")))["damage"].startswith(says)
    ran = command("runs", "export", "[red]sweep", str(tmp_path / "all.csv"))
    assert ran.returncode == 0 and ran.stderr.count(says) == 1
    told(command("runs", "export", runs[1].id, str(tmp_path / "one.csv")))


@pytest.mark.parametrize(
    "change",
    [
        "plan = '{\"name\": 5'", "plan = '{}'", "plan = CAST(x'ff01' AS TEXT)", "keeper = 'zz'", "tags = '[5]'",
        "began = 'soon'", "exit_code = 'x'", "group_id = 'gone'", "reason = CAST(x'ff' AS TEXT)",
    ],
)  # fmt: skip
def test_a_damaged_row_is_one_run_that_can_be_removed_and_the_others_stand(command, store, runs, change):
    with closing(sqlite3.connect(store.folder / "runs.sqlite")) as database, database:
        database.execute(f"UPDATE runs SET {change} WHERE id = ?", (runs[0].id,))
    page = told(command("runs", "ls"))
    assert all(run.id in page for run in runs)
    assert "reason" in change or re.search(rf"{runs[0].id} +damaged ", page)
    told(command("runs", "show", runs[0].id))
    assert "1 run removed" in told(command("runs", "rm", runs[0].id))
    page = told(command("runs", "ls"))
    assert runs[0].id not in page and all(run.id in page for run in runs[1:])


@pytest.mark.parametrize("content", [b'\xff\xfe{"a": 1}', b'{"a": "\xff"}', b"[1]", None])
def test_what_a_run_ran_in_hides_nothing_where_it_cannot_be_read(command, store, runs, content):
    path = store.folder_of(runs[0].id) / "environment.json"
    if content is None:
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(content)
    assert "unreadable: " in told(command("runs", "show", runs[0].id))
    told(command("runs", "rm", runs[0].id))


def test_a_run_in_another_format_is_named_by_ls_and_the_others_stand(command, store, runs):
    (store.folder_of(runs[0].id) / "series" / "old.points").write_bytes(b"penstock points 1\n" + bytes(60))
    ran = command("runs", "ls")
    assert ran.returncode == 0 and all(run.id in ran.stdout for run in runs)
    assert ran.stderr.count("\n") == 1 and f"run {runs[0].id}: " in ran.stderr and "points 1" in ran.stderr
    told(command("runs", "rm", runs[0].id))
