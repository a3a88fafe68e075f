"""What is listened to of a run's processes; PSS only as often as its part of a core allows."""

from __future__ import annotations

import os

import psutil
import pytest

from penstock.linux.process import pss_bytes
from penstock.runs.listeners.contract import Tick, Tree, WatchedRun
from penstock.runs.listeners.host import ProcListener
from penstock.testing.listener import ListenerContract

MINE = (os.getpid(),)


class TestProc(ListenerContract):
    def make(self):
        return ProcListener()


class Clock:
    """CPU time of which each reading of PSS takes 30 ms: what lies between two of its readings."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.01
        return self.now_s


def tick(time_s: float, *ids: str, pids: tuple[int, ...] = MINE) -> Tick:
    runs = tuple(WatchedRun(id, index, (1, 1), 1) for index, id in enumerate(ids))
    return Tick(time_s, runs, {id: Tree(pids, 1.5, 10, 20, 30, 4) for id in ids}, 1.0)


def test_what_a_tree_uses_is_told_of_its_run():
    values = ProcListener().sample(tick(1e9, "a", pids=())).runs["a"]
    assert values.counters == {"proc.cpu_s": 1.5, "proc.read_bytes": 10, "proc.write_bytes": 20}
    assert values.gauges == {"proc.rss_bytes": 30, "proc.threads": 4, "proc.processes": 0}


def test_pss_is_what_the_kernel_says():
    assert pss_bytes(os.getpid()) == pytest.approx(psutil.Process().memory_full_info().pss, rel=0.05)
    assert pss_bytes(2**22 + 1) == 0


def test_pss_is_read_for_one_run_after_another_as_often_as_its_part_of_a_core_allows():
    clock = Clock()
    listener = ProcListener(0.003, clock)
    read: list[str] = []
    for second in range(60):
        runs = listener.sample(tick(1e9 + second, "a", "b")).runs
        read += [id for id, values in runs.items() if "proc.pss_bytes" in values.gauges]
    assert read == ["a", "b"] * (len(read) // 2) + ["a"] * (len(read) % 2)
    assert 3 <= len(read) <= 60
    assert clock.now_s <= 0.003 * 60 * 2  # the last reading is paid for after the 60 s


def test_how_often_pss_is_read_is_told_from_the_second_time_on():
    listener = ProcListener(1.0)
    first, second = (listener.sample(tick(1e9 + second, "a")).runs["a"].gauges for second in (0, 2))
    assert "proc.pss_per_s" not in first
    assert second["proc.pss_per_s"] == 0.5


def test_so_many_processes_that_a_tick_is_too_short_are_read_in_several():
    listener = ProcListener(1.0, Clock())
    found = [
        listener.sample(tick(1e9 + second, "a", pids=MINE * 10)).runs["a"].gauges.get("proc.pss_bytes")
        for second in range(6)
    ]
    whole = next(value for value in found if value)
    assert found[0] is None
    assert whole == pytest.approx(10 * pss_bytes(os.getpid()), rel=0.1)
