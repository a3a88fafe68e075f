"""The processes of measured feeders and trainers, started once."""

from __future__ import annotations

import time

import msgspec
from benchmarks.children import ENVIRONMENT, command
from benchmarks.measure.pool import START_S, MeasuredProcess, ProcessPool
from benchmarks.share.feeding import Feeding


def start_trainers(pool: ProcessPool, count: int) -> list[MeasuredProcess]:
    members = pool.start(command("benchmarks.share.trainer"), count, ENVIRONMENT)
    for member in members:
        member.hear_of("pid", time.monotonic() + START_S)
    return members


def start_feeder(
    pool: ProcessPool, feeding: Feeding, environment: dict[str, str] = ENVIRONMENT
) -> MeasuredProcess:
    (member,) = pool.start(command("benchmarks.share.feeding"), 1, environment)
    member.send(msgspec.to_builtins(feeding))
    member.hear_of("ready", time.monotonic() + START_S)
    return member


class TrainerPool:
    """Trainers that are reused from case to case: starting them anew each time would take hours."""

    def __init__(self, pool: ProcessPool) -> None:
        self._pool = pool
        self._members: dict[str, list[MeasuredProcess]] = {}

    def members(self, kind: str, count: int) -> list[MeasuredProcess]:
        members = self._members.setdefault(kind, [])
        if len(members) < count:
            members.extend(start_trainers(self._pool, count - len(members)))
        return members[:count]

    def dismiss(self, *, kill: bool = False) -> None:
        for members in self._members.values():
            self._pool.dismiss(members, kill=kill)
        self._members.clear()
