"""Whether a selection has paid: what scoring cost, what a run saves, after how many runs that is even."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import msgspec

from penstock.errors import BadSetting
from penstock.runs.figures import run_figures
from penstock.runs.listeners import is_measured
from penstock.runs.record import RunRecord
from penstock.runs.store import Series, Store
from penstock.select.identity import ScoresHeader
from penstock.select.in_training import ASKED
from penstock.select.meter import J_PER_WH, Cost
from penstock.select.scores import used_by

ESTIMATED_WH = "Wh of CPU time"
"""Name of energy that is estimated as CPU time times the power of a busy core."""


class RunsCost(msgspec.Struct, frozen=True):
    """What runs took and reached: medians."""

    runs: int  # number of runs that finished
    seconds: float  # time on the clock
    cpu_s: float | None  # CPU time; None where nobody recorded it
    wh: float | None  # energy, by the counters; None without
    logged: dict[str, list[float]]  # what they logged last, rising, by name


class Balance(msgspec.Struct, frozen=True):
    """One measure of cost."""

    scoring: float  # what scoring cost
    full: float  # what a run on all samples costs
    selected: float  # what a run on the selection costs

    @property
    def pays_after(self) -> int | None:
        """Runs after which the selection has paid; None if it never does."""
        saved = self.full - self.selected
        return None if saved <= 0 else max(1, math.ceil(self.scoring / saved))


class Saving(msgspec.Struct, frozen=True):
    """What a selection has brought a group of runs."""

    group: str  # name of the group
    against: str  # name of the group of runs on all samples; empty if there is none
    methods: tuple[str, ...]  # what scored the samples
    scoring: Cost  # what that cost, once: all scores that a run has read, the median over the runs
    selected: RunsCost  # what the runs took
    full: RunsCost | None  # what the runs on all samples took, if there are some


def cost_of(store: Store, group: str) -> RunsCost:
    """Return what the runs of a group, given by its name or id, took."""
    runs = _finished(store, group)
    if not runs:
        raise BadSetting(f"no run of group {group!r} has finished; penstock runs ls shows the groups")
    return _cost(runs, [store.series(run.id) for run in runs])


def check_selected(store: Store, group: str, name: str, header: ScoresHeader) -> None:
    """Check that the runs of a group may have trained by these scores."""
    read = [item for run in _finished(store, group) for item in _used(store, run).items()]
    if read and header not in [its for _, its in read]:
        raise BadSetting(
            f"the runs of group {group!r} have read scores {', '.join(sorted({each for each, _ in read}))}, and "
            f"not {name}, or as it was before it was scored again"
        )


def cost_of_full(store: Store, group: str) -> RunsCost:
    """Return what the runs of a group on all samples took."""
    runs = _finished(store, group)
    if selecting := [run.id for run in runs if _used(store, run)]:
        raise BadSetting(
            f"{len(selecting)} of the runs of group {group!r} have read scores, such as {selecting[0]}: give a "
            "group of runs on all samples (penstock run --group NAME names a group)"
        )
    if less := [run for run in runs if _trains_on_less(run)]:
        asked = less[0].plan.parameters
        raise BadSetting(
            f"group {group!r} trained on {asked[f'{ASKED}method']} {float(asked[f'{ASKED}fraction']):.0%}, as "
            "select bench asked: give its group of full 100%"
        )
    return cost_of(store, group)


def savings(store: Store, groups: Iterable[str]) -> list[Saving]:
    """Return what selecting has brought each group whose runs have read scores.

    They are compared with the group that ``penstock select bench`` ran on all samples, if it is among them; else
    with the first group without scores that did not train on a part of the samples or epochs for ``select bench``.
    All finished runs of a name count.
    """
    runs = {name: found for name in dict.fromkeys(groups) if (found := _finished(store, name))}
    used = {name: [[*_used(store, run).values()] for run in found] for name, found in runs.items()}
    unscored = [name for name, headers in used.items() if not any(headers)]
    whole = [name for name in unscored if not _trains_on_less(runs[name][0])]
    full = [name for name in whole if f"{ASKED}method" in runs[name][0].plan.parameters]
    against = (full or whole or [""])[0]
    compared = cost_of(store, against) if against and len(unscored) < len(used) else None
    return [
        Saving(name, against, _methods(headers), _of_a_run(headers), cost_of(store, name), compared)
        for name, headers in used.items()
        if any(headers)
    ]


def balances(scoring: Cost, full: RunsCost, selected: RunsCost, watts: float) -> dict[str, Balance]:
    """Return scoring, full and selected runs in minutes, CPU-seconds and Wh, as far as they are known.

    Wh are measured ones, or, where no counter could be read for any of the three, ``ESTIMATED_WH``: CPU time times
    the power of a busy core.
    """
    found = {"minutes": Balance(scoring.seconds / 60, full.seconds / 60, selected.seconds / 60)}
    cpu = None
    if full.cpu_s is not None and selected.cpu_s is not None:
        cpu = found["CPU-seconds"] = Balance(scoring.cpu_s, full.cpu_s, selected.cpu_s)
    if scoring.wh is not None and full.wh is not None and selected.wh is not None:
        found["Wh"] = Balance(scoring.wh, full.wh, selected.wh)
    elif cpu is not None and scoring.wh is full.wh is selected.wh is None:
        wh_per_s = watts / J_PER_WH
        found[ESTIMATED_WH] = Balance(cpu.scoring * wh_per_s, cpu.full * wh_per_s, cpu.selected * wh_per_s)
    return found


def _cost(runs: Sequence[RunRecord], series: Sequence[Mapping[str, Series]]) -> RunsCost:
    figures = [run_figures(run, its) for run, its in zip(runs, series, strict=True)]
    cpu_s = [each.cpu_s for each in figures if each.cpu_s is not None]
    joules = [each.energy_estimated_j for each in figures if each.energy_estimated_j is not None]
    logged = dict[str, list[float]]()
    for name, values in ((name, its[name]) for its in series for name in its if not is_measured(name)):
        if values.last is not None:
            logged.setdefault(name, []).append(values.last)
    return RunsCost(
        len(runs),
        median(each.seconds for each in figures),
        median(cpu_s) if cpu_s else None,
        median(joules) / J_PER_WH if len(joules) == len(runs) else None,
        {name: sorted(values) for name, values in logged.items()},
    )


def _finished(store: Store, group: str) -> list[RunRecord]:
    return [run for run in store.runs(group) if run.status == "finished"]


def _trains_on_less(run: RunRecord) -> bool:
    """Whether ``penstock select bench`` had a run train on less than all samples in all epochs."""
    asked = run.plan.parameters
    return (asked.get(f"{ASKED}method", "full"), asked.get(f"{ASKED}fraction", "1")) != ("full", "1")


def _used(store: Store, run: RunRecord) -> dict[str, ScoresHeader]:
    """Return the headers of scores that a run has read, by name."""
    return used_by(store.folder_of(run.id) / "files")


def _methods(headers: Sequence[Sequence[ScoresHeader]]) -> tuple[str, ...]:
    """Return the methods that scored for some runs, each once."""
    found = {f"{each.method} ({each.asked})" if each.asked else each.method for its in headers for each in its}
    return tuple(sorted(found))


def _of_a_run(headers: Sequence[Sequence[ScoresHeader]]) -> Cost:
    """Return what the scores of a run cost together: the median over those runs that have read some."""
    costs = [[each.cost for each in its] for its in headers if its]
    measured = all(each.wh is not None for its in costs for each in its)
    return Cost(
        median(sum(each.seconds for each in its) for its in costs),
        median(sum(each.cpu_s for each in its) for its in costs),
        median(sum(each.wh or 0.0 for each in its) for its in costs) if measured else None,
    )
