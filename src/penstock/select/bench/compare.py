"""``penstock select bench``: runs a comparison, shows its results, and saves them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from penstock.basics.results import Spread, as_json, results_table
from penstock.basics.terminal import printable
from penstock.errors import BadSetting
from penstock.linux.files import held
from penstock.runs.machine import Machine
from penstock.runs.store import Store
from penstock.select.bench.run import Bench, BenchResults, Outcome, arms_of, label, scoring, training
from penstock.select.bench.spec import UNSCORED, BenchSpec, MethodComparison
from penstock.select.meter import J_PER_WH, Cost
from penstock.select.savings import Balance

RUNS = (1, 5, 20)
"""Numbers of runs that share a selection."""
_NOTHING = Outcome("", 0.0, 0.0, 0.0, None)


class ArmRow(msgspec.Struct, frozen=True, kw_only=True):
    """An arm over several seeds."""

    label: str
    arm: int
    fraction: float
    seeds: int
    metric: Spread  # what was reached
    figures: dict[int, float]  # the same, by seed
    scoring_cpu_s: float  # CPU time of scoring, once
    training_cpu_s: float  # CPU time of a training
    scoring_s: float  # time on the clock of scoring, once
    training_s: float  # time on the clock of a training
    scoring_wh: float  # energy: measured, or CPU time times the stated power
    training_wh: float  # the same of a training
    cost: dict[int, float]
    """By the number of runs that share the selection, the median over seeds of the CPU time of selection and
    training, relative to full's."""
    pays_after: int | None
    """Runs after which the selection has paid in CPU time; None if never, 0 if there is none."""


class SelectReport(msgspec.Struct):
    """What is saved."""

    name: str  # of the spec
    metric: str  # of the spec
    machine: Machine  # what it ran on
    budget: float
    """Part of full's CPU time that the choice may cost. If no arm with scores is within it, the cheapest is
    chosen."""
    chosen: str  # name of the arm that was chosen; empty without fresh seeds
    on_seeds: list[ArmRow]  # all arms, on the seeds that the choice was made on
    on_fresh_seeds: list[ArmRow]  # the choice and its baselines, on others
    against: dict[str, Spread]  # by how much the choice is above each baseline, seed by seed


def rows_of(results: BenchResults, arms: Sequence[tuple[int, float]], seeds: Sequence[int]) -> list[ArmRow]:
    """Return the rows of arms, each compared with full on the same seeds."""
    full = _outcomes(results, training(results.settings, *full_of(results.settings)), seeds)
    return [_row(results, arm, fraction, seeds, full) for arm, fraction in arms]


def full_of(spec: BenchSpec) -> tuple[int, float]:
    """Return the arm that trains on all samples."""
    for arm, fraction in arms_of(spec):
        if spec.arms[arm].method == "full" and fraction == 1:
            return arm, fraction
    raise BadSetting("arms: full with fraction 1 must be there: the others are compared with it")


def choose(results: BenchResults) -> tuple[int, float]:
    """Return the scored arm with the best median within the budget; the cheapest one if none is within."""
    spec = results.settings
    scored = [each for each in arms_of(spec) if spec.arms[each[0]].method not in UNSCORED]
    rows = rows_of(results, scored, spec.seeds)
    if not rows:
        raise BadSetting("arms: none has scores, so that there is nothing to choose: leave out fresh_seeds")
    within = [row for row in rows if row.cost[1] <= spec.budget]
    best = max(within, key=lambda row: row.metric.median) if within else min(rows, key=lambda row: row.cost[1])
    return best.arm, best.fraction


def baselines_of(spec: BenchSpec, fraction: float, cost: float) -> list[tuple[int, float]]:
    """Return what a choice is compared to: InfoBatch, random at its fraction, RS2 and less of full at its cost."""
    places = {arm.method: place for place, arm in reversed(list(enumerate(spec.arms)))}
    at_cost = min(1.0, round(cost, 2))
    return [
        (places["random"], fraction),
        (places["rs2"], at_cost),
        (places["full"], at_cost),
        (places["infobatch"], 1.0),
    ]


