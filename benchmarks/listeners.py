"""Measures what listening costs, and how right the CPU time of a run is.

python -m benchmarks.listeners --json benchmarks/results/listeners-NAME.json
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import msgspec
import psutil
import typer
from rich.console import Console
from rich.progress import track
from tests.runs.listeners.kept import DOUBLE_FORKS, NEW_WORKERS, SHORT_CHILDREN, Kept

from penstock.runs.listeners.contract import listener_names, make_listener
from penstock.runs.machine import describe
from penstock.runs.record import GroupPlan, RunPlan
from penstock.runs.sampler import WRITER, Begin, End
from penstock.runs.store import Store, points_file

MOST_CPU_PERCENT = 1.0
MOST_SLOWER = 1.015
MOST_ERROR = 0.02
WORKERS = 2
LISTENERS = tuple(name for name in listener_names() if make_listener(name).unavailable() is None)

RUN = """
memory = bytearray({nbytes})
memory[::4096] = bytes([1]) * len(memory[::4096])
for _ in range({workers}):
    if os.fork() == 0:
        while True:
            time.sleep(60)
print("ready", flush=True)
for line in sys.stdin:
    began = time.monotonic()
    for _ in range(int(line)):
        sum(range(10000))
    print(time.monotonic() - began, flush=True)
"""
KINDS = {
    "100 short children a second": SHORT_CHILDREN.format(count=800, pause_s=0.004),
    "workers remade each epoch": NEW_WORKERS.format(epochs=5, seconds=0.7),
    "children that fork and leave": DOUBLE_FORKS.format(count=80, seconds=0.08),
}


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured.

    Attributes:
        cpu_percent: CPU time of the sampling process, in per cent of one core.
        pss_per_s: How often the PSS of a run was read.
        missed: Ticks that the sampling process was too late for.
        memory_bytes: PSS of the sampling process.
        slower: Median over pairs of the runs' time with the sampling process to that without.
        slower_interval: Its interval of 95% (bootstrap).
        ratios: Those ratios.
        errors: Relative error of the CPU time against getrusage, by the kind of run.
    """

    cpu_percent: float
    pss_per_s: float
    missed: float
    memory_bytes: int
    slower: float
    slower_interval: tuple[float, float]
    ratios: list[float]
    errors: dict[str, float]


@contextmanager
def sampling(store: Store, runs: list[Kept]) -> Generator[psutil.Process]:
    """Sample these runs at 1 Hz inside."""
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.runs.sampler", store.folder], stdin=subprocess.PIPE, text=True
    )
    assert process.stdin
    ids = [run.watched.id for run in runs]
    files = [points_file(store.folder_of(id), WRITER) for id in ids]
    before = [file.stat().st_size if file.exists() else 0 for file in files]
    with process:
        process.stdin.writelines(
            msgspec.json.encode(message).decode() + "\n" for message in (Begin(id, LISTENERS) for id in ids)
        )
        process.stdin.flush()
        # Its start is paid for once.
        while not all(
            file.exists() and file.stat().st_size > size for file, size in zip(files, before, strict=True)
        ):
            time.sleep(0.05)
        yield psutil.Process(process.pid)
        process.stdin.writelines(msgspec.json.encode(End(id)).decode() + "\n" for id in ids)


@contextmanager
def started(store: Store, *codes: str) -> Generator[list[Kept]]:
    """Start runs of this code, each under a keeper."""
    plans = tuple(RunPlan(command=("python",), name=str(number), directory="/") for number in range(len(codes)))
    with ExitStack() as stack:
        runs: list[Kept] = []
        for code, record in zip(codes, store.add(GroupPlan(name="benchmark", runs=plans)), strict=True):
            runs.append(Kept(code, record.id, record.index))
            stack.callback(runs[-1].close)
            store.began(record.id, keeper=runs[-1].watched.keeper, pid=runs[-1].watched.pid)
        yield runs


def line_of(run: Kept) -> str:
    assert run.process.stdout
    return run.process.stdout.readline()


def group_s(runs: list[Kept], work: int) -> float:
    """Let all runs do so much work at the same time; return the mean of the seconds that each took."""
    for run in runs:
        assert run.process.stdin
        run.process.stdin.write(f"{work}\n")
        run.process.stdin.flush()
    return sum(float(line_of(run)) for run in runs) / len(runs)


