"""What a comparison says: accuracy against cost, selection included, and when a selection has paid."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

from penstock.errors import BadSetting
from penstock.measure.machine import Machine
from penstock.measure.spread import Spread
from penstock.scoring.bench.run import Results, Trial, arms_of, label
from penstock.scoring.bench.spec import UNSCORED, Spec
from penstock.scoring.meter import Cost
from penstock.scoring.pays import Balance

RUNS = (1, 5, 20)
"""Numbers of runs that share a selection."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """An arm over several seeds.

    Attributes:
        metric: What was reached.
        scoring_cpu_s: CPU time of scoring, once.
        training_cpu_s: CPU time of a training.
        scoring_s, training_s: Time on the clock.
        scoring_wh, training_wh: Energy: measured, or CPU time times the stated power.
        cost: CPU time of selection and training relative to full's, seed by seed, if so many runs share the
            selection: the median.
        pays_after: Runs after which the selection has paid in CPU time; None if never, 0 if there is none.
    """

    label: str
    arm: int
    fraction: float
    seeds: int
    metric: Spread
    scoring_cpu_s: float
    training_cpu_s: float
    scoring_s: float
    training_s: float
    scoring_wh: float
    training_wh: float
    cost: dict[int, float]
    pays_after: int | None


class Report(msgspec.Struct):
    """What is saved.

    Attributes:
        name, metric: Of the spec.
        machine: What it ran on.
        budget: Part of full's CPU time that the choice may cost. If nothing with scores is within, the choice is
            the cheapest.
        chosen: Name of the arm that was chosen; empty without fresh seeds.
        on_seeds: All arms, on the seeds that the choice was made on.
        on_fresh_seeds: The choice and its baselines, on others.
        against: By how much the choice is above each baseline, seed by seed.
    """

    name: str
    metric: str
    machine: Machine
    budget: float
    chosen: str
    on_seeds: list[Row]
    on_fresh_seeds: list[Row]
    against: dict[str, Spread]


def rows_of(results: Results, arms: Sequence[tuple[int, float]], seeds: Sequence[int]) -> list[Row]:
    """Return the rows of arms, each compared with full on the same seeds."""
    spec = results.spec
    place, fraction = full_of(spec)
    full_cpu_s = _of_seeds(results, Trial(place, fraction, 0), seeds)
    return [_row(results, arm, fraction, seeds, full_cpu_s) for arm, fraction in arms]


def full_of(spec: Spec) -> tuple[int, float]:
    """Return the arm that trains on all samples.

    Raises:
        BadSetting: there is none.
    """
    for arm, fraction in arms_of(spec):
        if spec.arms[arm].method == "full" and fraction == 1:
            return arm, fraction
    raise BadSetting("arms: full with fraction 1 must be there: the others are compared with it")


def choose(results: Results) -> tuple[int, float]:
    """Return the scored arm with the best median within the budget; the cheapest one if none is within.

    Raises:
        BadSetting: no arm has scores.
    """
    spec = results.spec
    scored = [each for each in arms_of(spec) if spec.arms[each[0]].method not in UNSCORED]
    rows = rows_of(results, scored, spec.seeds)
    if not rows:
        raise BadSetting("arms: none has scores, so that there is nothing to choose: leave out fresh_seeds")
    within = [row for row in rows if row.cost[1] <= spec.budget]
    best = max(within, key=lambda row: row.metric.median) if within else min(rows, key=lambda row: row.cost[1])
    return best.arm, best.fraction


def baselines_of(spec: Spec, fraction: float, cost: float) -> list[tuple[int, float]]:
    """Return what a choice is compared with: ``random`` at its fraction, RS2 and a shorter full at its cost."""
    places = {arm.method: place for place, arm in reversed(list(enumerate(spec.arms)))}
    at_cost = min(1.0, round(cost, 2))
    return [(places["random"], fraction), (places["rs2"], at_cost), (places["full"], at_cost)]


def paired(results: Results, one: tuple[int, float], other: tuple[int, float], seeds: Sequence[int]) -> Spread:
    """Return by how much one arm is above another, seed by seed."""
    return Spread.of(
        [
            (results.outcomes[Trial(*one, seed).key(results.spec)].metric or 0.0)
            - (results.outcomes[Trial(*other, seed).key(results.spec)].metric or 0.0)
            for seed in seeds
        ]
    )


def _row(results: Results, arm: int, fraction: float, seeds: Sequence[int], full_cpu_s: Sequence[float]) -> Row:
    spec = results.spec
    scored = spec.arms[arm].method not in UNSCORED
    scoring = {
        name: _median(results, arm, 0.0, seeds, name) if scored else 0.0 for name in ("cpu_s", "seconds", "wh")
    }
    training = {name: _median(results, arm, fraction, seeds, name) for name in ("cpu_s", "seconds", "wh")}
    metrics = [results.outcomes[Trial(arm, fraction, seed).key(spec)].metric or 0.0 for seed in seeds]
    trained_cpu_s = _of_seeds(results, Trial(arm, fraction, 0), seeds)
    scored_cpu_s = _of_seeds(results, Trial(arm, 0.0, 0), seeds) if scored else [0.0] * len(seeds)
    each = list(zip(trained_cpu_s, scored_cpu_s, full_cpu_s, strict=True))
    return Row(
        label=label(spec, arm, fraction),
        arm=arm,
        fraction=fraction,
        seeds=len(seeds),
        metric=Spread.of(metrics),
        scoring_cpu_s=scoring["cpu_s"],
        training_cpu_s=training["cpu_s"],
        scoring_s=scoring["seconds"],
        training_s=training["seconds"],
        scoring_wh=scoring["wh"],
        training_wh=training["wh"],
        cost={runs: median((mine + its / runs) / full for mine, its, full in each) for runs in RUNS},
        pays_after=Balance(scoring["cpu_s"], median(full_cpu_s), training["cpu_s"]).pays_after if scored else 0,
    )


def _of_seeds(results: Results, trial: Trial, seeds: Sequence[int]) -> list[float]:
    """Return the CPU time of a trial with each of the seeds."""
    keys = (msgspec.structs.replace(trial, seed=seed).key(results.spec) for seed in seeds)
    return [results.outcomes[key].cpu_s for key in keys]


def _median(results: Results, arm: int, fraction: float, seeds: Sequence[int], name: str) -> float:
    found = [results.outcomes[Trial(arm, fraction, seed).key(results.spec)] for seed in seeds]
    if name == "wh":
        return median(Cost(each.seconds, each.cpu_s, each.wh).wh_at(results.spec.watts) for each in found)
    return median(getattr(each, name) for each in found)
