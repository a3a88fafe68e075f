"""Whether a selection has paid: what scoring cost, what a run saves, after how many runs that is even."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import msgspec

from penstock.errors import BadSetting
from penstock.runs.figures import run_figures
from penstock.runs.measured import is_measured
from penstock.runs.record import RunRecord
from penstock.runs.store import Series, Store
from penstock.scoring.header import ScoresHeader
from penstock.scoring.meter import J_PER_WH, WATTS, Cost
from penstock.scoring.used import used_by


class RunsCost(msgspec.Struct, frozen=True):
    """What runs took and reached: medians.

    Attributes:
        runs: Number of runs that finished.
        seconds: Time on the clock.
        cpu_s: CPU time; None where nobody recorded it.
        wh: Energy, as the counters say, else CPU time times the stated power; None without either.
        logged: What they logged last, rising, by name.
    """

    runs: int
    seconds: float
    cpu_s: float | None
    wh: float | None
    logged: dict[str, list[float]]


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


class Saving(msgspec.Struct, frozen=True):
    """What a selection has brought a group of runs.

    Attributes:
        group: Name of the group.
        against: Name of the group of runs on all samples; empty if there is none.
        methods: What scored the samples.
        scoring: What that cost, once: the median of the scores that the runs have read.
        selected: What the runs took.
        full: What the runs on all samples took, if there are some.
    """

    group: str
    against: str
    methods: tuple[str, ...]
    scoring: Cost
    selected: RunsCost
    full: RunsCost | None


def cost_of(store: Store, group: str, watts: float = WATTS) -> RunsCost:
    """Return what the runs of a group took.

    Args:
        store: Where they are kept.
        group: Name or id of the group.
        watts: Power of a busy core, where no counter could be read.

    Raises:
        BadSetting: there is no such group, or none of its runs has finished.
    """
    runs = _finished(store, group)
    if not runs:
        raise BadSetting(f"no run of group {group!r} has finished; penstock runs ls shows the groups")
    return _cost(runs, [store.series(run.id) for run in runs], watts)


def savings(store: Store, groups: Iterable[str], watts: float = WATTS) -> list[Saving]:
    """Return what selecting has brought each group whose runs have read scores, against the first that has not.

    Args:
        store: Where they are kept.
        groups: Names of groups; all finished runs of a name count.
        watts: Power of a busy core, where no counter could be read.
    """
    runs = {name: found for name in dict.fromkeys(groups) if (found := _finished(store, name))}
    used = {name: _used(store, found) for name, found in runs.items()}
    against = next((name for name in runs if not used[name]), "")
    if len(used) == (against != ""):
        return []
    costs = {name: cost_of(store, name, watts) for name in runs if used[name] or name == against}
    return [
        Saving(
            name,
            against,
            tuple(sorted({f"{each.method} ({each.asked})" if each.asked else each.method for each in headers})),
            _middle([each.cost for each in headers], watts),
            costs[name],
            costs.get(against),
        )
        for name, headers in used.items()
        if headers
    ]


def balances(scoring: Cost, full: RunsCost, selected: RunsCost, watts: float) -> dict[str, Balance]:
    """Return scoring, full and selected runs in minutes, CPU-seconds and Wh, as far as they are known."""
    found = {"minutes": Balance(scoring.seconds / 60, full.seconds / 60, selected.seconds / 60)}
    if full.cpu_s is not None and selected.cpu_s is not None:
        found["CPU-seconds"] = Balance(scoring.cpu_s, full.cpu_s, selected.cpu_s)
    if full.wh is not None and selected.wh is not None:
        found["Wh"] = Balance(scoring.wh_at(watts), full.wh, selected.wh)
    return found


def _cost(runs: Sequence[RunRecord], series: Sequence[Mapping[str, Series]], watts: float) -> RunsCost:
    figures = [run_figures(run, its) for run, its in zip(runs, series, strict=True)]
    cpu_s = [each.cpu_s for each in figures if each.cpu_s is not None]
    joules = [each.energy_estimated_j for each in figures if each.energy_estimated_j is not None]
    logged = dict[str, list[float]]()
    for name, values in ((name, its[name]) for its in series for name in its if not is_measured(name)):
        if values.last is not None:
            logged.setdefault(name, []).append(values.last)
    cpu = median(cpu_s) if cpu_s else None
    wh = median(joules) / J_PER_WH if joules else None if cpu is None else cpu * watts / J_PER_WH
    return RunsCost(
        len(runs),
        median(each.seconds for each in figures),
        cpu,
        wh,
        {name: sorted(values) for name, values in logged.items()},
    )


def _finished(store: Store, group: str) -> list[RunRecord]:
    return [run for run in store.runs(group) if run.status == "finished"]


def _used(store: Store, runs: Iterable[RunRecord]) -> list[ScoresHeader]:
    """Return the headers of all scores that runs have read, each once."""
    found = [header for run in runs for header in used_by(store.folder_of(run.id) / "files").values()]
    return list({msgspec.json.encode(header): header for header in found}.values())


def _middle(costs: Sequence[Cost], watts: float) -> Cost:
    measured = all(each.wh is not None for each in costs)
    return Cost(
        median(each.seconds for each in costs),
        median(each.cpu_s for each in costs),
        median(each.wh_at(watts) for each in costs) if measured else None,
    )
