"""Groups of runs compared: the figures are those of the records, and the sentence says what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.errors import BadSetting
from penstock.runs.compare import UNRECORDED, compare
from penstock.runs.figures import measured_energy_j, memory_bytes, run_figures
from penstock.runs.record import RunPlan, RunRecord
from penstock.runs.store import Series


def run(group: str, index: int, began: float | None, seconds: float | None, **fields: Any) -> RunRecord:
    name = f"run {index}"
    plan = RunPlan(command=("true",), name=name, directory="/")
    ended = {"mode": "plain", "status": "finished", "exit_code": 0, "began": began, "seconds": seconds}
    its = {"id": f"{group}{index}", "name": name, "group": group, "group_id": group, "index": index, "plan": plan}
    return RunRecord(**its | ended | fields)


def last_of(values: dict[str, dict[str, float]]) -> Any:
    """Series of one point each."""
    return lambda run: {name: series([0.0], [value]) for name, value in values.get(run.id, {}).items()}


def series(times_s: list[float], values: list[float]) -> Series:
    return Series(np.array(times_s), np.array(values))


ALONE = [run("alone", i, 10.0 * i, 10.0, mode="alone") for i in range(4)]
TOGETHER = [run("plain", i, 100.0, 16.0) for i in range(4)]


def sentences(groups: dict[str, list[RunRecord]], values: dict[str, dict[str, float]]) -> tuple[str, ...]:
    """What is said besides how waits are recorded."""
    return tuple(each for each in compare(groups, last_of(values)).sentences if each != UNRECORDED)


def test_four_together_are_compared_with_four_one_after_the_other() -> None:
    values = {each.id: {"proc.cpu_s": 8.0 if each.mode == "alone" else 9.0} for each in (*ALONE, *TOGETHER)}
    found = compare({"plain": TOGETHER, "alone": ALONE}, last_of(values))
    alone, plain = found.groups
    assert (alone.seconds, alone.each_s, alone.cpu_s) == (40, 10, 32)
    assert (plain.seconds, plain.each_s, plain.cpu_s) == (16, 16, 36)
    assert found.sentences == (
        "4 runs of 'plain' (plain) finish 2.5 times sooner than 'alone' one after the other; each run takes 1.60 "
        "times as long, and all take 1.12 times the CPU time.",
        UNRECORDED,
    )


def test_a_runs_part_of_a_feed_counts_whoever_started_it() -> None:
    own = {"proc.cpu_s": 2.0, "run.cpu_s": 30.0, "proc.rss_bytes": 100.0}
    fed = {"feed.cpu_s": 5.0, "feed.memory_bytes": 40.0, "feed.read_bytes": 6.0, "feed.write_bytes": 0.0}
    moved = {"proc.read_bytes": 1.0, "proc.write_bytes": 1.0}
    (group,) = compare({"plain": TOGETHER}, last_of({each.id: own | fed | moved for each in TOGETHER})).groups
    assert (group.cpu_s, group.feed_cpu_s) == (28, 20), "the keeper's 30 s hold the feeder"
    assert group.memory_bytes == 560
    assert group.runs[0].moved_bytes == 8
    kept = {"run.cpu_s": 30.0, "feed.cpu_s": 5.0}
    (group,) = compare({"plain": TOGETHER}, last_of({each.id: kept for each in TOGETHER})).groups
    assert group.cpu_s == 140, "its processes were not sampled"
    (group,) = compare({"plain": TOGETHER}, last_of({each.id: own for each in TOGETHER})).groups
    assert (group.cpu_s, group.feed_cpu_s, group.memory_bytes) == (120, None, 400)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [*((seconds, "about as soon as") for seconds in (38.2, 40.0, 41.9)), (80.0, "2 times later than")],
)
def test_a_ratio_that_rounds_to_1_is_not_said_to_be_sooner_or_later(seconds: float, told: str) -> None:
    together = [run("plain", i, 100.0, seconds) for i in range(4)]
    found = sentences({"plain": together, "alone": ALONE}, {})
    assert f"finish {told} 'alone' one after the other; " in found[0]
    assert "CPU" not in found[0], "nobody sampled it"


def test_epochs_are_compared_where_they_were_recorded() -> None:
    def found(run: RunRecord) -> dict[str, Series]:
        epochs_s = [5.0, 2.0, 2.2] if run.mode == "alone" else [9.0, 3.3, 3.2]
        return {"feed.epoch_s": series([1.0, 2.0, 3.0], epochs_s), "feed.samples": series([1.0], [800.0])}

    compared = compare({"alone": ALONE, "plain": TOGETHER}, found)
    assert [(group.epoch_s, group.samples_per_s) for group in compared.groups] == [
        (pytest.approx(3.0667, rel=1e-4), 80),
        (pytest.approx(5.1667, rel=1e-4), 200),
    ]
    assert "; each epoch takes 1.68 times as long on average." in compared.sentences[0]
    assert [group.batches_per_s for group in compared.groups] == [None, None], "nobody recorded them"


TRAINED = {
    "nothing is known to train": ({"feed.main.epoch_s": [3.0, 5.0], "feed.main.samples": [96]}, (4, 96)),
    "an optimizer stepped": ({"feed.epoch_s": [2.0], "feed.train.samples": [64]}, (2, 64)),
    "a test in a process of its own": (
        {
            "feed.epoch_s": [2.0],
            "feed.train.samples": [64],
            "feed.train.batches": [2],
            "feed.main.epoch_s": [9.0],
            "feed.main.samples": [900],
            "feed.main.batches": [900],
        },
        (2, 64),
    ),
    "it was killed before its first step": ({"feed.train.samples": [0], "feed.train.batches": [0]}, (None, 0)),
    "nobody can count what it trained on": ({"feed.epoch_s": [2.0], "feed.train.batches": [2]}, (2, None)),
}


@pytest.mark.parametrize("what", TRAINED)
def test_an_epoch_and_its_samples_are_those_of_a_training(what: str) -> None:
    values, (epoch_s, samples) = TRAINED[what]
    begin = "main" if "nothing" in what else "train"
    more = {"feed.batches": [800], f"feed.{begin}.batches": [2]} | values
    found = run_figures(ALONE[0], {name: series([0.0] * len(each), each) for name, each in more.items()})
    assert (found.epoch_s, found.samples) == (epoch_s, samples)


def test_a_run_that_first_waits_for_its_feed_is_not_said_to_take_half_of_the_time() -> None:
    def found(run: RunRecord) -> dict[str, Series]:
        epochs_s = [2.0, 2.0, 2.0] if run.mode == "alone" else [10.6, 1.0, 1.0]
        return {"feed.epoch_s": series([1.0, 2.0, 3.0], epochs_s)}

    compared = compare({"alone": ALONE[:1], "plain": TOGETHER}, found)
    assert "each epoch takes 2.10 times as long on average" in compared.sentences[0]


def test_the_cpus_that_other_programs_keep_busy_are_not_its_own() -> None:
    def found(run: RunRecord) -> dict[str, Series]:
        cpu = series([0.0, 10.0], [0.0, 2.1]), series([0.0, 10.0], [0.0, 39.0])
        host = {"host.cpu_s": cpu[1], "host.cpus": series([0.0], [4.0]), "host.cores": series([0.0], [4.0])}
        return {"feed.wait_s": series([9.0], [6.0]), "proc.cpu_s": cpu[0], **host}

    for mode, used in (("alone", 5), ("plain", 21)):
        runs = [run("one", i, 10.0, 10.0, mode=mode) for i in range(4)]
        (group,) = compare({"one": runs}, found).groups
        assert f"(98%; it and the runs beside it use {used}%)" in group.advice["one0"].text


def test_a_figure_that_one_run_lacks_is_absent_of_its_group() -> None:
    values = {each.id: {"feed.samples": 8.0, "energy.estimated_j": 2.0} for each in TOGETHER[1:]}
    (group,) = compare({"plain": TOGETHER}, last_of(values)).groups
    assert (group.samples_per_s, group.energy_estimated_j, group.epoch_s, group.cpus_busy) == (None,) * 4


def test_energy_that_several_runs_saw_counts_once() -> None:
    first = {"energy.package0_j": series([0.0, 10.0], [0.0, 100.0]), "energy.estimated_j": series([0.0], [9.0])}
    second = {"energy.package0_j": series([5.0, 15.0], [0.0, 90.0]), "energy.GPU-1_j": series([5.0, 6.0], [0, 7])}
    third = {"energy.package0_j": series([20.0, 30.0], [0.0, 50.0])}
    assert measured_energy_j([third, second, first]) == {"package0": 100 + 45 + 50, "GPU-1": 7}


def test_memory_is_what_runs_held_at_one_moment() -> None:
    rss = series([0.0, 5.0, 10.0], [10.0, 20.0, 14.0])
    first = {"proc.pss_bytes": series([0.0, 10.0], [5.0, 7.0]), "proc.rss_bytes": rss}
    beside = {"proc.rss_bytes": series([5.0, 15.0], [20.0, 30.0])}
    after = {"proc.rss_bytes": series([20.0, 30.0], [8.0, 9.0])}
    assert memory_bytes([first, beside]) == 7 + 25
    assert memory_bytes([first, after]) == memory_bytes([first]) == 10, "half is shared, also between two readings"
    assert memory_bytes([{"proc.rss_bytes": rss}]) == 20
    assert memory_bytes([first, {}]) is None


def test_what_to_change_is_said_once_for_all_runs_of_a_rule_and_names_the_worst() -> None:
    values = {each.id: {"feed.wait_s": 1.6 * (1 + each.index), "host.cores": 2.0} for each in TOGETHER}
    for each in TOGETHER:
        values[each.id]["proc.cpu_s"] = 7.9
    found = compare({"plain": TOGETHER}, last_of(values))
    assert [each.parts.waiting for each in found.groups[0].runs] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert found.groups[0].cpus_busy == pytest.approx(0.9875)
    (sentence,) = found.sentences
    assert sentence.startswith("In 'plain' (plain), run 'run 3' waits 40% of its time for data while the CPUs are")
    assert sentence.endswith("(4 of its runs do, this one the most).")


def test_the_worst_run_of_a_rule_is_that_of_the_part_of_time_that_the_rule_is_about() -> None:
    loops = {"plain0": (3.0, 0.2), "plain1": (5.0, 0.5)}  # loops, waits: the second started sooner
    values = {
        id: {"feed.loop_s": series([116.0], [loop]), "feed.wait_s": series([116.0], [wait])}
        for id, (loop, wait) in loops.items()
    }
    (sentence,) = compare({"plain": TOGETHER[:2]}, lambda run: values[run.id]).sentences
    assert sentence.startswith("In 'plain' (plain), run 'run 0' spends 81% of its time before its first batch")


def test_groups_with_other_numbers_of_runs_compare_by_the_run() -> None:
    (sentence,) = sentences({"alone": ALONE[:1], "plain": TOGETHER}, {})
    assert sentence == (
        "'plain' (plain) has 4 runs and 'alone' (alone) 1, so only single runs compare: each run takes 1.60 times "
        "as long."
    )


def test_a_failed_run_is_no_measurement() -> None:
    failed = [*TOGETHER[:3], run("plain", 3, 100.0, 1.0, status="failed", exit_code=1)]
    (sentence,) = sentences({"alone": ALONE, "plain": failed}, {})
    assert sentence == "'alone' (alone) and 'plain' (plain) cannot be compared: 1 of their runs did not finish."


@pytest.mark.parametrize("status", ["waiting", "running"])
def test_runs_that_have_not_ended_are_not_compared(status: str) -> None:
    began = None if status == "waiting" else 1.0
    with pytest.raises(BadSetting, match=f"run plain0 .* is {status}: compare groups whose runs"):
        compare({"plain": [run("plain", 0, began, began, status=status, exit_code=None)]}, last_of({}))
