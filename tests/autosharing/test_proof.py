"""A run compares what it makes of a few samples with what the feed gives, before its first batch and later."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.autosharing.running import Scripts, feeds_read

N = 40


def runs(scripts: Scripts, *each: tuple[str, int, int], **environment: str) -> tuple[list[Any], list[str]]:
    """Run scripts together that explain; return the values of their epochs by sample, and what each has said."""
    more = {"together": len(each), "options": {"explain": True}, **environment}
    started = [scripts.start(i, "witnessed.py", *map(str, words), **more) for i, words in enumerate(each)]
    for run in started:
        assert run.wait() == 0, run.output
    ended = [json.loads(run.output.splitlines()[-1]) for run in started]
    seen = [[[epoch[str(i)] for i in range(N)] for epoch in epochs] for epochs in ended]
    return seen, [run.output for run in started]


def scaled(by: int) -> list[int]:
    return [by * i for i in range(N)]


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_whose_samples_are_not_the_feeds_uses_its_own_loader_and_names_one(scripts: Scripts, workers: str):
    (seen,), (said,) = runs(scripts, ("rows", 3, 2), WORKERS=workers)
    assert seen == [scaled(3)] * 2
    assert said.count("is not shared: of sample ") == 1 and "batch[1] differs" in said


def test_of_two_runs_only_the_one_that_differs_leaves_the_feed(scripts: Scripts):
    seen, said = runs(scripts, ("rows", 1, 3), ("rows", 2, 3))
    assert seen == [[scaled(1)] * 3, [scaled(2)] * 3]
    assert "not shared" not in said[0] and "not compared" not in said[0] and feeds_read(said[0])
    assert "is not shared: of sample " in said[1]


def test_labels_are_compared_where_samples_are_random(scripts: Scripts):
    seen, said = runs(scripts, ("noisy", 1, 2), ("noisy", 2, 2))
    assert seen == [[scaled(1)] * 2, [scaled(2)] * 2]
    assert "not compared" not in said[0] and "was compared but for batch[2], another each time" in said[0]
    assert "batch[1] differs" in said[1]


@pytest.mark.whole
def test_what_takes_too_long_to_compare_is_shared_and_said(scripts: Scripts):
    (seen,), (said,) = runs(scripts, ("slow", 1, 1))
    assert seen == [scaled(1)]
    assert "over 2 s" in said and "not compared" in said and "is not shared" not in said


def test_a_file_that_a_script_has_opened_stays_where_it_is(scripts: Scripts):
    seen, said = runs(scripts, ("file", 1, 2), ("file", 1, 2))
    assert seen == [[scaled(1)] * 2] * 2
    assert not any("is not shared" in each or "not compared" in each for each in said)


def test_attributes_that_change_in_mid_training_unseen_by_the_name_are_compared_before_the_next_epoch(scripts):
    (seen,), (said,) = runs(scripts, ("changed", 5, 4))
    assert seen == [scaled(1)] * 2 + [scaled(5)] * 2
    assert said.count("is not shared: of sample ") == 1


@pytest.mark.whole
def test_data_that_change_unseen_in_mid_training_make_the_next_epochs_the_scripts_own(scripts: Scripts):
    (seen,), (said,) = runs(scripts, ("later", 5, 6))
    assert seen[:2] == [scaled(1)] * 2
    own = seen.index(scaled(5))
    assert own < 5 and seen[own:] == [scaled(5)] * (6 - own)
    assert seen[2:own] == [scaled(1)] * (own - 2)  # as the line says
    assert f"to {own} had not been compared" in said
