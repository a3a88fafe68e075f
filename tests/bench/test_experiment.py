"""An experiment runs its arms in turn, goes on where it ended, and compares within a repeat."""

from __future__ import annotations

import msgspec
import pytest

from penstock.basics.results import Spread, as_json
from penstock.bench.experiment import ArmFailed, Report
from penstock.runs.machine import describe


def new_report() -> Report[str, float]:
    return Report[str, float](benchmark="test", machine=describe(), settings="")


def measured(report: Report[str, float], repeats: int = 2) -> list[str]:
    """What ran, in order; arm ``c`` fails in its second repeat."""
    ran: list[str] = []

    def run(arm: str, repeat: int) -> float:
        ran.append(f"{arm}{repeat}")
        if (arm, repeat) == ("c", 1):
            raise ArmFailed("no c here")
        return {"a": 1.0, "b": 2.0, "c": 3.0}[arm] * (repeat + 1)

    arms = {arm: lambda repeat, arm=arm: run(arm, repeat) for arm in "abc"}
    report.measure(arms, range(repeats), lambda done, in_all, what: None)
    return ran


def test_arms_run_forth_and_back_and_one_that_fails_is_left_out_of_all() -> None:
    report = new_report()
    assert measured(report, 3) == ["a0", "b0", "c0", "c1", "b1", "a1", "a2", "b2"]
    assert report.arms == ["a", "b"]
    assert report.absent == {"c": "no c here"}


def test_what_has_results_is_not_measured_again_also_when_it_comes_from_a_file() -> None:
    report = new_report()
    measured(report, 1)
    report = msgspec.json.decode(as_json(report), type=Report[str, float])
    assert measured(report) == ["c1", "b1", "a1"]
    report.add("a", 1, 99.0)
    assert report.of("a") == {0: 1.0, 1: 2.0}


def test_ratios_are_taken_within_a_repeat_that_both_have() -> None:
    report = new_report()
    for arm, repeat, value in (("a", 0, 1.0), ("b", 1, 8.0), ("b", 0, 3.0), ("a", 1, 2.0), ("a", 2, 5.0)):
        report.add(arm, repeat, value)
    assert report.ratio("b", "a", lambda value: value) == Spread(3.5, 3.0, 4.0)
    assert report.spread("a", lambda value: value) == Spread(2.0, 1.0, 5.0)


def test_an_error_of_another_kind_ends_the_experiment_and_leaves_what_is_done() -> None:
    report, saved = new_report(), list[int]()

    def fails(repeat: int) -> float:
        raise ValueError

    arms = {"a": lambda repeat: 1.0, "b": fails}
    with pytest.raises(ValueError):
        report.measure(arms, [0], lambda *_: None, lambda: saved.append(len(report.results)))
    assert saved == [1]
    assert report.arms == ["a"]
