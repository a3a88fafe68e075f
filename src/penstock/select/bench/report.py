"""Evaluates a comparison: accuracy against cost, selection included, and when a selection has paid."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

from penstock.basics.results import Spread
from penstock.errors import BadSetting
from penstock.runs.machine import Machine
from penstock.select.bench.run import BenchResults, Outcome, arms_of, label, scoring, training
from penstock.select.bench.spec import UNSCORED, BenchSpec
from penstock.select.meter import Cost
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
