"""Tells whether a process that was noted in the store, by whoever and whenever, still lives."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import msgspec

from penstock.linux.process import start_ticks


class Noted(msgspec.Struct, frozen=True):
    """A process as it is noted down: its number, when it started in clock ticks since boot, and where that counts.

    A machine, one boot of it, and a namespace of processes make that place.
    """

    pid: int
    started_ticks: int
    place: tuple[str, str, str]

    def lives(self) -> bool:
        """Return whether it lives, as far as can be told from here."""
        (machine, boot, namespace), here = self.place, this_place()
        if boot != here[1]:
            return machine != here[0]  # another machine's: who knows
        return namespace != here[2] or start_ticks(self.pid) == self.started_ticks


@cache
def this_place() -> tuple[str, str, str]:
    """Return where this process runs: machine, boot, namespace of processes."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return os.uname().nodename, boot, os.readlink("/proc/self/ns/pid")


def this_process() -> Noted:
    """Note this process down."""
    started_ticks = start_ticks(os.getpid())
    assert started_ticks is not None
    return Noted(os.getpid(), started_ticks, this_place())
