"""What is listened to of the machine, from file trees of several kinds of machines, and of a run's processes."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from penstock.linux.process import pss_bytes
from penstock.runs.listeners.contract import Tick, Tree, WatchedRun
from penstock.runs.listeners.host import DiskListener, HostListener, ProcListener
from penstock.testing.listener import ListenerContract

TICK = Tick(1e9, (), {}, 12.5)


class TestHost(ListenerContract):
    def make(self):
        return HostListener()


class TestDisk(ListenerContract):
    def make(self):
        return DiskListener()


def test_the_host_tells_cpu_time_free_memory_and_cores(tmp_path: Path):
    (tmp_path / "meminfo").write_text("MemTotal:  2000 kB\nMemFree:  300 kB\nMemAvailable:   1024 kB\n")
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    (tmp_path / "membership").write_text("0::/\n")
    host = HostListener(tmp_path / "meminfo", tmp_path, tmp_path / "membership").sample(TICK).host
    assert host.counters == {"host.cpu_s": 12.5}
    assert host.gauges == {"host.available_bytes": 1 << 20, "host.cores": 0.5, "host.cpus": os.cpu_count()}


def line(name: str, reads=10, read_ms=40, writes=4, write_ms=8, *, rest=" 0 0 0 0 7 3") -> str:
    """A line of diskstats: reads of 8 sectors and writes of 16, and 250 ms in which the disk was busy."""
    of_reads, of_writes = f"{reads} 5 {8 * reads} {read_ms}", f"{writes} 6 {16 * writes} {write_ms}"
    return f"259 0 {name} {of_reads} {of_writes} 0 250 9{rest}\n"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    for name in ("nvme0n1", "sda", "loop0", "dm-0"):
        (tmp_path / "block" / name).mkdir(parents=True)
    return tmp_path


def sampled(machine: Path, listener: DiskListener, *lines: str):
    (machine / "diskstats").write_text("".join(lines))
    return listener.sample(TICK).host


def test_a_disk_tells_requests_bytes_and_the_time_that_it_was_busy(machine: Path):
    listener = DiskListener(machine / "diskstats", machine / "block")
    host = sampled(machine, listener, line("nvme0n1"))
    told = {"reads": 10, "read_bytes": 10 * 8 * 512, "writes": 4, "write_bytes": 4 * 16 * 512}
    told |= {"busy_s": 0.25, "flushes": 7}
    assert host.counters == {f"disk.nvme0n1.{name}": value for name, value in told.items()}
    assert not host.gauges


def test_latency_is_that_of_the_requests_since_the_last_tick_and_absent_without_any(machine: Path):
    listener = DiskListener(machine / "diskstats", machine / "block")
    sampled(machine, listener, line("sda"))
    host = sampled(machine, listener, line("sda", reads=14, read_ms=50))
    assert host.gauges == {"disk.sda.read_latency_s": pytest.approx(0.0025)}
    host = sampled(machine, listener, line("sda", reads=14, read_ms=50, writes=5, write_ms=11))
    assert host.gauges == {"disk.sda.write_latency_s": pytest.approx(0.003)}


def test_parts_of_disks_loops_and_disks_that_were_never_used_are_left_out(machine: Path):
    listener = DiskListener(machine / "diskstats", machine / "block")
    lines = (line("nvme0n1"), line("nvme0n1p1"), line("loop0"), line("sda", reads=0, writes=0))
    names = {name.split(".")[1] for name in sampled(machine, listener, *lines).counters}
    assert names == {"nvme0n1"}


def test_a_kernel_that_counts_no_flushes_tells_the_rest(machine: Path):
    listener = DiskListener(machine / "diskstats", machine / "block")
    counters = sampled(machine, listener, line("dm-0", rest="")).counters
    assert len(counters) == 5
    assert "disk.dm-0.flushes" not in counters


def test_a_system_without_these_figures_says_so(tmp_path: Path):
    assert "cannot be read" in (DiskListener(tmp_path / "none").unavailable() or "")


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
