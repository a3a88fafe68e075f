"""Names of series where a library logs for several folders or runs: no two of them share one."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.runs.inside import metrics, run

FOLDERS = ["train", "x/train", "y/x/train", "loss", "train 2", "feed.1", "/", "runs/train/loss"]
NAMES = ["loss", "train/loss", "x/train/loss", "loss 2", "train/loss 2", "train 2/loss", "loss/loss"]


def fresh() -> ModuleType:
    """Return the module as a process has it that has logged nothing yet."""
    spec = importlib.util.spec_from_file_location("metrics", metrics.__file__ or "")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def writers() -> Any:
    class SummaryWriter:
        def __init__(self, log_dir: Any) -> None:
            self.log_dir = log_dir

        def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None: ...

        def add_scalars(self, main_tag: str, tag_scalar_dict: Any, global_step: int | None = None) -> None: ...

        def add_hparams(self, hparam_dict: Any, metric_dict: Any) -> None: ...

    module: Any = ModuleType("torch.utils.tensorboard.writer")
    module.SummaryWriter = SummaryWriter
    fresh().hooked(module)
    return module.SummaryWriter


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    found: list[dict[str, float]] = []
    monkeypatch.setattr(run, "log", found.append)
    return found


@given(calls=st.lists(st.tuples(st.sampled_from(FOLDERS), st.sampled_from(NAMES)), max_size=60))
def test_no_two_names_of_any_writers_get_into_one_series_and_none_is_lost(calls: list[tuple[str, str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        found: list[dict[str, float]] = []
        patch.setattr(run, "log", found.append)
        writer = writers()
        for n, (folder, name) in enumerate(calls):
            writer(folder).add_scalar(name, n)
        again, writer = found[:], writers()
        for n, (folder, name) in enumerate(calls):
            writer(folder).add_scalar(name, n)
    assert found == again * 2, "the names follow from the calls alone"
    series: dict[str, set[tuple[str, str]]] = {}
    for n, point in enumerate(again):
        ((name, value),) = point.items()
        assert value == n
        series.setdefault(name, set()).add(calls[n])
    assert all(len(origins) == 1 for origins in series.values()), series
    assert not any(name.startswith("feed.") for name in series), "which Penstock measures"


def test_a_folder_may_be_a_path_and_the_process_may_go_elsewhere(
    logged: list[dict[str, float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    writer = writers()
    one, same, other = writer("a"), writer(tmp_path / "a"), writer(Path("b"))
    os.mkdir("c")
    one.add_scalar("loss", 1)
    monkeypatch.chdir("c")
    for each in (one, same, other, one):
        each.add_scalar("loss", 2)
    assert [name for point in logged for name in point] == ["loss", "loss", "loss", "b/loss", "a/loss"]


def test_what_the_axis_is_drawn_over_is_one_series(logged: list[dict[str, float]]) -> None:
    writer = writers()
    for folder in ("a", "b"):
        writer(folder).add_scalar("epoch", 1)
    assert [name for point in logged for name in point].count("epoch") == 2


def test_a_writer_of_an_unknown_kind_is_told_of_and_does_what_it_did(
    logged: list[dict[str, float]], capsys: pytest.CaptureFixture[str]
) -> None:
    writer: Callable[[Any], Any] = writers()
    for _ in range(2):
        one = writer("x")
        del one.log_dir
        assert one.add_scalar("loss", 1) is None
    assert not logged
    assert capsys.readouterr().err.count("penstock: what the script logs with tensorboard is not kept: ") == 1
