"""A comparison runs what is missing, counts what it cost, and says what it found."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.scripts import run_python

from penstock.basics.results import Spread
from penstock.cli.select_table import _ranks
from penstock.errors import BadSetting
from penstock.linux.files import held
from penstock.runs.store import Store
from penstock.select.bench.compare import (
    ArmRow,
    SelectReport,
    baselines_of,
    choose,
    full_of,
    paired,
    rows_of,
    shown,
)
from penstock.select.bench.run import BenchResults, Outcome, arms_of, label, scoring, training
from penstock.select.bench.spec import Arm, BenchSpec, read_spec
from penstock.select.savings import savings
from penstock.select.scores import Scores
from penstock.select.steps import steps_in

TASK = """
import torch
from penstock import select

class Data:
    def __len__(self): return 40
    def __getitem__(self, id): return torch.tensor([float(id), 1.0]), id % 2

def task(seed=0):
    return select.Task(data=Data(), make_model=lambda: torch.nn.Linear(2, 2), embed=lambda model, batch: batch[0])

def other(): return 7
"""
TRAIN = """
import pathlib
import penstock
policy, epochs, seed, choosing = penstock.select.plan_of_run(40, 4)
ids = [id for epoch in range(epochs) for id in policy.selection(epoch).ids.tolist()]
if seed == 2 and pathlib.Path("unlucky").exists(): raise SystemExit("no luck")
penstock.log(accuracy=len(set(ids)) + seed / 100 - choosing, given=len(ids))
"""
SPEC = """
task: task.py:task
train: [train.py]
seeds: [1, 2]
fresh_seeds: [3]
together: 4
arms:
  - {method: full, fractions: [1, 0.5]}
  - {method: rs2, fractions: [0.5]}
  - {method: diverse, fractions: [0.5], settings: {epochs: 0}}
