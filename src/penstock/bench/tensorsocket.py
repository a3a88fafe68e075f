"""TensorSocket 0.0.5 from its own environment, with a time limit: what it cannot finish is recorded."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

import penstock
from penstock.bench.cell import Cell, Window, measure
from penstock.bench.crew import Crew, MemberFailed
from penstock.bench.plan import Settings
from penstock.bench.workload import Workload

_PACKAGES = Path(penstock.__file__).parents[1]
_ROOT = _PACKAGES.parent
SCRIPTS = _ROOT / "benchmarks" / "peers" / "tensorsocket"
PYTHON = _ROOT / ".venv-tensorsocket" / "bin" / "python"
NOT_INSTALLED = "not installed"
_SECONDS = 8.0  # it sends eight batches at once, and may take seconds for them


def cells(crew: Crew, workloads: Sequence[Workload], settings: Settings) -> list[Cell]:
    """One cell for each workload and number of trainers; once a number is too many, more are not tried."""
    found: list[Cell] = []
    for workload in workloads:
        failed: Cell | None = None
        for trainers in sorted(settings.trainers):
            if failed is not None:
                note = f"not tried: {failed.trainers} {failed.note}"
                found.append(Cell(workload.name, "tensorsocket", trainers, 0, finished=False, note=note))
                continue
            found.append(_cell(crew, workload, trainers, settings))
            if not found[-1].finished and found[-1].note != NOT_INSTALLED:
                failed = found[-1]
    return found


def _cell(crew: Crew, workload: Workload, trainers: int, settings: Settings) -> Cell:
    cell = Cell(workload.name, "tensorsocket", trainers, 0, finished=False)
    if not (PYTHON.exists() and SCRIPTS.exists()):
        return msgspec.structs.replace(cell, note=NOT_INSTALLED)
    ports = _free_ports(4)
    environment = {"PYTHONPATH": str(_PACKAGES)}
    producer = crew.start([str(PYTHON), str(SCRIPTS / "producer.py")], environment=environment)
    consumers = crew.start([str(PYTHON), str(SCRIPTS / "consumer.py")], trainers, environment)
    window = settings.window_of(workload)
    try:
        for member in [*producer, *consumers]:
            member.hear_of("pid", time.monotonic() + 60)
        order: dict[str, Any] = {"ports": ports}
        producer[0].tell({**order, "trainers": trainers, "workload": msgspec.to_builtins(workload)})
        limited = Window(_SECONDS, 2, window.step_s, limit_s=settings.peer_limit_s, fixed=True)
        return measure(cell, consumers, order, limited, [producer[0].pid])
    except MemberFailed as error:
        return msgspec.structs.replace(cell, note=f"failed: {error}")
    finally:
        crew.dismiss([*consumers, *producer], kill=True)


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()
