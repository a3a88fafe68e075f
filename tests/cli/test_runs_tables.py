"""Runs elsewhere: tables as LaTeX, points as Parquet, what verbs did as JSON, names after Tab."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from collections.abc import Callable
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from tests.cli.conftest import refused, told, without
from tests.runs.store.groups import group as waiting
from tests.runs.store.groups import living
from tests.web.seeded import group

from penstock.basics.results import escaped
from penstock.cli.runs_table import Looks
from penstock.runs.store.points import SeriesWriter

NASTY = r"a_b %&#{}\^~$ [c] <d>|*"


def test_runs_are_json_with_numbers_as_they_are_and_parameters(command, store):
    one = group(store, NASTY, seconds=1234.5, parameters={"lr": "0.1"})[0]
    group(store, "other", series={"loss": [1.0]})
    told(command("runs", "note", one.id, "--text", "one, two", "--tag", "good", "--tag", "fast"))
    rows = json.loads(told(command("runs", "ls", "--json")))
    assert [row["group"] for row in rows] == [NASTY, "other"]
    assert rows[0]["id"] == one.id and rows[0]["seconds"] == pytest.approx(1234.5)
    assert rows[0]["memory_bytes"] == 5e8 + 59e6 and rows[1]["memory_bytes"] is None
    assert [row["parameters"] for row in rows] == [{"lr": "0.1"}, {}]
    assert (rows[0]["note"], rows[0]["tags"], rows[1]["tags"]) == ("one, two", ["good", "fast"], [])


def test_runs_are_a_latex_table_whatever_they_are_called(command, store):
    group(store, NASTY)
    lines = told(command("runs", "ls", "--latex")).splitlines()
    assert lines[:2] == [r"\begin{tabular}{lllllrrrr}", r"\toprule"]
    assert lines[2] == r"id & name & group & mode & status & exit & began & seconds & MiB held \\"
    shown = (
        r"a\_b \%\&\#\{\}\textbackslash{}\textasciicircum{}\textasciitilde{}\$ {[}c] \textless{}d\textgreater{}"
    )
    assert f"& {shown}\\textbar{{}}{{*}} &" in lines[4] and lines[4].endswith(r" \\")
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]
    assert escaped("plain text 1.5") == "plain text 1.5"
    assert escaped("--lr --- cafe\u0301 \u200bb\u00ad") == "-{}-lr -{}-{}- caf\u00e9 b"
    group(store, "\u041f\u0440\u0438\u0432\u0435\u0442")
    assert told(command("runs", "ls", "--latex")).startswith("% With letters that pdflatex lacks")


@pytest.mark.whole
@pytest.mark.skipif(not shutil.which("pdflatex"), reason="pdflatex is not there")
def test_latex_takes_the_table(command, store, tmp_path):
    group(store, NASTY)
    group(store, "--lr --- cafe\u0301 \u200bb\u00ad")
    table = told(command("runs", "ls", "--latex"))
    (tmp_path / "t.tex").write_text(
        f"\\documentclass{{article}}\\usepackage{{booktabs}}\\begin{{document}}\n{table}\\end{{document}}\n"
    )
    subprocess.run(["pdflatex", "-halt-on-error", "t.tex"], cwd=tmp_path, check=True, capture_output=True)


def test_a_comparison_is_a_latex_table_with_a_column_for_a_group(command, store):
    for mode in ("alone", "plain"):
        group(store, "own_loaders", mode=mode, seconds=50.0 if mode == "plain" else 100.0)
    lines = told(command("runs", "compare", "own_loaders", "--latex")).splitlines()
    assert lines[2] == r" & own\_loaders alone & own\_loaders plain \\"
    assert r"memory at most, MiB & 533 & 533 \\" in lines


def test_an_export_to_parquet_has_the_same_points_with_their_types(command, store, tmp_path):
    runs = group(store, "sweep", parameters={"lr": "0.1"}, mode="mps") + group(store, "other", status="failed")
    with closing(SeriesWriter(store.folder_of(runs[0].id) / "series" / "steps.points")) as writer:
        for time_s, name, value in ((11, "before", 1), (12, "step", 100), (12, "with", 3), (13, "after", 2)):
            writer.add(name, value, time_s)
    for end in ("csv", "parquet"):
        told(command("runs", "export", "sweep", "other", str(tmp_path / f"all.{end}")))
    table = pq.read_table(tmp_path / "all.parquet")
    rows = list(csv.DictReader((tmp_path / "all.csv").read_text().splitlines()))
    assert table.column_names == list(rows[0])
    assert [table.schema.field(name).type for name in ("time_s", "value", "status")] == [
        pa.float64(), pa.float64(), pa.string(),
    ]  # fmt: skip
    logged = {row["series"]: row["step"] for row in rows if row["run"] == runs[0].id}
    assert [logged[name] for name in ("before", "step", "with", "after")] == ["", "100.0", "100.0", ""]
    assert table["step"].to_pylist() == [float(row["step"]) if row["step"] else None for row in rows]
    assert table["value"].to_pylist() == [float(row["value"]) for row in rows]
    assert table["time_s"].to_pylist() == pytest.approx([float(row["time_s"]) for row in rows], abs=1e-6)
    for name in ("run", "series", "group", "mode", "status"):
        assert table[name].to_pylist() == [row[name] for row in rows]
    assert [each or "" for each in table["param.lr"].to_pylist()] == [row["param.lr"] for row in rows]
    assert set(table["run"].to_pylist()) == {run.id for run in runs}
    assert set(table["status"].to_pylist()) == {"finished", "failed"}


@pytest.mark.whole
def test_without_pyarrow_an_export_to_parquet_is_one_error(piped, store, tmp_path):
    group(store, "one")
    words = ["runs", "export", "one", str(tmp_path / "x.parquet")]
    failed = piped(*words, PENSTOCK_STORE=str(store.folder), **without(tmp_path, "pyarrow"))
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.strip().endswith('an export to Parquet needs pyarrow: pip install "penstock[columns]"')
    assert not list(tmp_path.glob("*x.parquet*"))


def test_verbs_say_as_json_what_they_did_by_id(command, store, tmp_path):
    first, second, third = (group(store, name)[0] for name in ("first", "second", "third"))
    told_json = lambda *words: json.loads(told(command("runs", *words, "--json")))  # noqa: E731
    file = str(tmp_path / "x.csv")
    assert told_json("export", "first", file) == {"file": file, "points": 300, "runs": [first.id]}
    assert told_json("stop", first.id) == [
        {"id": first.id, "name": "a", "before": "finished", "status": "finished"}
    ]
    [gone] = told_json("rm", first.id)
    assert (gone["id"], gone["removed"]) == (first.id, True) and gone["bytes"] > 0
    would = told_json("prune", "--keep", "0s", "--dry-run")
    assert [(each["id"], each["removed"]) for each in would] == [(second.id, False), (third.id, False)]
    assert [each["id"] for each in told_json("prune", "--keep", "0s")] == [second.id, third.id]
    assert store.runs() == []


def test_tables_of_what_goes_on_have_group_and_mode(store):
    [run] = store.add(waiting(1, name="sweep", mode="mps"))
    store.began(run.id, keeper=living(), pid=1)
    shown = Console(width=150)
    with shown.capture() as captured:
        shown.print(Looks(store).table())
    heads, row = captured.get().splitlines()[1:3]
    assert heads.split()[:5] == ["id", "name", "group", "mode", "status"]
    assert row.split()[:5] == [run.id, "run-0", "sweep", "mps", "running"]


@pytest.fixture
def completed(piped) -> Callable[..., list[str]]:
    """What bash offers at the end of a line."""

    def complete(line: str, **more: str) -> list[str]:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
        ran = piped(**words, **more, _PENSTOCK_COMPLETE="complete_bash")
        assert not ran.stderr
        return ran.stdout.split()

    return complete


@pytest.mark.whole
def test_tab_completes_ids_and_groups(completed, store):
    one, other = group(store, "Zebras")[0], group(store, "Zoo")[0]
    for verb in ("compare", "export"):
        assert completed(f"penstock runs {verb} Z") == ["Zoo", "Zebras"], verb
    for verb in ("show", "rm"):
        assert one.id in completed(f"penstock runs {verb} {one.id[:3]}"), verb
    assert completed(f"penstock runs compare {other.group_id[:5]}") == [other.group_id]
    assert completed("penstock runs logs Zo") == ["Zoo"]
    apart = group(store, "Zoo two")[0]
    assert completed("penstock runs compare Zoo") == ["Zoo"], (
        "bash would split the other: it is completed by its id"
    )
    assert completed(f"penstock runs compare {apart.group_id[:5]}") == [apart.group_id]
    assert completed("penstock ru") == ["run", "runs"]


@pytest.mark.whole
def test_tab_is_silent_where_no_store_is_and_makes_none(completed, tmp_path):
    for more in (
        {"PENSTOCK_STORE": str(tmp_path / "absent")},
        {"PENSTOCK_STORE": "", "XDG_DATA_HOME": str(tmp_path)},
    ):
        assert completed("penstock runs show ", **more) == []
    assert not list(tmp_path.iterdir())


@pytest.mark.whole
def test_completion_installs_itself_for_bash(piped, tmp_path):
    ran = piped("--show-completion", "bash", HOME=str(tmp_path), _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "complete -o default -F _penstock_completion penstock" in ran.stdout, ran


@pytest.mark.parametrize("words", [("ls", "--watch"), ("ls", "--json"), ("compare", "x", "--json")])
def test_latex_beside_another_form_is_refused(command, words):
    assert f"--latex: not with {words[-1]}" in refused(command("runs", *words, "--latex"))
