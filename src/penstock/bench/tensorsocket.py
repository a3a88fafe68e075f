"""TensorSocket 0.0.5 from its own environment, with a time limit: what it cannot finish is recorded."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

import penstock
from penstock.bench.cell import Cell, Watch, Window, measure
from penstock.bench.crew import Crew, Member, MemberFailed
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
    step_s = settings.window_of(workload).step_s
    window = Window(_SECONDS, 2, step_s, limit_s=settings.peer_limit_s, fixed=True)
    return measured(crew, cell, workload, window)


def measured(
    crew: Crew,
    cell: Cell,
    workload: Workload,
    window: Window,
    order: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
    watches: Callable[[Member], Sequence[Watch]] = lambda _: (),
) -> Cell:
    """Fill in a cell, with processes of its own; a note says so if TensorSocket is not here or does not finish.

    Args:
        order: What consumers do with batches on a device; see ``trainer.open_source``.
        environment: Added to their environment.
        watches: What else is measured, given the producer.
    """
    if not (PYTHON.exists() and SCRIPTS.exists()):
        return msgspec.structs.replace(cell, note=NOT_INSTALLED)
    started: list[Member] = []
    environment = {"PYTHONPATH": str(_PACKAGES), **(environment or {})}
    try:
        started += crew.start([str(PYTHON), str(SCRIPTS / "producer.py")], environment=environment)
        started += crew.start([str(PYTHON), str(SCRIPTS / "consumer.py")], cell.trainers, environment)
        for member in started:
            member.hear_of("pid", time.monotonic() + 60)
        producer, *consumers = started
        given = {"ports": _free_ports(4), **(order or {})}
        producer.tell({**given, "trainers": cell.trainers, "workload": msgspec.to_builtins(workload)})
        return measure(cell, consumers, given, window, [producer.pid], watches(producer))
    except MemberFailed as error:
        return msgspec.structs.replace(cell, note=f"failed: {error}")
    finally:
        crew.dismiss(reversed(started), kill=True)


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()