def paired(one: ArmRow, other: ArmRow) -> Spread:
    """Return by how much one arm is above another, seed by seed."""
    return Spread.of([figure - other.figures[seed] for seed, figure in one.figures.items()])


def _row(
    results: BenchResults, arm: int, fraction: float, seeds: Sequence[int], full: Sequence[Outcome]
) -> ArmRow:
    spec = results.settings
    has_scores = spec.arms[arm].method not in UNSCORED
    scored = _outcomes(results, scoring(spec, arm), seeds) if has_scores else [_NOTHING] * len(seeds)
    trained = _outcomes(results, training(spec, arm, fraction), seeds)
    figures = {seed: each.metric or 0.0 for seed, each in zip(seeds, trained, strict=True)}
    costs = list(zip(trained, scored, full, strict=True))
    (its, its_s, its_wh), (mine, mine_s, mine_wh) = (
        (
            median(each.cpu_s for each in outcomes),
            median(each.seconds for each in outcomes),
            median(Cost(each.seconds, each.cpu_s, each.wh).wh_at(spec.watts) for each in outcomes),
        )
        for outcomes in (scored, trained)
    )
    paid = Balance(its, median(each.cpu_s for each in full), mine).pays_after if has_scores else 0
    return ArmRow(
        label=label(spec, arm, fraction),
        arm=arm,
        fraction=fraction,
        seeds=len(seeds),
        metric=Spread.of([*figures.values()]),
        figures=figures,
        scoring_cpu_s=its,
        training_cpu_s=mine,
        scoring_s=its_s,
        training_s=mine_s,
        scoring_wh=its_wh,
        training_wh=mine_wh,
        cost={n: median((own.cpu_s + its.cpu_s / n) / all_.cpu_s for own, its, all_ in costs) for n in RUNS},
        pays_after=paid,
    )


def _outcomes(results: BenchResults, name: str, seeds: Sequence[int]) -> list[Outcome]:
    found = results.of(name)
    return [found[seed] for seed in seeds]


def compare_methods(
    comparison: MethodComparison, folder: Path, store: Store, console: Console, *, again: bool = False
) -> None:
    """Run what is missing, show a table, and save JSON and picture.

    On fresh seeds, the choice runs beside full, InfoBatch, ``random`` at its fraction, and RS2 and full for fewer
    epochs at its cost, selection included.
    """
    with held(folder, "results", "comparing in"):
        spec = comparison.spec
        full = full_of(spec)

        def tell(done: int, total: int, what: str) -> None:
            console.print(f"[{done:,} of {total:,}] {printable(what)}", style="dim", soft_wrap=True, markup=False)

        bench = Bench(comparison, folder, store, tell, again=again)
        arms = arms_of(spec)
        bench.run(arms, spec.seeds)
        rows = rows_of(bench.results, arms, spec.seeds)
        report = SelectReport(spec.name, spec.metric, bench.results.machine, spec.budget, "", rows, [], {})
        if spec.fresh_seeds:
            chosen = choose(bench.results)
            (its,) = (row for row in report.on_seeds if (row.arm, row.fraction) == chosen)
            baselines = baselines_of(spec, chosen[1], its.cost[1])
            beside = list(dict.fromkeys([full, chosen, *baselines]))
            bench.run(beside, spec.fresh_seeds)
            report.chosen = label(spec, *chosen)
            report.on_fresh_seeds = rows_of(bench.results, beside, spec.fresh_seeds)
            its, *others = sorted(report.on_fresh_seeds, key=lambda row: (row.arm, row.fraction) != chosen)
            report.against = {row.label: paired(its, row) for row in others}
        (folder / "report.json").write_bytes(as_json(report))
        picture(report, bench.results).savefig(folder / "picture.png")
        for row in shown(report):
            console.print(row, soft_wrap=True)
        console.print(f"saved: {printable(str(folder))}: results.json, report.json, picture.png", soft_wrap=True)


