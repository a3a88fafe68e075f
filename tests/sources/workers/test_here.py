"""This process as its own worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.errors import SourceError
from penstock.sources.workers import Here
from penstock.testing.workers import worker

Worker = Here[tuple[str, str], str]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Worker]:
    with closing(Worker(worker)) as here:
        here.prepare((str(tmp_path / "log"),), [])
        yield here


def test_a_task_is_done_when_its_result_is_asked_for_in_whatever_order(here: Worker, tmp_path: Path) -> None:
    for number, text in enumerate("abc"):
        here.submit(number, ("do", text))
    assert not (tmp_path / "log").exists()
    assert [here.result(number) for number in (2, 0, 1)] == ["C", "A", "B"]
    steps = (tmp_path / "log").read_text().splitlines()
    assert steps == [step for text in "cab" for step in (f"ask {text}", *[f"do {text}"] * 3)]


def test_what_a_task_raises_is_its_own_and_others_go_on(here: Worker) -> None:
    for number, verb in enumerate(("do", "refuse", "do")):
        here.submit(number, (verb, "x"))
    with pytest.raises(SourceError, match="x is refused"):
        here.result(1)
    assert [here.result(number) for number in (0, 2)] == ["X", "X"]


def test_tasks_that_are_given_up_are_never_done(here: Worker, tmp_path: Path) -> None:
    here.submit(0, ("do", "a"))
    here.settle()
    assert not (tmp_path / "log").exists()
    here.submit(0, ("do", "b"))
    assert here.result(0) == "B"
