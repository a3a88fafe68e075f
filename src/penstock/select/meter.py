"""Measures what work costs this process and its children: time, CPU time, energy where it is counted."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

import msgspec
import psutil

from penstock.errors import GpuMissing
from penstock.gpus.nvml import devices
from penstock.linux.process import CLOCK_TICK_S, start_ticks, with_descendants
from penstock.linux.process import cpu_s as cpu_s_of
from penstock.runs.listeners.energy import GpuCounter, rapl_missing, rapl_zones

J_PER_WH = 3600.0
_READ_EVERY_S = 10.0
WATTS = 15.0
"""Power of a busy core, where no counter can be read and no other power is given."""


class Cost(msgspec.Struct, frozen=True):
    """What work cost.

    Attributes:
        seconds: Time on the clock.
        cpu_s: CPU time of the process, of its children that have ended, and of the feeder that it read from.
        wh: Energy: of the processors in proportion to the CPU time, and of all GPUs in sight, whoever used them;
            None where no counter can be read.
        feeder_cpu_s: The feeder's part of the CPU time: what it used meanwhile, for all its trainers.
    """

    seconds: float
    cpu_s: float
    wh: float | None = None
    feeder_cpu_s: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.seconds + other.seconds,
            self.cpu_s + other.cpu_s,
            None if self.wh is None or other.wh is None else self.wh + other.wh,
            self.feeder_cpu_s + other.feeder_cpu_s,
        )

    def wh_at(self, watts: float) -> float:
        """Return the energy; where none was measured, CPU time times a stated power of a busy core."""
        return self.cpu_s * watts / J_PER_WH if self.wh is None else self.wh


class CostMeter:
    """Measures what the work inside ``metered()`` has cost; with ``whole``, what this process did before, too."""

    def __init__(self, *, whole: bool) -> None:
        self._process = psutil.Process()
        processors = [] if rapl_missing() else rapl_zones()
        try:
            gpus = [GpuCounter(device) for _, device in devices(os.environ)]
        except GpuMissing:
            gpus = []
        self._processors = processors
        self._gpus = [each for each in gpus if each.read_j() is not None]
        self._feeders: dict[int, float] = {}
        self._reading = threading.Lock()
        self.read()
        self._began_s, self._began_cpu_s, self._began_host_s = time.perf_counter(), _cpu_s(), _host_cpu_s()
        self._since_s = self._process.create_time() if whole else time.time()
        self._since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME) - (time.time() - self._since_s) - CLOCK_TICK_S
        self._before = Cost(time.time() - self._since_s, self._began_cpu_s if whole else 0.0)
        self._ended: Cost | None = None

    def count_feeder(self, pid: int) -> None:
        """Count what a feeder uses from now on; of one that was started meanwhile, all."""
        if pid != self._process.pid and pid not in self._feeders:
            is_new = (start_ticks(pid) or 0) * CLOCK_TICK_S >= self._since_boot_s
            self._feeders[pid] = 0.0 if is_new else cpu_s_of(with_descendants([pid]))

    def read(self) -> None:
        """Read the counters of energy."""
        with self._reading:
            for counter in (*self._processors, *self._gpus):
                counter.read_j()

    @property
    def cost(self) -> Cost:
        """What it has cost until now, or until its end."""
        if self._ended is not None:
            return self._ended
        self.read()
        feeder_s = sum(
            max(0.0, cpu_s_of(with_descendants([pid])) - before_s) for pid, before_s in self._feeders.items()
        )
        cpu_s, host_s = _cpu_s() - self._began_cpu_s + feeder_s, _host_cpu_s() - self._began_host_s
        part = min(1.0, cpu_s / host_s) if host_s > 0 else 0.0
        unseen = (self._before.cpu_s + cpu_s) / cpu_s if cpu_s else 1.0  # what came before drew as much power
        used_j = part * unseen * sum(zone.total_j for zone in self._processors)
        used_j += sum(gpu.total_j for gpu in self._gpus)
        wh = used_j / J_PER_WH if self._processors or self._gpus else None
        seconds = self._before.seconds + time.perf_counter() - self._began_s
        return Cost(seconds, self._before.cpu_s + cpu_s, wh, feeder_s)

    def end(self) -> None:
        """Count no further."""
        self._ended = self.cost


@contextmanager
def metered(*, whole: bool = False) -> Generator[CostMeter]:
    """Measure what is done inside, and, if ``whole``, what this process did before."""
    meter = CostMeter(whole=whole)
    ended = threading.Event()

    def read_on() -> None:
        """Read the counters again and again: a processor's begins anew after some minutes."""
        while not ended.wait(_READ_EVERY_S):
            meter.read()

    reader = threading.Thread(target=read_on, name="penstock-meter", daemon=True)
    reader.start()
    try:
        yield meter
    finally:
        ended.set()
        reader.join()
        meter.end()


def _cpu_s() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def _host_cpu_s() -> float:
    times = psutil.cpu_times()
    return (
        sum(times) - times.idle - times.iowait - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    )
