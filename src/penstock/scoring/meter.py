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
from penstock.measure.gpus import devices
from penstock.runs.listeners.energy import GpuCounter, rapl_missing, rapl_zones

J_PER_WH = 3600.0
_READ_EVERY_S = 10.0
WATTS = 15.0
"""Power of a busy core, where no counter can be read and nobody says another."""


class Cost(msgspec.Struct, frozen=True):
    """What work cost.

    Attributes:
        seconds: Time on the clock.
        cpu_s: CPU time of the process and of its children that have ended.
        wh: Energy: of the processors in proportion to the CPU time, and of all GPUs in sight, whoever used them;
            None where no counter can be read.
    """

    seconds: float
    cpu_s: float
    wh: float | None = None

    def wh_at(self, watts: float) -> float:
        """Return the energy; where none was measured, CPU time times a stated power of a busy core."""
        return self.cpu_s * watts / J_PER_WH if self.wh is None else self.wh


class Meter:
    """Holds what the work inside ``metered()`` has cost; ``cost`` is set at its end."""

    cost: Cost


@contextmanager
def metered() -> Generator[Meter]:
    """Measure what is done inside."""
    meter = Meter()
    processors = [] if rapl_missing() else rapl_zones()
    try:
        gpus = [GpuCounter(device) for _, device in devices(os.environ)]
    except GpuMissing:
        gpus = []
    counters = [each for each in (*processors, *gpus) if each.read_j() is not None]
    ended = threading.Event()

    def read_on() -> None:
        """A processor's counter begins anew after some minutes: it is read often enough to see each time."""
        while not ended.wait(_READ_EVERY_S):
            for counter in counters:
                counter.read_j()

    reader = threading.Thread(target=read_on, name="penstock-meter", daemon=True)
    reader.start()
    began_s, began_cpu_s, began_host_s = time.perf_counter(), _cpu_s(), _host_cpu_s()
    try:
        yield meter
    finally:
        ended.set()
        reader.join()
    cpu_s, host_s = _cpu_s() - began_cpu_s, _host_cpu_s() - began_host_s
    part = min(1.0, cpu_s / host_s) if host_s > 0 else 0.0
    for counter in counters:
        counter.read_j()
    used_j = part * sum(zone.total_j for zone in processors) + sum(gpu.total_j for gpu in gpus)
    meter.cost = Cost(time.perf_counter() - began_s, cpu_s, used_j / J_PER_WH if counters else None)


def _cpu_s() -> float:
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, whose))


def _host_cpu_s() -> float:
    times = psutil.cpu_times()
    return (
        sum(times) - times.idle - times.iowait - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    )
