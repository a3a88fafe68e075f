"""What a run of a comparison trains on, by its parameters; outside of one, all samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.select.test_scores import header

from penstock.errors import BadSetting
from penstock.select.in_training import plan_of_run
from penstock.select.scores import Scores
from penstock.subsets.infobatch import InfoBatch

N = 40


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Be a run with these parameters."""

    (tmp_path / "abc" / "files").mkdir(parents=True)

    def be(**parameters: str) -> None:
        monkeypatch.setenv("PENSTOCK_RUN_ID", "abc")
        monkeypatch.setenv("PENSTOCK_STORE", str(tmp_path))
        monkeypatch.setenv("PENSTOCK_RUN_PARAMETERS", json.dumps(parameters))

    return be


@pytest.fixture
def compared(asked: Any) -> Any:
    """Be a run of a comparison."""
    return lambda seed, **given: asked(seed=seed, **{f"select.{name}": value for name, value in given.items()})


@pytest.fixture
def scores(tmp_path: Path) -> str:
    return str(Scores(np.arange(N), np.arange(N), header(N)).save(tmp_path / "s.parquet"))


def chosen(plan: Any, epoch: int = 0) -> list[int]:
    return plan.policy.selection(epoch).ids.tolist()


def test_outside_of_a_comparison_all_samples_are_trained_on(asked: Any) -> None:
    plan = plan_of_run(N, 8, seed=7)
    assert chosen(plan) == list(range(N)) and plan.epochs == 8 and plan.seed == 7
    for own in ({"lr": "0.1"}, {"method": "adam", "seed": "3"}):  # of a sweep of the user's own
        asked(**own)
        assert plan_of_run(N, 8, seed=7)[1:] == (8, 7, False)


def test_methods_without_scores(compared: Any) -> None:
    compared(method="full", fraction="0.6", seed="3")
    plan = plan_of_run(N, 8)
    assert (chosen(plan), plan.epochs, plan.seed) == (list(range(N)), 5, 3)
    compared(method="rs2", fraction="0.5", seed="3")
    plan = plan_of_run(N, 8)
    assert plan.epochs == 8 and sorted(chosen(plan, 0) + chosen(plan, 1)) == list(range(N))
    compared(method="random", fraction="0.5", seed="3")
    plan = plan_of_run(N, 8)
    assert len(chosen(plan)) == N // 2 and chosen(plan, 0) == chosen(plan, 1)
    compared(method="infobatch", fraction="1", seed="3")
    assert isinstance(plan_of_run(N, 8).policy, InfoBatch)


def test_methods_with_scores(compared: Any, scores: str) -> None:
    less = {"method": "less", "seed": "3", "scores": scores}
    compared(**less, fraction="0.25", pool="0.25", by="top")
    plan = plan_of_run(N, 8)
    assert chosen(plan, 0) == chosen(plan, 5) == list(range(30, 40))
    compared(**less, fraction="0.25", pool="0.5", by="top")
    plan = plan_of_run(N, 8)
    assert sorted(chosen(plan, 0) + chosen(plan, 1)) == list(range(20, 40))
    compared(**less, fraction="0.5", pool="0.5", by="class")
    labels = np.arange(N) % 2
    assert chosen(plan_of_run(N, 8, labels=labels)) == list(range(20, 40))
    with pytest.raises(BadSetting, match="this arm chooses by class"):
        plan_of_run(N, 8)
    with pytest.raises(BadSetting, match="scores 40 samples, and the data set has 41"):
        plan_of_run(41, 8)
