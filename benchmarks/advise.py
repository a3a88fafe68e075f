"""Compares what ``penstock advise`` chooses with the best of all settings, measured one by one.

python -m benchmarks advise FILE-OR-DIRECTORY --json benchmarks/results/advise.json

Every setting is measured at every size. The advice sees a coarse grid of
sizes; the needs ask for sizes between them, which were measured too. All
sizes and settings take turns in each repeat.
"""

from __future__ import annotations

from collections import defaultdict
from json import loads
from statistics import median
from typing import Annotated, NamedTuple

import msgspec
import typer
from benchmarks.claim import ResultsFile
from rich.console import Console
from rich.table import Table

from penstock.basics.results import progress, results_table
from penstock.bench.io import run
from penstock.bench.io_plan import IoSettings
from penstock.io.advice import Requirement, advise
from penstock.io.measurements import Measurement
from penstock.runs.machine import describe

KIB = 1 << 10
SEEN = (4 * KIB, 32 * KIB, 256 * KIB, 1024 * KIB)
RATES_MB_S = {8 * KIB: 200, 16 * KIB: 300, 64 * KIB: 500, 112 * KIB: 500, 160 * KIB: 600, 512 * KIB: 800}
"""Rate that is needed at each size that the advice does not see."""
SCARCE_CORES = 0.25
NEAR = 0.9
"""A choice that reaches this part of the best counts as right."""

Setting = tuple[str, int, int]


class Truth(NamedTuple):
    """Measurements of a setting at the need's size."""

    mb_s: float
    cpu_s_per_mb: float

    def within(self, cores: float | None) -> float:
        return self.mb_s if cores is None else min(self.mb_s, cores / self.cpu_s_per_mb)


class Verdict(msgspec.Struct):
    """A need, the advised setting and the best one; ``score`` is the former as a part of the latter."""

    need: Requirement
    advised: str
    best: str
    promised_mb_s: float
    reached_mb_s: float
    score: float


def needs() -> list[Requirement]:
    found: list[Requirement] = []
    for nbytes, mb_s in RATES_MB_S.items():
        found += [
            Requirement(sample_bytes=nbytes),
            Requirement(sample_bytes=nbytes, cores=SCARCE_CORES),
            Requirement(sample_bytes=nbytes, rate_bytes_per_s=mb_s * 1e6),
        ]
    return found


def judged(need: Requirement, rows: list[Measurement]) -> Verdict:
    of_setting: dict[Setting, list[Measurement]] = defaultdict(list)
    for row in rows:
        if row.bs_bytes == need.sample_bytes and row.iops > 0:
            of_setting[row.mech, row.qd, row.threads].append(row)
    true = {
        setting: Truth(median(r.mb_s for r in same), median(r.cpu_s_per_gib for r in same) * 1e6 / 2**30)
        for setting, same in of_setting.items()
    }
    advice = advise([row for row in rows if row.bs_bytes in SEEN], need)
    mine = (advice.choice.mech, advice.choice.qd, advice.choice.threads)
    reached = true[mine].within(need.cores)
    able = [s for s in true if true[s].within(need.cores) >= (need.rate_mb_s or float("inf"))]
    if able:
        best = min(able, key=lambda s: true[s].cpu_s_per_mb)
        cheap = true[best].cpu_s_per_mb / true[mine].cpu_s_per_mb
        score = min(1.0, cheap, reached / (need.rate_mb_s or 1))
    else:
        best = max(true, key=lambda s: true[s].within(need.cores))
        score = reached / true[best].within(need.cores)
    return Verdict(need, str(advice.choice), "{}, {}, {}".format(*best), advice.choice.mb_s, reached, score)


def spread(rows: list[Measurement]) -> float:
    """Return how far a typical setting's repeats lie apart, as a part of their median."""
    repeats: dict[tuple[Setting, int], list[float]] = defaultdict(list)
    for row in rows:
        if row.iops:
            repeats[(row.mech, row.qd, row.threads), row.bs_bytes].append(row.mb_s)
    return median((max(same) - min(same)) / median(same) for same in repeats.values())


def shown(verdicts: list[Verdict]) -> Table:
    table = results_table("need", "advised", "best (depth, threads)", "promised MB/s", "reached", "of the best")
    for v in verdicts:
        rate = "fastest" if v.need.rate_mb_s is None else f"{v.need.rate_mb_s:g} MB/s, least CPU"
        cores = "" if v.need.cores is None else f" on {v.need.cores:g} cores"
        table.add_row(
            f"{v.need.sample_bytes // KIB} KiB, {rate}{cores}",
            v.advised,
            v.best,
            f"{v.promised_mb_s:,.0f}",
            f"{v.reached_mb_s:,.0f}",
            f"{v.score:.2f}",
            style="" if v.score >= NEAR else "red",
        )
    return table


def main(
    on: Annotated[str, typer.Argument(help="A file to read, or a directory for a scratch file.")],
    seconds: Annotated[float, typer.Option(help="Time counted for each setting, size and repeat.")] = 0.5,
    repeats: Annotated[int, typer.Option(help="Measurements of everything, in turn.")] = 5,
    json: ResultsFile = None,
) -> None:
    """Measure everything, ask for advice on every need, and judge it."""
    machine = describe()
    console = Console(width=150)
    settings = IoSettings(
        bs_bytes=tuple(sorted({*SEEN, *RATES_MB_S})),
        qd=(8, 32, 128),
        threads=(8, 32),
        cold=True,
        runtime_s=seconds,
        warm_up_s=seconds / 4,
        repeats=repeats,
        scratch_bytes=4 << 30,
    )
    with progress(console) as tell:
        rows = run(settings, on, tell)
    verdicts = [judged(need, rows) for need in needs()]
    console.print(shown(verdicts))
    near = sum(v.score >= NEAR for v in verdicts)
    console.print(f"within a tenth of the best: {near} of {len(verdicts)}; repeats lie {spread(rows):.0%} apart")
    if json is not None:
        told = {
            "machine": machine,
            "seconds": seconds,
            "repeats": repeats,
            "near": near,
            "spread": spread(rows),
            "needs": verdicts,
            "rows": rows,
        }
        digits = loads(msgspec.json.encode(told), parse_float=lambda text: float(f"{float(text):.5g}"))
        json.write_bytes(msgspec.json.format(msgspec.json.encode(digits), indent=1) + b"\n")
        console.print(f"saved: {json}")