def shown(report: SelectReport) -> Iterator[Table | str]:
    """Yield a table of all arms, one of the choice on fresh seeds, and sentences."""
    yield _table(report.on_seeds, report.metric, "All arms, on the seeds that the choice is made on")
    if report.chosen:
        [cost] = (row.cost[1] for row in report.on_seeds if row.label == report.chosen)
        within = (
            ""
            if cost <= report.budget
            else f" (the cheapest: nothing with scores costs at most {report.budget:g})"
        )
        yield _table(report.on_fresh_seeds, report.metric, f"{report.chosen}{within}, on fresh seeds")
        for name, above in report.against.items():
            caveat = "" if above.least > 0 or above.most < 0 else ": these seeds do not separate them"
            yield (
                f"{report.chosen} against {name}, seed by seed, median (least to most): {above.median:+.2f} "
                f"({above.least:+.2f} to {above.most:+.2f}){caveat}"
            )


def _table(rows: list[ArmRow], metric: str, title: str) -> Table:
    runs = ", ".join(map(str, RUNS))
    title += f". Cost: CPU time relative to all data, where {runs} runs share the scores"
    headings = (metric, "least", "most", "CPU-s", "scoring", *(f"of {runs}" for runs in RUNS), "paid after")
    table = results_table("arm", *headings, title=title)
    table.columns[0].overflow = "fold"
    for row in rows:
        table.add_row(
            printable(row.label),
            *(f"{value:.2f}" for value in (row.metric.median, row.metric.least, row.metric.most)),
            f"{row.training_cpu_s:,.1f}",
            f"{row.scoring_cpu_s:,.1f}" if row.scoring_cpu_s else "",
            *(f"{cost:.2f}" for cost in row.cost.values()),
            {None: "never", 0: "", 1: "1 run"}.get(row.pays_after, f"{row.pays_after} runs"),
        )
    return table


def picture(report: SelectReport, results: BenchResults) -> Any:
    """Draw all arms, and below them the choice on fresh seeds; faint marks are costs that more runs share.

    The axes are minutes and measured energy; without counters CPU time, since estimated energy is a multiple.
    """
    from penstock.basics.pictures import AFTER, BEFORE, Curve, Mark, Panel, series_picture

    spec, machine = results.settings, results.machine
    measured = all(each.figures.wh is not None for each in results.results)
    measures = ("minutes", "Wh") if measured else (f"CPU-seconds (1 Wh is {J_PER_WH / spec.watts:,.0f} of them)",)

    def series(row: ArmRow, measure: str) -> Curve:
        scoring, training = {
            "minutes": (row.scoring_s / 60, row.training_s / 60),
            "Wh": (row.scoring_wh, row.training_wh),
        }.get(measure, (row.scoring_cpu_s, row.training_cpu_s))
        scored, reached = spec.arms[row.arm].method not in UNSCORED, row.metric
        first = Mark(training + scoring, reached.median, row.label, spread=(reached.least, reached.most))
        shared = [Mark(training + scoring / runs, reached.median) for runs in RUNS[1:]] if scored else []
        return Curve(row.label, AFTER if scored else BEFORE, [first, *shared], faint=True)

    parts = {"all arms": report.on_seeds, "the choice, on fresh seeds": report.on_fresh_seeds}
    panels = [
        Panel(title, [series(row, measure) for row in rows], f"{measure}, selection included", spec.metric)
        for title, rows in parts.items()
        if rows
        for measure in measures
    ]
    where = ", ".join(machine.gpus) or f"{machine.cores} cores of {machine.cpu}"
    about = (
        f"Medians, and the least and most of the seeds. Faint: the selection is shared by {RUNS[1]} and {RUNS[2]} "
        f"runs.\n{where}, {machine.date[:10]}."
    )
    return series_picture(f"{spec.name}: {spec.metric} against cost", about, panels, columns=len(measures))
