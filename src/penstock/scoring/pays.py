"""Whether a selection has paid: what scoring cost, what a run saves, after how many runs that is even."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from penstock.errors import BadSetting
from penstock.runs.figures import run_figures
from penstock.runs.record import RunRecord
from penstock.runs.store import Series, Store
from penstock.scoring.meter import J_PER_WH, Cost


class RunsCost(msgspec.Struct, frozen=True):
    """What the runs of a group took and reached: medians.

    Attributes:
        runs: Number of runs that finished.
        seconds: Time on the clock.
        cpu_s: CPU time; None where nobody recorded it.
        wh: Energy, as the counters say, else CPU time times the stated power; None without either.
        metric: What they logged last, rising; empty if they logged none.
    """

    runs: int
    seconds: float
    cpu_s: float | None
    wh: float | None
    metric: list[float]


class Balance(msgspec.Struct, frozen=True):
    """One measure of cost.

    Attributes:
        scoring: What scoring cost.
        full: What a run on all samples costs.
        selected: What a run on the selection costs.
        pays_after: Runs after which the selection has paid; None if it never does.
    """

    scoring: float
    full: float
    selected: float

    @property
    def pays_after(self) -> int | None:
        saved = self.full - self.selected
        return None if saved <= 0 else max(1, math.ceil(self.scoring / saved))


def cost_of(store: Store, group: str, metric: str, watts: float) -> RunsCost:
    """Return what the runs of a group took.

    Args:
        store: Where they are kept.
        group: Name or id of the group.
        metric: What they logged.
        watts: Power of a busy core, where no counter could be read.

    Raises:
        BadSetting: there is no such group, or none of its runs has finished.
    """
    runs = [run for run in store.runs(group) if run.status == "finished"]
    if not runs:
        raise BadSetting(f"no run of group {group!r} has finished; penstock runs ls shows the groups")
    return _cost(runs, [store.series(run.id) for run in runs], metric, watts)


def balances(scoring: Cost, full: RunsCost, selected: RunsCost, watts: float) -> dict[str, Balance]:
    """Return scoring, full and selected runs in minutes, CPU-seconds and Wh, as far as they are known."""
    found = {"minutes": Balance(scoring.seconds / 60, full.seconds / 60, selected.seconds / 60)}
    if full.cpu_s is not None and selected.cpu_s is not None:
        found["CPU-seconds"] = Balance(scoring.cpu_s, full.cpu_s, selected.cpu_s)
    if full.wh is not None and selected.wh is not None:
        found["Wh"] = Balance(scoring.wh_at(watts), full.wh, selected.wh)
    return found


def _cost(
    runs: Sequence[RunRecord], series: Sequence[Mapping[str, Series]], metric: str, watts: float
) -> RunsCost:
    figures = [run_figures(run, its) for run, its in zip(runs, series, strict=True)]
    cpu_s = [each.cpu_s for each in figures if each.cpu_s is not None]
    joules = [each.energy_estimated_j for each in figures if each.energy_estimated_j is not None]
    logged = [its[metric].last for its in series if metric in its]
    cpu = median(cpu_s) if cpu_s else None
    wh = median(joules) / J_PER_WH if joules else None if cpu is None else cpu * watts / J_PER_WH
    return RunsCost(
        len(runs),
        median(each.seconds for each in figures),
        cpu,
        wh,
        sorted(each for each in logged if each is not None),
    )
