"""What a run's script is asked for, as its command says."""

from __future__ import annotations

import pytest

from penstock.runs.record import RunPlan
from penstock.runs.spec.command import grid_from, runs_of


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        (["python", "train.py"], {}),
        (["python", "train.py", "--lr", "0.1", "--opt=sgd"], {"lr": "0.1", "opt": "sgd"}),
        (
            ["python", "train.py", "--amp", "--no-cache", "--lr", "1"],
            {"amp": "true", "no-cache": "true", "lr": "1"},
        ),
        (["python", "train.py", "--shift", "-0.5", "--low", "-.5"], {"shift": "-0.5", "low": "-.5"}),
        (["python", "train.py", "--name", "two words", "-v", "--last"], {"name": "two words", "last": "true"}),
        (
            ["python", "train.py", "--empty=", "--eq=a=b", "--lr", "1", "--lr", "2"],
            {"empty": "", "eq": "a=b", "lr": "2"},
        ),
        (
            ["python", "train.py", "opt.lr=0.1", "+model/size=big", "++x=1"],
            {"opt.lr": "0.1", "model/size": "big", "x": "1"},
        ),
        (["python", "train.py", "data", "--", "-x", "https://a/?b=c", "--1=2", "=3"], {}),
        (
            ["python", "train.py", "--lr", "0.1", "--run-name", "lr=0.2,x=8"],
            {"lr": "0.1", "run-name": "lr=0.2,x=8"},
        ),
        (["python", "train.py", "--out", "runs/lr=0.1/seed=3"], {"out": "runs/lr=0.1/seed=3"}),
        (["python", "train.py", "--layers", "64", "128", "1e3", "data/"], {"layers": "64 128 1e3"}),
        (["python", "train.py", "--data", "a", "b", "3"], {"data": "a"}),
        (["python", "-c", "t=1; print(t)", "--lr", "1"], {"lr": "1"}),
        (["torchrun", "--nproc-per-node", "2", "train.py", "--lr", "1"], {"lr": "1"}),
        (["python", "-m", "torch.distributed.run", "--standalone", "train.py", "--lr", "1"], {"lr": "1"}),
        (["srun", "-c", "4", "python", "train.py", "--lr", "1"], {"lr": "1"}),
        (["/usr/bin/python3.11", "-W", "error", "-m", "my.train", "--lr", "1"], {"lr": "1"}),
        (["./train", "--lr", "1", "-m", "5"], {"lr": "1"}),
        (
            ["train", "--lr", "1", "--config", "a.py", "--x=b.sh", "--seed", "2"],
            {"lr": "1", "config": "a.py", "x": "b.sh", "seed": "2"},
        ),
        (["bash", "train.sh", "--lr", "1"], {"lr": "1"}),
        (["train"], {}),
    ],
)
def test_options_of_a_command_are_settings(command, settings):
    assert RunPlan(command=tuple(command), name="a", directory="/").settings == settings


def test_what_a_grid_filled_in_counts_before_options():
    plan = RunPlan(
        command=("train.py", "--lr", "0.10"), name="a", directory="/", parameters={"lr": "0.1", "x": "1"}
    )
    assert plan.settings == {"lr": "0.1", "x": "1"}


def test_what_a_grid_filled_in_comes_first():
    plan = RunPlan(
        command=("train.py", "--out", "a", "--lr", "1"), name="a", directory="/", parameters={"lr": "1"}
    )
    assert list(plan.settings) == ["lr", "out"]


def test_what_a_grid_fills_in_is_one_setting(tmp_path):
    (tmp_path / "train.py").touch()
    command = ["train.py", "--batch-size", "{bs}", "--lr={lr}", "--tag", "x{bs}", "--steps", "8", "model.bs={bs}"]
    (run,) = runs_of("it", command, str(tmp_path), grid=grid_from(["bs=8", "lr=0.1"]))
    assert run.settings == {"bs": "8", "lr": "0.1", "tag": "x8", "steps": "8"}
