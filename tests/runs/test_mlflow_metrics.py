"""Names of series as names of MLflow's metrics."""

from __future__ import annotations

import posixpath

from penstock.runs.mlflow_metrics import LONGEST_NAME, unique_names


def test_names_are_paths_that_mlflow_takes_and_no_two_become_one():
    names = [
        "train/loss",
        "../x",
        "/x",
        "a//b",
        ".",
        "..",
        "recall@5",
        "recall_5",
        "_x",
        "é/ü",
        "a/../b",
        "x" * 300,
    ]
    found = unique_names(dict.fromkeys(names))
    assert found["train/loss"] == "train/loss"
    assert len(set(found.values())) == len(names)
    for name in found.values():
        assert posixpath.normpath(name) == name and not name.startswith(("/", "..")) and name != "."
        assert 0 < len(name) <= LONGEST_NAME


def test_names_without_slashes_stay_different():
    found = unique_names(dict.fromkeys(["model", "model/size", "model_size", "opt.lr"]), kept="")
    assert len(set(found.values())) == 4 and not any("/" in name for name in found.values())
    assert found["opt.lr"] == "opt.lr" and found["model"] == "model"
