"""What is listened to of the machine, from file trees of machines of several kinds, and of this one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.runs.listeners.contract import Tick
from penstock.runs.listeners.host import DiskListener, HostListener
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


DISK = "{major} 0 {name} {reads} 5 {read_sectors} {read_ms} {writes} 6 {write_sectors} {write_ms} 0 {busy_ms} 9"


def line(name: str, reads=10, read_ms=40, writes=4, write_ms=8, *, major=259, rest=" 0 0 0 0 7 3") -> str:
    return (
        DISK.format(
            major=major,
            name=name,
            reads=reads,
            read_ms=read_ms,
            writes=writes,
            write_ms=write_ms,
            read_sectors=8 * reads,
            write_sectors=16 * writes,
            busy_ms=250,
        )
        + rest
        + "\n"
    )


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
    assert host.counters == {
        "disk.nvme0n1.reads": 10,
        "disk.nvme0n1.read_bytes": 10 * 8 * 512,
        "disk.nvme0n1.writes": 4,
        "disk.nvme0n1.write_bytes": 4 * 16 * 512,
        "disk.nvme0n1.busy_s": 0.25,
        "disk.nvme0n1.flushes": 7,
    }
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