def slower(store: Store, runs: list[Kept], work: int, pairs: int) -> list[float]:
    ratios: list[float] = []
    for pair in track(range(pairs), "pairs"):
        took_s: dict[bool, float] = {}
        for listened in (True, False) if pair % 2 else (False, True):
            with ExitStack() as stack:
                if listened:
                    stack.enter_context(sampling(store, runs))
                took_s[listened] = group_s(runs, work)
        ratios.append(took_s[True] / took_s[False])
    return ratios


def interval(values: list[float]) -> tuple[float, float]:
    """Return the interval of 95% of the median, by 4,000 samples drawn from the values."""
    drawn = random.Random(0)
    medians = sorted(median(drawn.choices(values, k=len(values))) for _ in range(4000))
    return medians[100], medians[-101]


def error(store: Store, code: str) -> float:
    """Return the relative error of the CPU time that is in the store when the run has ended."""
    with started(store, code) as (run,), sampling(store, [run]):
        used_s = run.used_s()
        time.sleep(1.5)
    return float(store.series(run.watched.id)["proc.cpu_s"].values[-1]) / used_s - 1


def main(
    runs: Annotated[int, typer.Option(help="Runs that are listened to.")] = 8,
    megabytes: Annotated[int, typer.Option(help="Memory of each run.")] = 500,
    seconds: Annotated[float, typer.Option(help="Time over which the sampling process is measured.")] = 60.0,
    pairs: Annotated[int, typer.Option(help="Pairs with and without it; 20 or more for a claim.")] = 20,
    work: Annotated[int, typer.Option(help="Work of each run in a pair, in 10,000 additions.")] = 4000,
    to: Annotated[Path | None, typer.Option("--json", help="File for the results.")] = None,
) -> None:
    """Measure what listening costs, and how right the CPU time of a run is."""
    machine = describe()
    code = RUN.format(nbytes=megabytes * 10**6, workers=WORKERS)
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder, "store")) as store:
        os.environ["PENSTOCK_DIR"] = folder  # not the feeds that run here by chance
        errors = {name: error(store, kind) for name, kind in track(KINDS.items(), "errors")}
        with started(store, *[code] * runs) as group:
            assert all(line_of(run) == "ready\n" for run in group)
            with sampling(store, group) as process:
                before, began_s = process.cpu_times(), time.monotonic()
                time.sleep(seconds)
                after, ended_s = process.cpu_times(), time.monotonic()
                memory_bytes = process.memory_full_info().pss
            series = store.series(group[0].watched.id)
            ratios = slower(store, group, work, pairs)
    cpu_s = after.user + after.system - before.user - before.system
    measured = Measured(
        cpu_percent=100 * cpu_s / (ended_s - began_s),
        pss_per_s=float(series["proc.pss_per_s"].values[-1]) if "proc.pss_per_s" in series else 0.0,
        missed=float(series["sampler.missed"].values[-1]),
        memory_bytes=memory_bytes,
        slower=median(ratios),
        slower_interval=interval(ratios),
        ratios=ratios,
        errors=errors,
    )
    show(measured, machine.load_before)
    if to:
        report: dict[str, Any] = {
            "machine": msgspec.to_builtins(machine),
            "plan": {"runs": runs, "megabytes": megabytes, "seconds": seconds, "work": work, "workers": WORKERS},
            "measured": msgspec.to_builtins(measured),
        }
        to.write_text(json.dumps(report, indent=2) + "\n")


def show(measured: Measured, load: float) -> None:
    low, high = measured.slower_interval
    worst = max(map(abs, measured.errors.values()))
    console = Console()
    console.print(f"listeners: {', '.join(LISTENERS)}", highlight=False)
    for text, met in (
        (f"sampling process: {measured.cpu_percent:.2f}% of a core", measured.cpu_percent <= MOST_CPU_PERCENT),
        (f"runs take {measured.slower:.4f} of their time ({low:.4f} to {high:.4f})", high <= MOST_SLOWER),
        *(
            (f"CPU time, {kind}: {100 * each:+.2f}%", abs(each) <= MOST_ERROR)
            for kind, each in measured.errors.items()
        ),
    ):
        console.print(f"{'met   ' if met else 'missed'} {text}", highlight=False)
    console.print(
        f"PSS of a run {measured.pss_per_s:.3f} times a second, {measured.missed:.0f} ticks missed, "
        f"{measured.memory_bytes / 1e6:.0f} MB, worst error {100 * worst:.2f}%; load before: {load}",
        highlight=False,
    )


if __name__ == "__main__":
    typer.run(main)
