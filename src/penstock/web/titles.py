"""What series are called on the page, in which unit they are drawn, and in which order."""

from __future__ import annotations

import re
from typing import NamedTuple

from penstock.runs.listeners import is_measured
from penstock.web.charts import unit_of

_LOGGED = 0
FOLDED = _REST = 9
"""From this place on, a run's page folds charts away."""
AXES = ("step", "epoch")
"""What scripts log to say where they are: charts are drawn over it."""
_PARTS = {
    "feed.wait_s": (1, "Waits for data"),
    "feed.train.samples": (2, "Samples trained on"),
    "feed.train.batches": (2, "Batches trained on"),
    "feed.samples": (2, "Samples of all loops"),
    "feed.batches": (2, "Batches of all loops"),
    "feed.epoch_s": (2, "Time of an epoch"),
    "feed.main.epoch_s": (2, "Time of an epoch of the main loader"),
    "proc.cpu_s": (3, "CPU of its processes"),
    "run.cpu_s": (_REST, "CPU time in all"),
    "host.cpu_s": (3, "CPU of the machine"),
    "proc.rss_bytes": (4, "Memory of its processes"),
    "proc.pss_bytes": (4, "Memory of its processes, shared pages divided"),
    "host.available_bytes": (4, "Free memory of the machine"),
    "gpu.memory_bytes": (5, "GPU memory of its processes"),
    "proc.read_bytes": (6, "Reads from storage"),
    "proc.write_bytes": (6, "Writes to storage"),
    "feed.loop_s": (_REST, "In loops over loaders"),
    "feed.copy_s": (_REST, "Copies of batches"),
    "feed.held_back_s": (_REST, "Held back by a slower trainer"),
    "feed.lag_samples": (_REST, "Samples behind the feed"),
    "proc.processes": (_REST, "Processes"),
    "proc.threads": (_REST, "Threads"),
    "energy.estimated_j": (_REST, "Energy, estimated"),
}
"""Place among a run's charts and title, by name; the unit is the series' own."""
_OF_GPU = re.compile(r"(?:gpu|gpm|dcgm)\.(\d+)\.(?:mig(\d+)\.)?(\w+)")
_GPU_PARTS = {
    "utilisation_percent": (5, "busy"),
    "sm_active_percent": (5, "multiprocessors active"),
    "memory_bytes": (5, "memory"),
    "power_w": (5, "power"),
    "sm_occupancy_percent": (_REST, "occupancy of multiprocessors"),
    "tensor_percent": (_REST, "tensor cores"),
    "dram_percent": (_REST, "memory bandwidth"),
    "temperature_c": (_REST, "temperature"),
    "sm_mhz": (_REST, "clock"),
    "memory_mhz": (_REST, "memory clock"),
}
_DISK = re.compile(r"disk\.(.+)\.(read_bytes|write_bytes|busy_s)")
_DISK_PARTS = {"read_bytes": "reads", "write_bytes": "writes", "busy_s": "busy"}


class Title(NamedTuple):
    """How a series is shown."""

    text: str  # what people call it
    unit: str  # unit of its axis; empty if nobody knows
    place: int  # where it stands among a run's charts: what the script logs first, from 9 on folded away


def title_of(name: str) -> Title:
    """Return how a series is shown."""
    unit = unit_of(name)
    if not is_measured(name):
        return Title(name, unit, _REST if name in AXES else _LOGGED)
    if known := _PARTS.get(name):
        return Title(known[1], unit, known[0])
    if (gpu := _OF_GPU.fullmatch(name)) and (part := _GPU_PARTS.get(gpu[3])):
        mig = f", MIG {gpu[2]}" if gpu[2] else ""
        return Title(f"GPU {gpu[1]}{mig}: {part[1]}", unit, part[0])
    if disk := _DISK.fullmatch(name):
        return Title(f"Disk {disk[1]}: {_DISK_PARTS[disk[2]]}", unit, _REST)
    return Title(name, unit, _REST)
