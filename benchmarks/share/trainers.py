"""The measured feeders and trainers: processes of their own, which find this package beside Penstock."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec
from benchmarks.share.feeding import Feeding

from penstock.measure.pool import START_S, Member, ProcessPool

_PATHS = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))
FINDS_BENCHMARKS = {"PYTHONPATH": os.pathsep.join(filter(None, _PATHS))}


def start_trainers(pool: ProcessPool, count: int) -> list[Member]:
    members = pool.start([sys.executable, "-P", "-m", "benchmarks.share.trainer"], count, FINDS_BENCHMARKS)
    for member in members:
        member.hear_of("pid", time.monotonic() + START_S)
    return members


def start_feeder(pool: ProcessPool, feeding: Feeding) -> Member:
    (member,) = pool.start([sys.executable, "-P", "-m", "benchmarks.share.feeding"], 1, FINDS_BENCHMARKS)
    member.tell(msgspec.to_builtins(feeding))
    member.hear_of("ready", time.monotonic() + START_S)
    return member


class TrainerPool:
    """Trainers that take part in one case after another: starting them anew each time would take hours."""

    def __init__(self, crew: ProcessPool) -> None:
        self._crew = crew
        self._members: dict[str, list[Member]] = {}

    def members(self, kind: str, count: int) -> list[Member]:
        members = self._members.setdefault(kind, [])
        if len(members) < count:
            members.extend(start_trainers(self._crew, count - len(members)))
        return members[:count]

    def dismiss(self, *, kill: bool = False) -> None:
        for members in self._members.values():
            self._crew.dismiss(members, kill=kill)
        self._members.clear()
