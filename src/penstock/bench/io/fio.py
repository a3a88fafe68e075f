"""fio beside the mechanisms: its numbers go into one table with Penstock's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import product
from typing import Any

from penstock.bench.io.plan import Case, IoSettings
from penstock.bench.io.target import Target
from penstock.bench.measure.pool import MeasurementFailed, answer
from penstock.io.advice.measurements import Measurement

_LEAST_CPU_S = 0.02
_TOO_LITTLE = "fio counts CPU time in whole milliseconds, and this took too few of them"
_JOBS = ("psync", "psync-buffered")
ENGINES = ("io_uring", "io_uring-batched", "libaio", *_JOBS)
"""fio's engines, some with a suffix for how they are used.

``io_uring`` submits and completes by fio's defaults; ``io_uring-batched`` a
quarter of the depth at a time, as Penstock's loop does.
"""


def refusal(settings: IoSettings, target: Target) -> str:
    """Return why fio is asked for and cannot run; empty if it can, or is not asked for."""
    if "fio" not in settings.external:
        return ""
    if shutil.which("fio") is None:
        return "fio is not run: fio is not installed"
    if not target.is_file:
        return f"fio is not run: it reads files, and {target.name} is none"
    if "host" not in settings.dest:
        return f"fio is not run: it has nothing to measure for --dest {', '.join(settings.dest)}"
    return ""


def cases(settings: IoSettings) -> Iterator[Case]:
    """Yield the cases that fio can measure; their ``mech`` begins with its name and a colon."""
    for bs, qd, pattern, engine in product(settings.bs_bytes, settings.qd, settings.pattern, ENGINES):
        if engine not in _JOBS:
            yield Case(f"fio:{engine}", bs, qd, 1, pattern)
    for bs, pattern, engine, threads in product(settings.bs_bytes, settings.pattern, _JOBS, settings.threads):
        # Each job has one read under way: its threads are its depth.
        yield Case(f"fio:{engine}", bs, threads, threads, pattern)


def measured(case: Case, target: Target, settings: IoSettings, *, cold: bool) -> Measurement:
    """Run fio for one case."""
    limit_s = settings.warm_up_s + settings.runtime_s + settings.limit_s
    return row(case, answer(command(case, target, settings), limit_s=limit_s), cold=cold)


def command(case: Case, target: Target, settings: IoSettings) -> list[str]:
    """Return the command of a case, which only reads."""
    engine = case.mech.partition(":")[2]
    options = {
        "name": "penstock",
        "filename": target.path.replace("\\", "\\\\").replace(":", "\\:"),
        "size": target.nbytes,
        "rw": "randread" if case.pattern == "random" else "read",
        "bs": case.bs_bytes,
        "ioengine": engine.partition("-")[0],
        "iodepth": 1 if engine in _JOBS else case.qd,
        "numjobs": case.threads,
        "direct": int(engine != "psync-buffered"),
        "invalidate": int(settings.cold),
        "runtime": f"{round(1000 * settings.runtime_s)}ms",
        "ramp_time": f"{round(1000 * settings.warm_up_s)}ms",
        "randrepeat": 0,
        "allow_file_create": 0,
        "clat_percentiles": 0,
        "lat_percentiles": 1,
        "output-format": "json",
    }
    if engine.startswith("io_uring"):
        options |= {"fixedbufs": 1, "registerfiles": 1}
    if engine == "io_uring-batched":
        batch = max(1, case.qd // 4)
        options |= {"iodepth_batch_submit": batch, "iodepth_batch_complete_min": batch}
        options |= {"iodepth_batch_complete_max": case.qd}
    part = (target.nbytes or 0) // case.threads // case.bs_bytes * case.bs_bytes
    if engine in _JOBS and part:  # else a job could find what another has read in the cache
        options |= {"size": part, "offset_increment": part}
    flags = ["--readonly", "--group_reporting", "--time_based"]
    if settings.cold and engine == "psync-buffered":  # end when all has been read, as it would be warm then
        flags.remove("--time_based")
        options["ramp_time"] = 0
    return ["fio", *flags, *(f"--{name}={value}" for name, value in options.items())]


def row(case: Case, text: str, *, cold: bool) -> Measurement:
    """Parse fio's answer."""
    engine = case.mech.partition(":")[2]
    try:
        # fio's warnings come before its JSON.
        report = json.loads(text[text.index("{") :])
        job = report["jobs"][0]
        read: dict[str, Any] = job["read"]
        ops, elapsed_s = read["total_ios"], read["runtime"] / 1e3
        # Percent of all jobs' time together.
        cpu_s = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1e3
        percentiles = read["lat_ns"].get("percentile", {})
        version = report["fio version"].replace("-", " ")
    except (ValueError, LookupError, TypeError) as error:
        raise MeasurementFailed(f"fio's answer is not understood: {error!r}") from None
    if job.get("error"):
        raise MeasurementFailed(f"fio reports error {job['error']}")
    if not ops or not elapsed_s:
        raise MeasurementFailed("fio has read nothing")
    p50_us, p99_us, p999_us = (
        percentiles[rank] / 1e3 if rank in percentiles else None
        for rank in ("50.000000", "99.000000", "99.900000")
    )
    cache = "page cache" if engine == "psync-buffered" else "O_DIRECT"
    more = {"io_uring": ", registered memory", "io_uring-batched": ", registered memory, batches"}.get(engine)
    jobs = f", {case.threads} jobs" if engine in _JOBS else ""
    return case.measured(
        ops,
        elapsed_s,
        cpu_s,
        cold=cold,
        p50_us=p50_us,
        p99_us=p99_us,
        p999_us=p999_us,
        note=_TOO_LITTLE if cpu_s < _LEAST_CPU_S else "",
        path_taken=f"{version}, {engine.partition('-')[0]}, {cache}{more or ''}{jobs}",
    )
