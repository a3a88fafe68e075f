"""Tells whether a process that was noted in the store, by whoever and whenever, still lives."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import msgspec


class Place(msgspec.Struct, frozen=True):
    """Where process numbers mean something: one boot of a machine, and one namespace of processes in it."""

    machine: str
    boot: str
    namespace: str


class Noted(msgspec.Struct, frozen=True):
    """A process as it is noted down: its number, when it started in clock ticks since boot, and where."""

    pid: int
    started_ticks: int
    place: Place

    def lives(self) -> bool:
        """Return whether it lives, as far as can be told from here."""
        here = this_place()
        if self.place.boot != here.boot:
            return self.place.machine != here.machine  # another machine's: who knows
        return self.place.namespace != here.namespace or start_ticks(self.pid) == self.started_ticks


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it does not live."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name, in parentheses, may hold anything.
            state, *fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in b"ZX" else int(fields[18])


@cache
def this_place() -> Place:
    """Return where this process runs."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return Place(os.uname().nodename, boot, os.readlink("/proc/self/ns/pid"))


def this_process() -> Noted:
    """Note this process down."""
    started_ticks = start_ticks(os.getpid())
    assert started_ticks is not None
    return Noted(os.getpid(), started_ticks, this_place())
