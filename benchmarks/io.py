# ruff: noqa: A005
"""What reads cost: Penstock's mechanisms beside fio's, in one run, against targets set beforehand.

python -m benchmarks io PATH --json benchmarks/results/io-NAME.json --plot benchmarks/results/io-NAME.png

PATH is a large file, or a directory for a scratch file; the machine should do nothing else.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import typer
from benchmarks.claim import ResultsFile
from benchmarks.share.claims import Claim, least, most
from benchmarks.share.tables import claims_table
from rich.console import Console

from penstock.basics.results import progress
from penstock.bench.io import dropped, opened_target, run
from penstock.bench.io_plan import IoSettings, sizes
from penstock.bench.io_report import LOOKS, WIDTH, picture, table
from penstock.errors import BadSetting
from penstock.io.measurements import Measurement
from penstock.runs.machine import describe

SMALL, LARGE = 4 << 10, 1 << 20
POSIX, DIRECT = ("posix",), ("direct", "uring")
_Value = Callable[[Measurement], float]


class Target(NamedTuple):
    """A ratio between the best of two groups of mechanisms, at one block size."""

    name: str
    claim: str
    bs_bytes: int
    value: _Value
    mechs: tuple[str, ...]
    against: tuple[str, ...]
    target: float | None  # what the ratio must reach; None if it is shown for comparison only
    at_least: bool


def _iops(row: Measurement) -> float:
    return row.iops


def _cpu(row: Measurement) -> float:
    return row.cpu_us_per_op


FIO = ("fio:io_uring", "fio:io_uring-batched", "fio:libaio", "fio:psync", "fio:psync-buffered")
"""fio's engines. io_uring submits and completes by fio's defaults or, batched, a quarter of the depth at a time,
as ``penstock bench io`` does. psync has a job for each thread, with a separate part of the file."""
_FIO_LOOKS = zip(("#d1495b", "#9b2335", "#e8998d", "#c2788a", "#8a5a83"), "Xv^<>", strict=True)
TARGETS = (
    Target("uring-iops", "uring, 4 KiB: IOPS, of fio's io_uring", SMALL, _iops, ("uring",), FIO[:1], 0.95, True),
    Target("uring-cpu", "the same: CPU time per read", SMALL, _cpu, ("uring",), FIO[:1], 1.2, False),
    Target("batch-iops", "the same, fio in batches: IOPS", SMALL, _iops, ("uring",), FIO[1:2], None, True),
    Target("batch-cpu", "the same, fio in batches: CPU time", SMALL, _cpu, ("uring",), FIO[1:2], None, False),
    Target("large-iops", "direct or uring, 1 MiB: IOPS, of fio's best", LARGE, _iops, DIRECT, FIO, 0.95, True),
    Target("uring-bypass", "uring, 1 MiB: CPU time, of posix's", LARGE, _cpu, DIRECT[1:], POSIX, 0.25, False),
    Target("direct-bypass", "direct, 1 MiB: CPU time, of posix's", LARGE, _cpu, DIRECT[:1], POSIX, 0.25, False),
)


def main(
    path: Annotated[str, typer.Argument(help="A large file, or a directory for a scratch file.")],
    size: Annotated[str, typer.Option(help="Size of the scratch file.")] = "8GiB",
    qd: Annotated[int, typer.Option(help="Reads of 4 KiB under way.")] = 128,
    large_qd: Annotated[int, typer.Option(help="Reads of 1 MiB under way.")] = 32,
    threads: Annotated[int, typer.Option(help="Threads of posix and direct, and jobs of fio's psync.")] = 8,
    seconds: Annotated[float, typer.Option(help="Time counted for each case.")] = 5.0,
    repeats: Annotated[int, typer.Option(help="Measurements of each case, in turn.")] = 7,
    json_path: ResultsFile = None,
    plot: Annotated[Path | None, typer.Option(help="File for a picture (PNG).")] = None,
) -> None:
    """Measure every target several times, and say which are met."""
    if shutil.which("fio") is None:
        raise BadSetting("fio is not installed: it is the yardstick here")
    machine = describe()
    common = IoSettings(mech=(*POSIX, *DIRECT), threads=(threads,), runtime_s=seconds, cold=True)
    rows: list[Measurement] = []
    scratch_bytes = sizes("size", size)[0]
    with opened_target(path, scratch_bytes) as (read, nbytes), progress(Console()) as tell:
        if nbytes is None:
            raise BadSetting(f"{path}: fio reads files, and this is none")
        for repeat in range(repeats):
            for bs_bytes, depth in ((SMALL, qd), (LARGE, large_qd)):
                settings = msgspec.structs.replace(common, bs_bytes=(bs_bytes,), qd=(depth,))
                found = run(settings, read, tell)
                for mech in FIO:
                    tell(repeat, repeats, mech)
                    dropped(read, nbytes)
                    at_once = (1, depth) if "psync" not in mech else (threads, threads)
                    case = msgspec.structs.replace(
                        found[0], mech=mech, bs_bytes=bs_bytes, threads=at_once[0], qd=at_once[1], note=""
                    )
                    command = fio_command(case, read, nbytes, settings)
                    found.append(fio_row(case, subprocess.run(command, capture_output=True, check=True).stdout))
                rows += [msgspec.structs.replace(row, repeat=repeat) for row in found]
    claims = [_judged(target, rows, repeats) for target in TARGETS]
    Console(width=WIDTH).print(table(rows, "Random reads, cold"), claims_table(claims))
    if json_path is not None:
        plain = {
            "benchmark": "io",
            "version": 1,
            "machine": machine,
            "settings": {
                "qd": qd,
                "large_qd": large_qd,
                "threads": threads,
                "seconds": seconds,
                "repeats": repeats,
            },
            "claims": claims,
            "rows": rows,
        }
        json_path.write_bytes(msgspec.json.format(msgspec.json.encode(plain), indent=1) + b"\n")
    if plot is not None:
        picture([row for row in rows if row.iops], LOOKS | dict(zip(FIO, _FIO_LOOKS, strict=True))).savefig(plot)


def fio_command(case: Measurement, path: str, nbytes: int, settings: IoSettings) -> list[str]:
    """Return the command of a case, which only reads."""
    engine = case.mech.partition(":")[2]
    options = {
        "name": "penstock",
        "filename": path.replace("\\", "\\\\").replace(":", "\\:"),
        "size": nbytes,
        "rw": "randread",
        "bs": case.bs_bytes,
        "ioengine": engine.partition("-")[0],
        "iodepth": case.qd if case.threads == 1 else 1,
        "numjobs": case.threads,
        "direct": int(engine != "psync-buffered"),
        "invalidate": 1,
        "runtime": f"{round(1000 * settings.runtime_s)}ms",
        "ramp_time": f"{round(1000 * settings.warm_up_s)}ms",
        "randrepeat": 0,
        "allow_file_create": 0,
        "output-format": "json",
    }
    if engine.startswith("io_uring"):
        options |= {"fixedbufs": 1, "registerfiles": 1}
    if engine == "io_uring-batched":
        batch = max(1, case.qd // 4)
        options |= {"iodepth_batch_submit": batch, "iodepth_batch_complete_min": batch}
        options |= {"iodepth_batch_complete_max": case.qd}
    part = nbytes // case.threads // case.bs_bytes * case.bs_bytes
    if engine.startswith("psync"):  # else a job could find what another has read in the cache
        options |= {"size": part, "offset_increment": part}
    flags = ["--readonly", "--group_reporting"]
    if engine == "psync-buffered":  # it ends when all has been read, as it would be warm then
        options["ramp_time"] = 0
    else:
        flags.append("--time_based")
    return ["fio", *flags, *(f"--{name}={value}" for name, value in options.items())]


def fio_row(case: Measurement, answer: bytes) -> Measurement:
    """Parse fio's answer; its warnings come before its JSON."""
    report: dict[str, Any] = json.loads(answer[answer.index(b"{") :])
    job = report["jobs"][0]
    # Percent of all jobs' time together.
    cpu_s = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1e3
    row = case.measured(job["read"]["total_ios"], job["read"]["runtime"] / 1e3, cpu_s)
    return msgspec.structs.replace(row, path_taken=report["fio version"])


def _judged(target: Target, rows: list[Measurement], repeats: int) -> Claim:
    """Judge a target by the median of its ratio over the repeats."""
    best = max if target.value is _iops else min
    ratios: list[float] = []
    for repeat in range(repeats):
        mine, theirs = (
            [
                target.value(row)
                for row in rows
                if row.iops and (row.repeat, row.bs_bytes) == (repeat, target.bs_bytes) and row.mech in mechs
            ]
            for mechs in (target.mechs, target.against)
        )
        if mine and theirs:
            ratios.append(best(mine) / best(theirs))
    if target.target is None:
        compared = least(target.name, target.claim, 1.0, "", ratios)
        return msgspec.structs.replace(compared, met=None, note="for comparison")
    return (least if target.at_least else most)(target.name, target.claim, target.target, "", ratios)
