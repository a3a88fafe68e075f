"""Measures what processes and their descendants cost: CPU time and memory."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import psutil

from penstock.linux import process as linux


def with_descendants(pids: Iterable[int]) -> list[psutil.Process]:
    """List those of these processes that live, and all their descendants."""
    found: list[psutil.Process] = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            found += [process, *process.children(recursive=True)]
    return found


def cpu_s(processes: Iterable[psutil.Process]) -> float:
    """Return the CPU time of processes until now, with that of their children that have ended."""
    total_s = 0.0
    for process in processes:
        with suppress(psutil.Error):
            times = process.cpu_times()
            total_s += times.user + times.system + times.children_user + times.children_system
    return total_s


def pss_bytes(process: psutil.Process) -> int:
    """Return the memory of a process, where a page that n processes map counts 1/n; 0 if it has ended."""
    return linux.pss_bytes(process.pid)


def window_pss_bytes(process: psutil.Process) -> int:
    """Return the part of ``pss_bytes`` that lies in feeds' windows."""
    with suppress(psutil.Error):
        return sum(each.pss for each in process.memory_maps() if "memfd:penstock-ring" in each.path)
    return 0
