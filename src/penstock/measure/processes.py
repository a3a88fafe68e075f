"""What processes cost: CPU-seconds of one with its children, and memory (PSS), the ring's apart."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil


class Memory(NamedTuple):
    """Proportional set sizes: a page that n processes map counts 1/n in each.

    Attributes:
        ring_bytes: Of a feed's window.
        other_bytes: Of all else.
    """

    ring_bytes: int
    other_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.ring_bytes + self.other_bytes


def cpu_s(pids: Iterable[int]) -> float:
    """CPU-seconds that these processes and their children, ended ones too, have used."""
    total = 0.0
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            total += sum(process.cpu_times()[:4])
            for child in process.children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    total += sum(child.cpu_times()[:4])
    return total


def memory(pid: int, *, with_children: bool = True) -> Memory:
    """Memory of a process, and of its children."""
    ring, other = _pss(pid)
    if with_children:
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(pid).children(recursive=True):
                of_ring, of_other = _pss(child.pid)
                ring, other = ring + of_ring, other + of_other
    return Memory(ring, other)


def _pss(pid: int) -> tuple[int, int]:
    ring = other = 0
    in_ring = False
    try:
        text = Path(f"/proc/{pid}/smaps").read_text(errors="replace")
    except OSError:
        return 0, 0
    for line in text.splitlines():
        if line.startswith("Pss:"):
            nbytes = int(line.split()[1]) << 10
            if in_ring:
                ring += nbytes
            else:
                other += nbytes
        elif not line[0].isupper():  # the head of a mapping; its fields begin with a capital
            in_ring = "memfd:penstock-ring" in line
    return ring, other
