"""Groups of runs compared: the figures are those of the records, and the sentence says what they say."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import BadSetting
from penstock.runs.compare import compare
from penstock.runs.plan import RunPlan
from penstock.runs.record import RunRecord


def run(group: str, index: int, began: float | None, seconds: float | None, **fields: Any) -> RunRecord:
    name = f"run {index}"
    given = {"mode": "plain", "status": "finished", "exit_code": 0, **fields}
    plan = RunPlan(command=("true",), name=name, directory="/")
    return RunRecord(
        id=f"{group}{index}",
        name=name,
        group=group,
        group_id=group,
        index=index,
        began=began,
        seconds=seconds,
        plan=plan,
        **given,
    )


def last_of(values: dict[str, dict[str, float]]) -> Any:
    return lambda run, series: values.get(run.id, {}).get(series)


ALONE = [run("alone", i, 10.0 * i, 10.0, mode="alone") for i in range(4)]
TOGETHER = [run("plain", i, 100.0, 16.0) for i in range(4)]


def test_four_together_are_compared_with_four_one_after_the_other() -> None:
    cpu_s = {each.id: {"proc.cpu_s": 8.0 if each.mode == "alone" else 9.0} for each in (*ALONE, *TOGETHER)}
    found = compare({"plain": TOGETHER, "alone": ALONE}, last_of(cpu_s))
    alone, plain = found.groups
    assert (alone.seconds, alone.each_s, alone.cpu_s) == (40, 10, 32)
    assert (plain.seconds, plain.each_s, plain.cpu_s) == (16, 16, 36)
    assert found.sentences == (
        "4 runs of 'plain' (plain) finish 2.5 times sooner than one after the other; each takes 1.60 times as "
        "long, and all take 1.12 times the CPU time.",
    )


def test_who_waits_for_data_most_is_named() -> None:
    waits = {each.id: {"feed.wait_s": 1.6 * (1 + each.index)} for each in TOGETHER}
    found = compare({"plain": TOGETHER}, last_of(waits))
    assert [each.waiting for each in found.groups[0].runs] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert found.sentences == ("In 'plain' (plain), run 'run 3' waits for data 40% of its time, the most of all.",)
    little = {each.id: {"feed.wait_s": 0.1} for each in TOGETHER}
    assert compare({"plain": TOGETHER}, last_of(little)).sentences == (
        "No run of 'plain' (plain) waits for data more than 1% of its time.",
    )


def test_runs_that_take_longer_together_are_said_to_finish_later() -> None:
    slow = [run("plain", i, 0.0, 50.0) for i in range(4)]
    (sentence,) = compare({"alone": ALONE, "plain": slow}, last_of({})).sentences
    assert sentence.startswith("4 runs of 'plain' (plain) finish 1.2 times later than one after the other")
    assert "CPU" not in sentence, "nobody sampled it"


def test_groups_with_other_numbers_of_runs_compare_by_the_run() -> None:
    (sentence,) = compare({"alone": ALONE[:1], "plain": TOGETHER}, last_of({})).sentences
    assert sentence == (
        "'plain' (plain) has 4 runs and 'alone' (alone) 1, so only the times of single runs compare: 1.60 times "
        "as long."
    )


def test_a_failed_run_is_no_measurement() -> None:
    failed = [*TOGETHER[:3], run("plain", 3, 100.0, 1.0, status="failed", exit_code=1)]
    (sentence,) = compare({"alone": ALONE, "plain": failed}, last_of({})).sentences
    assert sentence == "'alone' (alone) and 'plain' (plain) cannot be compared: 1 of their runs did not finish."


@pytest.mark.parametrize("status", ["waiting", "running"])
def test_runs_that_have_not_ended_are_not_compared(status: str) -> None:
    began = None if status == "waiting" else 1.0
    with pytest.raises(BadSetting, match=f"run plain0 .* is {status}: compare groups whose runs"):
        compare({"plain": [run("plain", 0, began, began, status=status, exit_code=None)]}, last_of({}))
