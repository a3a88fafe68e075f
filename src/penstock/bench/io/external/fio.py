"""fio, the usual yardstick: https://fio.readthedocs.io."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

from penstock.bench.io.plan import Case, Settings
from penstock.bench.io.processes import Answer, MeasurementFailed
from penstock.bench.io.target import Target
from penstock.io.advice.measurements import Measurement

_LEAST_CPU_S = 0.02
_TOO_LITTLE = "fio counts CPU time in whole milliseconds, and this took too few of them"
_JOBS = ("psync", "psync-buffered")
ENGINES = ("io_uring", "io_uring-batched", "libaio", *_JOBS)
"""fio's engines, some with a suffix that says how they are used."""


class Fio:
    """fio's engines for files.

    ``io_uring`` submits and completes by fio's defaults; ``io_uring-batched`` a
    quarter of the depth at a time, as Penstock's loop does.
    """

    name = "fio"
    programs = ("fio",)

    def refusal(self, target: Target) -> str:
        return "" if target.is_file else f"it reads files, and {target.name} is none"

    def cases(self, settings: Settings) -> Iterator[Case]:
        if "host" not in settings.dest:
            return
        for bs, qd, pattern, engine in product(settings.bs_bytes, settings.qd, settings.pattern, ENGINES):
            if engine not in _JOBS:
                yield Case(f"fio:{engine}", bs, qd, 1, pattern)
        for bs, pattern, engine, threads in product(settings.bs_bytes, settings.pattern, _JOBS, settings.threads):
            # Each job has one read under way: its threads are its depth.
            yield Case(f"fio:{engine}", bs, threads, threads, pattern)

    def command(self, program: str, case: Case, target: Target, settings: Settings) -> list[str]:
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
        return [program, *flags, *(f"--{name}={value}" for name, value in options.items())]

    def row(self, case: Case, answer: Answer, settings: Settings, *, cold: bool) -> Measurement:
        engine = case.mech.partition(":")[2]
        try:
            # fio's warnings come before its JSON.
            report = json.loads(answer.text[answer.text.index("{") :])
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
