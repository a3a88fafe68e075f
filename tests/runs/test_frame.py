"""Runs as tables of pandas, for notebooks."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.web.seeded import group

import penstock
from penstock.cli.runs_show import facts_of
from penstock.errors import NoSuchRun, StoreUnusable
from penstock.runs.store import Store
from penstock.runs.store.notes import Change
from penstock.web.views import _summary


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "store") as store:
        for at, lr in enumerate(("0.1", "0.01")):
            series = {"eval/loss": [3.0, 1.0 + at, math.nan, 2.0], "feed.wait_s": [0.0, 15.0]}
            [run] = group(store, "sweep", runs=[f"run {at}"], parameters={"lr": lr, "opt": "sgd"}, series=series)
            store.annotate([run.id], Change(note=f"with {lr}", tag=("good", "paper")[: at + 1]))
        command = ["python", "train.py", "--seed=3"]
        group(store, "other", runs=["one"], status="failed", series={"proc.cpu_s": [0.0, 3.0]}, command=command)
    return tmp_path / "store"


def test_runs_are_rows_with_their_parameters_and_what_they_logged(store):
    runs = penstock.load_runs("sweep", store=store)
    assert list(runs["name"]) == ["run 0", "run 1"] and runs.index.name == "id"
    assert list(runs["param.lr"]) == [0.1, 0.01] and list(runs["param.opt"]) == ["sgd", "sgd"]
    assert list(runs["last.eval/loss"]) == [2, 2] and list(runs["least.eval/loss"]) == [1, 2]
    assert list(runs["waiting"]) == [0.25, 0.25]
    assert list(runs["note"]) == ["with 0.1", "with 0.01"] and list(runs["tags"]) == ["good", "good paper"]
    assert str(runs["began"].dtype).startswith("datetime64") and str(runs["began"].dt.tz) == "UTC"


def test_all_runs_or_one_of_them_are_loaded_and_a_name_that_is_not_there_is_one_error(store):
    runs = penstock.load_runs(store=store)
    assert len(runs) == 3 and list(runs["status"]) == ["finished", "finished", "failed"]
    assert list(runs["param.seed"].dropna()) == [3] and runs["param.lr"].isna().sum() == 1
    assert runs["last.eval/loss"].isna().sum() == 1
    assert list(penstock.load_runs(runs.index[2], store=store)["cpu_s"]) == [3]
    with pytest.raises(NoSuchRun, match="no run 'absent'"):
        penstock.load_runs("absent", store=store)


def test_what_was_logged_again_at_a_step_counts_no_more_in_any_figure(tmp_path):
    with Store.open(tmp_path / "store") as store:
        series = {"loss": [0.1, 2.0, 3.0, 4.0], "step": [7.0, 8.0, 7.0, 9.0], "epoch": [1.0, 2.0, 0.5, 3.0]}
        [run] = group(store, "resumed", runs=["one"], series=series)
        [shown] = facts_of(store, [run])
        page = _summary(1.0, store.series(run.id))["figures"]["loss"]
    runs = penstock.load_runs(store=tmp_path / "store")
    assert [float(runs[f"{kind}.loss"].iloc[0]) for kind in ("least", "most", "last")] == [2, 4, 4]
    assert page == (4, 2, 4)  # last, least, most
    assert shown.series["loss"] == {"last": 4, "mean": 3, "points": 3}


def test_numbers_that_no_run_has_are_numbers_too(store):
    runs = penstock.load_runs("other", store=store)
    for name in ("waiting", "computing", "epoch_s", "samples"):
        assert runs[name].dtype == float and runs[name].isna().all()
    assert list(runs["exit_code"]) == [1] and list(runs["status"]) == ["failed"]


def test_a_store_without_runs_is_an_empty_table_and_none_is_an_error(tmp_path):
    Store.open(tmp_path / "empty").close()
    assert len(penstock.load_runs(store=tmp_path / "empty")) == 0
    with pytest.raises(StoreUnusable, match="there is no store of runs in"):
        penstock.load_runs(store=tmp_path / "absent")
    assert not (tmp_path / "absent").exists()
