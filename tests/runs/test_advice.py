"""Where a run's time goes, and what to change first: each rule, with the numbers that it is given."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.runs.compare import Cpus, advise
from penstock.runs.figures import RunFigures, parts_of, run_figures
from penstock.runs.record import RunPlan, RunRecord
from penstock.runs.store import Series

RECORD = RunRecord(
    id="a",
    name="run 0",
    group="g",
    group_id="g",
    mode="plain",
    index=0,
    status="finished",
    began=0.0,
    seconds=100.0,
    plan=RunPlan(command=("python", "train.py", "--lr", "1"), name="run 0", directory="/"),
)


def figures(parts: tuple[float | None, ...] = (None, None, None), **fields: Any) -> RunFigures:
    found = run_figures(RECORD, {})
    return msgspec.structs.replace(found, parts=parts_of(100.0, *parts), **fields)


def four(**fields: Any) -> list[RunFigures]:
    fields = [{"id": f"r{i}", "index": i, "name": f"run {i}", **fields} for i in range(4)]
    return [figures((41.0, None, 95.0), **each) for each in fields]


SHARE = (
    "all 4 run train.py; if they read the same data, feed them from one loader (penstock.share), which decodes it "
    "once instead of 4 times"
)


@pytest.mark.parametrize(
    ("run", "cpus_busy", "together", "kind", "said"),
    [
        (four()[0], 0.97, four(), "share", f"waits 41% of its time for data while the CPUs are busy 97%: {SHARE}"),
        (four()[0], 0.97, [*four()[:3], four(id="x", script="other.py")[3]], "share", "those of the 4 that read"),
        (four()[0], 0.97, four()[:1], "pack", "busy 97%: do the decoding once and for all with penstock pack"),
        (four(on_feed=True)[0], 0.97, four(on_feed=True), "pack", "penstock pack"),
        (four()[0], 0.4, four(), "workers", "while the CPUs are busy 40%: give its loader more num_workers"),
        (four(on_feed=True)[0], 0.4, four(on_feed=True), "workers", "give the feed's loader more num_workers"),
        (four(disk="sda", disk_busy=0.99)[0], 0.4, four(), "storage", "while disk sda is busy 99%: penstock pack"),
        (four(disk="sda", disk_busy=0.2)[0], 0.4, four(), "workers", "num_workers"),
        (four()[0], None, four(), "unknown", "--listeners proc,host,disk"),
        (four(held_up_by=2)[0], 0.4, four(), "slowest", "because its feed waits for run 'run 2'"),
        (figures((2.0, None, 97.0)), 0.9, [], "none", "computes 95% of its time and waits 2% for data: data"),
        (figures((2.0, None, None)), 0.9, [], "none", "waits 2% for data: data is not"),
        (figures((2.0, 30.0, 97.0)), 0.9, [], "copy", "spends 30% of its time copying to the GPU: load with"),
        (figures((2.0, None, 40.0, 55.0)), 0.9, [], "start", "first batch: imports and set-up; it waits 2%"),
        (figures((2.0, None, 40.0)), 0.9, [], "other", "loops over data: evaluation or saving; it waits 2% for"),
    ],
)
def test_each_rule_says_its_numbers_and_a_remedy(run, cpus_busy, together, kind, said):
    advice = advise(run, Cpus(cpus_busy, cpus_busy), together or [run])
    assert advice
    assert advice.kind == kind
    assert said in advice.text


SDA = {"disk": "sda", "disk_busy": 0.99, "disk_bytes": 4e9}


@pytest.mark.parametrize(
    ("fields", "used", "kind", "said"),
    [
        ({}, 0.03, "others", "other programs occupy the CPUs (97%; it and the runs beside it use 3%): end"),
        (
            {"delayed": 0.3},
            0.03,
            "others",
            "other programs occupy the CPUs (97%; it and the runs beside it use 3%)",
        ),
        (
            {"delayed": 0.02},
            0.03,
            "workers",
            "by other programs, but its processes find a free one 98% of",
        ),
        ({}, 0.6, "share", "while the CPUs are busy 97%: all 4 run train.py"),
        ({}, None, "share", "while the CPUs are busy 97%: all 4 run train.py"),
        ({**SDA, "moved_bytes": 1e7}, 0.6, "others", "occupy disk sda (99%; it and the runs beside it moved 1%"),
        ({**SDA, "moved_bytes": 9e8}, 0.6, "storage", "disk sda is busy"),
        ({**SDA, "moved_bytes": None}, 0.6, "storage", "is busy 99%"),
    ],
)
def test_what_other_programs_keep_busy_is_not_taken_for_the_run_s_doing(fields, used, kind, said):
    runs = four(**fields)
    advice = advise(runs[0], Cpus(0.97, used), runs)
    assert advice and advice.kind == kind
    assert said in advice.text


def test_nothing_is_advised_where_nobody_recorded_waits() -> None:
    assert advise(figures((None, None, None)), Cpus(0.9, 0.9), four()) is None


seconds = st.none() | st.floats(0, 1000)


@given(st.floats(0, 1000), seconds, seconds, seconds, seconds)
def test_parts_are_between_none_and_all_and_absent_where_unknown(whole_s, waited_s, copied_s, loop_s, start_s):
    start_s = None if start_s is None or loop_s is None else min(start_s, max(0.0, whole_s - loop_s))
    parts = parts_of(whole_s, waited_s, copied_s, loop_s, start_s)
    known = [part for part in msgspec.structs.astuple(parts) if part is not None]
    assert all(0 <= part <= 1 for part in known)
    assert (parts.waiting is None) == (waited_s is None or whole_s == 0)
    assert (parts.other is None) == (loop_s is None or whole_s == 0)
    inside_s = (waited_s or 0) + (copied_s or 0)
    if None not in (waited_s, loop_s) and inside_s <= (loop_s or 0) <= whole_s and whole_s:
        assert sum(known) == pytest.approx(1)


def series(values: list[float]) -> Series:
    return Series(np.arange(len(values), dtype=float), np.array(values))


def test_the_machine_is_as_busy_as_its_counters_say() -> None:
    host = {"host.cpu_s": series([100.0, 101.9, 103.8]), "host.cpus": series([2.0, 2.0, 2.0])}
    disks = {"disk.sda.busy_s": series([0.0, 0.1, 0.2]), "disk.nvme0n1.busy_s": series([0.0, 0.9, 1.8])}
    found = run_figures(RECORD, host | disks)
    assert found.machine_busy == pytest.approx(0.95)
    assert (found.disk, found.disk_busy) == ("nvme0n1", pytest.approx(0.9))


@pytest.mark.parametrize(
    ("holders", "found"),
    [([1, 1, 1], 1), ([1, 1], None), ([0, 0, 0, 0], None), ([-1, -1, -1], None), ([1, 2, 3], None)],
)
def test_who_holds_a_feed_up_most_of_the_time_is_found(holders: list[float], found: int | None) -> None:
    run = run_figures(RECORD, {"feed.lag_samples": series([5.0] * 4), "feed.held_back_by": series(holders)})
    assert run.held_up_by == found
    assert run.on_feed