"""


RS2 = "  - {method: rs2, fractions: [0.5]}\n"


def penstock(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "penstock", "select", *words, cwd=folder, timeout=300)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("task.py", TASK), ("train.py", TRAIN), ("small.yaml", SPEC)):
        (tmp_path / name).write_text(text)
    return tmp_path


def bench(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return penstock(folder, "bench", "small.yaml", "--out", "out", "--store", str(folder / "store"), *words)


def outcomes(folder: Path) -> dict[str, Any]:
    """What the runs of a comparison took, by arm and seed."""
    found = json.loads((folder / "out" / "results.json").read_text())["results"]
    return {f"{each['arm']}, seed {each['repeat']}": each["figures"] for each in found}


RUNS_MANY = pytest.mark.timeout(400)  # several trainings and scorings, one after the other; each command has 300 s


@RUNS_MANY
@pytest.mark.whole
def test_a_comparison_from_its_spec_to_its_picture_and_once_more(folder: Path) -> None:
    said = bench(folder)
    assert said.returncode == 0, said.stdout + said.stderr
    report = json.loads((folder / "out" / "report.json").read_text())
    reached = {row["label"]: row["metric"]["median"] for row in report["on_seeds"]}
    without = dict.fromkeys(["full 100%", "full 50%", "rs2 50%", "infobatch 100%"], 39.015)
    assert reached == pytest.approx(without | {"diverse 50%": 19.015})
    for seeds, rows in ((["1", "2"], report["on_seeds"]), (["3"], report["on_fresh_seeds"])):
        assert all([*row["figures"]] == seeds for row in rows)
    assert report["on_fresh_seeds"][0]["figures"]["3"] == pytest.approx(40.03), "not on what was chosen by"
    assert report["chosen"] == "diverse 50%"
    assert [row["label"] for row in report["on_fresh_seeds"]][:3] == ["full 100%", "diverse 50%", "random 50%"]
    assert report["against"]["full 100%"]["median"] == pytest.approx(-20)
    diverse = next(row for row in report["on_seeds"] if row["label"] == "diverse 50%")
    assert diverse["scoring_cpu_s"] > 0.1 and diverse["cost"]["1"] > diverse["cost"]["20"]
    beyond = "diverse 50% (the cheapest: nothing with scores costs at most 0.7), on fresh seeds"
    assert (beyond in said.stdout.replace("\n", " ")) == (diverse["cost"]["1"] > 0.7)
    assert (folder / "out" / "picture.png").stat().st_size > 10_000
    assert "diverse 50% against full 100%, seed by seed, median (least to most): -20.00 (" in said.stdout
    results = json.loads((folder / "out" / "results.json").read_text())
    same = "full at its cost" if diverse["cost"]["1"] >= 0.995 else ""  # then it is full, which is there
    assert len(results["results"]) == 2 * 6 + 1 + 6 - bool(same)
    again = bench(folder)
    assert again.returncode == 0 and "[0 of" not in again.stdout
    assert json.loads((folder / "out" / "results.json").read_text()) == results
    scores = "out/scores/diverse-epochs=0-1.parquet"

    def cost(scores: str, full: str) -> tuple[int, str]:
        """Status and words of ``select cost`` of the runs by diverse."""
        words = ["--full", f"small/{full}", "--selected", "small/diverse 50%", "--store", str(folder / "store")]
        ended = penstock(folder, "cost", scores, *words)
        return ended.returncode, (ended.stdout + ended.stderr).replace("\n", " ")

    others = penstock(folder, "score", "task.py:task", "--method", "el2n", "--out", "others.parquet")
    assert others.returncode == 0, others.stderr
    for given, full, status, words in (
        (scores, "full 100%", 0, "accuracy: 39.02 (39.01 to 40.03, 3 runs) on all samples, 19.02"),
        ("others.parquet", "full 100%", 2, "-epochs=0-1, diverse-epochs=0-2, diverse-epochs=0-3, and not others"),
        (scores, "diverse 50%", 2, "3 of the runs of group 'small/diverse 50%' have read scores"),
        (scores, "rs2 50%", 2, "group 'small/rs2 50%' trained on rs2 50%, as select bench asked"),
        (scores, "full 50%", 2, "group 'small/full 50%' trained on full 50%, as select bench asked"),
    ):
        ended = cost(given, full)
        assert ended[0] == status and words in ended[1], ended
    with Store.open(folder / "store") as store:
        [saving] = savings(store, ["small/rs2 50%", "small/full 50%", "small/diverse 50%", "small/full 100%"])
        [alone] = savings(store, ["small/rs2 50%", "small/full 50%", "small/diverse 50%"])
    assert alone.against == "" and alone.full is None
    assert (saving.group, saving.against, saving.selected.runs) == ("small/diverse 50%", "small/full 100%", 3)
    assert saving.methods == ("diverse (epochs 0, fraction 1.0)",) and saving.scoring.cpu_s > 0
    show = penstock(folder, "show", scores)
    assert "diverse (version 2, epochs 0, fraction 1.0), seed 1; high scores are worth more" in show.stdout
    compare = penstock(folder, "compare", scores, scores.replace("-1.", "-2."))
    assert compare.returncode == 0 and "top 50% in both" in compare.stdout


@RUNS_MANY
@pytest.mark.whole
def test_a_run_that_fails_is_named_and_what_has_run_is_not_run_again(folder: Path) -> None:
    short = SPEC.replace("fresh_seeds: [3]\n", "").replace("[1, 0.5]", "[1]").replace(RS2, "")
    (folder / "small.yaml").write_text(short)
    (folder / "unlucky").touch()
    said = bench(folder)
    assert said.returncode == 2
    assert "seed 2) ended as failed: no luck. See penstock runs show" in said.stderr.replace("\n", " ")
    before = outcomes(folder)
    assert before and all(key.endswith("seed 1") or key.startswith("scores of") for key in before)
    (folder / "unlucky").unlink()
    assert bench(folder).returncode == 0
    after = outcomes(folder)
    assert {key: after[key] for key in before} == before
    for changed, text, named in (
        ("small.yaml", short.replace("[train.py]", "[train.py, x]"), "train"),
        ("train.py", TRAIN + "1", "train.py"),
        ("task.py", TASK + "1", "task.py, another train.py"),
    ):
        (folder / changed).write_text(text)
        said = bench(folder)
        assert said.returncode == 2
        assert f"holds results of another {named}: give another folder" in said.stderr.replace("\n", " ")
        assert ("anew everything" in said.stderr.replace("\n", " ")) == (changed == "task.py")
        (folder / "small.yaml").write_text(short)
    (folder / "task.py").write_text(TASK)
    assert bench(folder, "--again").returncode == 0
    anew = outcomes(folder)
    assert {key for key in after if anew[key] == after[key]} == {key for key in after if key.startswith("scores")}


@pytest.mark.parametrize(
    ("train", "task", "kept"),
    [
        ("train.py", TASK, True),
        ("./train.py --model model.py", TASK, True),
        ("DIR/train.py", TASK, True),
        ("train.py", TASK + "from train import Data\n", False),
        ("task.py", TASK, False),
    ],
)
def test_scores_are_kept_if_scoring_cannot_reach_what_has_changed(folder: Path, train: str, task: str, kept: bool):
    (folder / "task.py").write_text(task.replace("from train", "if 0: from train"))
    (folder / "small.yaml").write_text(SPEC.replace("[train.py]", train.replace("DIR", str(folder))))
    (folder / "below").mkdir()
    comparison = read_spec(folder / "below" / ".." / "small.yaml")
    assert comparison.training_script == ("train.py" if kept else None)
    assert {"train.py", "task.py"} <= comparison.code().keys()


@RUNS_MANY
@pytest.mark.whole
def test_a_script_is_mended_before_anything_counts_and_scores_stay(folder: Path) -> None:
    (folder / "train.py").write_text("import penstock; penstock.log(accuracy=1)")
    scored = "  - {method: diverse, fractions: [0.5], settings: {epochs: 0}}\n"
    (folder / "small.yaml").write_text(SPEC.replace(scored, "").replace("arms:\n", f"arms:\n{scored}"))
    said = bench(folder)
    assert said.returncode == 2 and "has not asked what to train on" in said.stderr.replace("\n", " ")
    before = outcomes(folder)
    assert before and all(key.startswith("scores of") for key in before)
    (folder / "train.py").write_text(TRAIN)
    with held(folder / "out", "results", "comparing in"):
        said = bench(folder)
    assert said.returncode == 2 and "another process is comparing in out" in said.stderr
    assert bench(folder).returncode == 0
    after = outcomes(folder)
    assert {key: after[key] for key in before} == before


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("diverse", "best", "there is no method 'best'"),
        ("{epochs: 0}", "{depth: 0}", "diverse has no setting depth"),
        (", settings", ", pool: 0.2, settings", "diverse: pool 0.2 is less than 0.5"),
        ("{method: rs2, fractions", "{method: rs2, by: class, fractions", "rs2 has no scores: leave out pool, by"),
        ("fresh_seeds: [3]", "fresh_seeds: [2]", "give seeds, and fresh_seeds that are others"),
        ("seeds: [1, 2]", "seeds: [1, 1]", "give seeds, and fresh_seeds that are others, each once"),
        ("fractions: [1, 0.5]", "fractions: [1, 0.5, 0.5]", "arm full with fraction 0.5 is there twice"),
        ("task.py:task", "task.py:none", "has no function 'none'; it has: Data, other, task"),
        ("[train.py]", "[missing.py]", "missing.py"),
        ("[train.py]", "''", "train: the command is empty"),
        ("together: 4", "together: 0", "expected `int` >= 1"),
        ("seeds: [1, 2]\n", "", "missing required field `seeds`"),
        ("fractions: [1, 0.5]", "fractions: [0.5]", "full with fraction 1 must be there"),
    ],
)
def test_a_mistake_in_a_spec_is_one_error_before_anything_runs(folder: Path, old: str, new: str, said: str):
    assert old in SPEC
    (folder / "small.yaml").write_text(SPEC.replace(old, new, 1))
    with pytest.raises(BadSetting) as error:
        full_of(read_spec(folder / "small.yaml").spec)
    assert said in str(error.value)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("score task.py:other --method el2n --out x", "returned a int, and no penstock.select.Task"),
        ("score task.py:task --method best --out x", "there is no method 'best'"),
        ("score task.py:task --method el2n --set epochs --out x", "write NAME=VALUE"),
        ("score task.py:task --method el2n --out ../x", "is no name of scores"),
        ("score task.py:task --method less --out x", "the Task has none"),
        ("show nothing", "there are no scores of name 'nothing'"),
        ("compare one", "give two or more scores"),
        ("score task.py:task --method el2n --out x --seed -1", "greater than or equal to 0"),
        ("score task.py:task --method el2n --out task.parquet", "--replace"),
        ("bench small.yaml --out task.py", "task.py cannot be a folder of results"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_error(folder: Path, words: str, said: str) -> None:
    (folder / "task.parquet").touch()
    ended = penstock(folder, *words.split())
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert said in ended.stderr.replace("\n", " ") and "Traceback" not in ended.stderr


@pytest.mark.whole
def test_what_the_users_code_raises_is_told_from_there_on(folder: Path) -> None:
    (folder / "task.py").write_text(TASK.replace("return torch.tensor", "return [][id], torch.tensor"))
    ended = penstock(folder, "score", "task.py:task", "--method", "el2n", "--out", "x")
    assert ended.returncode == 1
    assert "penstock: el2n on task.py:task raised IndexError: list index out of range" in ended.stderr
    assert ended.stderr.index("task.py") < ended.stderr.index("penstock: el2n") and "typer" not in ended.stderr


def results() -> BenchResults:
    """Two seeds: full takes 10 CPU-seconds, "less" 4 and 3 for its scores, and "el2n" 5 and 1."""
    arms = [Arm("full", [1.0]), Arm("less", [0.4]), Arm("el2n", [0.5])]
    spec = BenchSpec("t.py:t", "train.py", arms, [1, 2], watts=36)
    taken = {(0, 1.0): (10, 70), (1, 0.0): (3, None), (1, 0.4): (4, 72), (2, 0.0): (1, None), (2, 0.5): (5, 68)}
    results = BenchResults(benchmark="select bench", machine=None, settings=spec, code={})  # type: ignore[arg-type]
    for (arm, fraction), (cpu_s, metric) in taken.items():
        for seed in (1, 2):
            reached = None if metric is None else metric + seed
            put(results, arm, fraction, seed, Outcome("r", cpu_s / 2, cpu_s, None, reached))
    return results


def put(results: BenchResults, arm: int, fraction: float, seed: int, outcome: Outcome) -> None:
    """Add an outcome, or replace it."""
    spec = results.settings
    name = training(spec, arm, fraction) if fraction else scoring(spec, arm)
    results.results = [each for each in results.results if (each.arm, each.repeat) != (name, seed)]
    results.add(name, seed, outcome)


def test_costs_count_the_selection_once_for_all_runs_that_share_it() -> None:
    full, less, el2n = rows_of(results(), [(0, 1.0), (1, 0.4), (2, 0.5)], [1, 2])
    assert full.cost == {1: 1.0, 5: 1.0, 20: 1.0} and full.pays_after == 0
    assert less.cost == pytest.approx({1: 0.7, 5: 0.46, 20: 0.415}) and less.pays_after == 1
    assert less.metric == Spread(73.5, 73, 74) and less.scoring_wh == pytest.approx(3 * 36 / 3600)
    assert el2n.cost[1] == pytest.approx(0.6) and el2n.pays_after == 1


def test_where_seeds_do_not_tell_methods_apart_the_table_says_so() -> None:
    found = results()
    put(found, 2, 0.5, 1, Outcome("r", 1, 1, None, 74))
    full, less, el2n = rows_of(found, [(0, 1.0), (1, 0.4), (2, 0.5)], [1, 2])
    assert less.figures == {1: 73, 2: 74}
    against = {row.label: paired(less, row) for row in (full, el2n)}
    assert against == {"full 100%": Spread(2, 2, 2), "el2n 50%": Spread(1.5, -1, 4)}
    report = SelectReport("t", "accuracy", None, 0.7, less.label, [less], [less, full, el2n], against)  # type: ignore[arg-type]
    said = [each for each in shown(report) if isinstance(each, str)]
    assert [each.endswith("these seeds do not separate them") for each in said] == [False, True]


def test_rs2_and_infobatch_stand_in_every_table(folder: Path) -> None:
    (folder / "small.yaml").write_text(SPEC.replace(RS2, ""))
    spec = read_spec(folder / "small.yaml").spec
    arms = {label(spec, *each): each for each in arms_of(spec)}
    assert {"rs2 50%", "infobatch 100%"} <= arms.keys()
    assert arms["infobatch 100%"] in baselines_of(spec, 0.5, 0.6)


def test_the_choice_is_the_best_within_the_budget() -> None:
    found = results()
    assert choose(found) == (1, 0.4)
    found.settings = BenchSpec(found.settings.task, "train.py", found.settings.arms, [1, 2], budget=0.65)
    assert choose(found) == (2, 0.5)
    found.settings = BenchSpec(found.settings.task, "train.py", found.settings.arms, [1, 2], budget=0.1)
    assert choose(found) == (2, 0.5)
    assert full_of(found.settings) == (0, 1.0)


def test_a_selection_pays_when_what_runs_save_is_what_scoring_cost() -> None:
    found = results()
    costs = ((3.0, 4.0, 1), (6.0, 4.0, 1), (6.1, 4.0, 2), (60.0, 4.0, 10), (1.0, 10.0, None))
    for scored, trained, expected in costs:
        for seed in (1, 2):
            put(found, 1, 0.0, seed, Outcome("r", 1, scored, None, None))
            put(found, 1, 0.4, seed, Outcome("r", 1, trained, None, 70))
        (row,) = rows_of(found, [(1, 0.4)], [1, 2])
        assert isinstance(row, ArmRow) and row.pays_after == expected
    assert row.label == "less 40%"


def test_arms_that_differ_little_have_names_of_their_own() -> None:
    arms = [Arm("less", [0.1], pool=0.12), Arm("less", [0.1, 0.105], pool=0.125)]
    spec = BenchSpec("t.py:t", "train.py", arms, [1])
    keys = {training(spec, arm, fraction) for arm, its in enumerate(arms) for fraction in its.fractions}
    assert keys == {"less 0.1 (pool 12%)", "less 0.1 (pool 12.5%)", "less 0.105 (pool 12.5%)"}
    assert label(spec, 1, 0.105) == "less 10.5% (pool 12.5%)"


def test_ranks_of_equal_scores_are_equal() -> None:
    assert _ranks(np.array([3.0, 1.0, 3.0, 0.0])).tolist() == [2.5, 1.0, 2.5, 0.0]


BURNS = """
import time

def task(seed=0):
    while time.process_time() < 3: pass
    return make()
"""


@pytest.mark.whole
def test_scoring_costs_the_whole_process_and_two_to_one_name_are_refused(folder: Path) -> None:
    text = TASK.replace("def task(seed=0)", "def make()")
    (folder / "task.py").write_text(text + BURNS)
    words = ("score", "task.py:task", "--method", "diverse", "--set", "epochs=0", "--out", "x.parquet")
    with steps_in(folder / "x.partial"):
        refused = penstock(folder, *words)
    assert refused.returncode == 2 and "another process is scoring" in refused.stderr.replace("\n", " ")
    ended = penstock(folder, *words)
    assert ended.returncode == 0, ended.stderr
    cost = Scores.read(folder / "x.parquet").header.cost
    assert cost.cpu_s > 3 and cost.seconds > 3, "make_task counts, and what Python imports"
    assert not (folder / "x.partial").exists()
