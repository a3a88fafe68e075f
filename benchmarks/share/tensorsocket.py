"""Measures TensorSocket 0.0.5 from its own environment, with a time limit; what it does not finish is recorded."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from benchmarks.children import ROOT
from benchmarks.measure.pool import ONE_THREAD, MeasuredProcess, MemberFailed, ProcessPool
from benchmarks.measure.rates import Interval, IntervalWatch
from benchmarks.share.plan import Settings
from benchmarks.share.result import Result, measure
from benchmarks.share.workload import Workload

import penstock

SCRIPTS = ROOT / "benchmarks" / "peers" / "tensorsocket"
_OWN = ROOT / ".venv-tensorsocket" / "bin" / "python"
_HERE = not _OWN.exists() and find_spec("tensorsocket") is not None  # as where there is no network
PYTHON = Path(sys.executable) if _HERE else _OWN
_PENSTOCK = Path(penstock.__file__).parents[1]
NOT_INSTALLED = "not installed"
_SECONDS = 8.0  # it sends eight batches at once, and may take seconds for them


def results(pool: ProcessPool, workloads: Sequence[Workload], settings: Settings) -> list[Result]:
    """Measure each workload and number of trainers; once a number was too many, more are not tried."""
    found: list[Result] = []
    for workload in workloads:
        failed: Result | None = None
        for trainers in sorted(settings.trainers):
            if failed is not None:
                note = f"not tried: {failed.trainers} {failed.note}"
                found.append(Result(workload.name, "tensorsocket", trainers, 0, finished=False, note=note))
                continue
            found.append(_result(pool, workload, trainers, settings))
            if not found[-1].finished and found[-1].note != NOT_INSTALLED:
                failed = found[-1]
    return found


def _result(pool: ProcessPool, workload: Workload, trainers: int, settings: Settings) -> Result:
    result = Result(workload.name, "tensorsocket", trainers, 0, finished=False)
    step_s = settings.interval_of(workload).step_s
    interval = Interval(_SECONDS, 2, step_s, limit_s=settings.peer_limit_s, fixed=True)
    return measured(pool, result, workload, interval)


def measured(
    pool: ProcessPool,
    result: Result,
    workload: Workload,
    interval: Interval,
    order: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
    watches: Callable[[MeasuredProcess], Sequence[IntervalWatch]] = lambda _: (),
) -> Result:
    """Fill in a result, with new processes; a note says if TensorSocket is not installed or does not finish."""
    if not (PYTHON.exists() and SCRIPTS.exists()):
        return msgspec.structs.replace(result, note=NOT_INSTALLED)
    started: list[MeasuredProcess] = []
    paths = [str(ROOT), str(_PENSTOCK), os.environ.get("PYTHONPATH", "") if _HERE else ""]
    environment = {**ONE_THREAD, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **(environment or {})}
    try:
        started += pool.start([str(PYTHON), str(SCRIPTS / "producer.py")], environment=environment)
        started += pool.start([str(PYTHON), str(SCRIPTS / "consumer.py")], result.trainers, environment)
        for member in started:
            member.hear_of("pid", time.monotonic() + 60)
        producer, *consumers = started
        given = {"ports": _free_ports(4), **(order or {})}
        producer.send({**given, "trainers": result.trainers, "workload": msgspec.to_builtins(workload)})
        return measure(result, consumers, given, interval, [producer.pid], watches(producer))
    except MemberFailed as error:
        return msgspec.structs.replace(result, note=f"failed: {error}")
    finally:
        pool.dismiss(reversed(started), kill=True)


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()
