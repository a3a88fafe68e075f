"""A scoring that is interrupted goes on from the steps that were kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.select.tasks import Images, convolutional, images, small

from penstock import select
from penstock.errors import BadSetting
from penstock.select.steps import steps_in
from penstock.select.task import Task


def interrupted(folder: Path, method: str, at: str, **settings: Any) -> list[str]:
    """Score until a step of this name has begun; return the names of those that were told."""
    told = list[str]()

    def tell(what: str, done: int, total: int) -> None:
        assert 0 <= done <= total
        told.append(what)
        if what.startswith(at):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        select.score(task(), method, progress=tell, keep=folder, **settings)
    return told


def task() -> select.Task:
    return images(make_proxy=small)


@pytest.mark.parametrize(
    ("method", "at", "done"),
    [
        ("el2n", "lengths by model 3 of 3", "train"),
        ("less", "gradients at checkpoint 3 of 4", "train"),
        ("less", "gradients at checkpoint 3 of 4", "gradients at checkpoint 2"),
        ("rds", "embeddings", "train"),
        ("diverse", "put in order", "embeddings"),
        ("sketch", "gradients of the proxy", "train"),
    ],
)
def test_an_interrupted_scoring_goes_on_and_finds_the_same(tmp_path: Path, method: str, at: str, done: str):
    plain = select.score(task(), method)
    assert any(what.startswith(done) for what in interrupted(tmp_path / "kept", method, at))
    again = list[tuple[str, int, int]]()
    found = select.score(task(), method, keep=tmp_path / "kept", progress=lambda *told: again.append(told))
    assert np.array_equal(found.values, plain.values) and found.header.checkpoint == plain.header.checkpoint
    assert not [what for what, count, _ in again if what.startswith(done) and count], "computed twice"


def test_its_cost_is_that_of_all_its_parts(tmp_path: Path) -> None:
    interrupted(tmp_path / "kept", "el2n", "lengths by model 3 of 3")
    found = select.score(task(), "el2n", keep=tmp_path / "kept").header.cost
    again = select.score(task(), "el2n", keep=tmp_path / "kept").header.cost
    assert again.cpu_s > found.cpu_s and again.seconds > found.seconds


def test_steps_of_another_scoring_are_refused(tmp_path: Path) -> None:
    interrupted(tmp_path / "kept", "el2n", "lengths by model 3 of 3")
    for change, said in (
        ({"seed": 1}, "another seed"),
        ({"models": 2}, "another settings"),
        ({"method": "rds"}, "another method, another settings"),
        ({"task": images(data=Images(seed=1), make_proxy=small)}, "another data"),
        ({"task": images(make_proxy=small, learning_rate=1e-4)}, "another task"),
        ({"task": images(make_proxy=small, inputs=lambda batch: batch[0] * 2)}, "another task"),
    ):
        given: dict[str, Any] = {"task": task(), "method": "el2n", "keep": tmp_path / "kept"} | change
        with pytest.raises(BadSetting, match=f"holds steps of another scoring, which was interrupted: {said}"):
            select.score(**given)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(BadSetting, match=r"holds thesis\.tex, and no steps of a scoring"):
        select.score(task(), "el2n", keep=tmp_path / "mine")
    assert [each.name for each in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("method", ["less", "rds", "el2n"])
def test_steps_by_a_checkpoint_that_was_another_then_are_not_taken(method, tmp_path, monkeypatch):
    """A folder of checkpoints is called the same whatever is in it."""
    monkeypatch.setattr(Task, "fingerprint", lambda _: "the same")
    where, found = tmp_path / "checkpoint.pt", []
    settings: dict[str, Any] = {"adam": False} if method == "less" else {}
    for seed in (1, 2):
        torch.manual_seed(seed)
        torch.save(convolutional().state_dict(), where)
        given = images(checkpoints=[where])
        found.append(select.score(given, method, keep=tmp_path / "kept", **settings))
        assert np.array_equal(found[-1].values, select.score(given, method, **settings).values)
    assert not np.array_equal(found[0].values, found[1].values)


def test_of_two_scorings_to_one_folder_one_is_refused(tmp_path: Path) -> None:
    with steps_in(tmp_path / "kept"), pytest.raises(BadSetting, match=r"another process is scoring in .*kept"):
        select.score(task(), "el2n", keep=tmp_path / "kept")
    assert not (tmp_path / "kept").exists(), "nothing was kept"


def test_a_scoring_without_steps_leaves_no_folder(tmp_path: Path) -> None:
    select.score(task(), "sketch", epochs=0, keep=tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
