"""What the figure of a collocation study shows: its panels, and what is missing."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from penstock.runs.compare import GroupFigures
from penstock.runs.figures import RunFigures

PARTS = (
    ("starting", "starts", "#cc79a7", "\\\\"),
    ("waiting", "waits for data", "#d55e00", "////"),
    ("copying", "copies", "#f0e442", "...."),
    ("computing", "computes", "#56b4e9", ""),
    ("other", "other", "#dddddd", ""),
)
"""Parts of a run's time: attribute, words, colour, and hatching where there is no colour."""
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi")


class GroupBars(NamedTuple):
    """A panel of bars: for each group a value, None if nobody recorded it, and those of its runs.

    Of a group that was started several times, values are means of its starts, with their standard deviation.
    """

    title: str
    unit: str
    values: list[float | None]
    dots: list[list[float]]
    deviations: list[float]  # 0 for a group that was started once


def scale_of(unit: str, most: float) -> tuple[float, str]:
    """Return what values are divided by, and the unit that they have then.

    >>> scale_of("bytes", 3 * 2**31)
    (1073741824.0, 'GiB')
    """
    if unit.startswith("bytes"):
        power = next((at for at in range(5, 0, -1) if most >= 1024.0**at), 0)
        return 1024.0**power, unit.replace("bytes", f"{_BINARY[power]}B")
    if unit == "J":
        return (1e6, "MJ") if most >= 1e6 else (1e3, "kJ") if most >= 1e3 else (1.0, "J")
    return 1.0, unit


def _per_s(count: float | None, run: RunFigures) -> float | None:
    return count / run.seconds if count is not None and run.seconds > 0 else None


_Figure = tuple[str, str, Callable[[GroupFigures], float | None], Callable[[RunFigures], float | None]]
"""Its title, its unit, and its value of a group and of a run."""
_FIGURES: tuple[tuple[_Figure, ...], ...] = (
    (("time an epoch", "s", lambda group: group.epoch_s, lambda run: run.epoch_s),),
    (
        ("throughput", "samples/s", lambda group: group.samples_per_s, lambda run: _per_s(run.samples, run)),
        ("throughput", "batches/s", lambda group: group.batches_per_s, lambda run: _per_s(run.batches, run)),
    ),
    (("CPU time", "s", lambda group: group.cpu_s, lambda run: run.cpu_s),),
    (
        ("energy", "J", lambda group: sum(group.energy_measured_j.values()) or None, lambda _: None),
        ("energy, estimated", "J", lambda group: group.energy_estimated_j, lambda run: run.energy_estimated_j),
    ),
    (("memory", "bytes", lambda group: group.memory_bytes, lambda run: run.memory_bytes),),
)
"""Panels; of several figures the one that most groups have."""
Starts = Mapping[str, Sequence[GroupFigures]]
NOTE = "bars: all runs of a group together (time an epoch: their median); dots: single runs"
NOTE_OF_STARTS = "; of several starts, their mean and standard deviation"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None


def _deviation(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return statistics.stdev(known) if len(known) > 1 else 0.0


def panels_of(groups: Sequence[GroupFigures], starts: Starts) -> tuple[list[GroupBars], list[str]]:
    """Return the panels that have data, and sentences that say what is missing.

    ``starts`` has what each start took of groups that were started several times, by their ids.
    """
    every = [starts.get(group.id) or [group] for group in groups]
    panels: list[GroupBars] = []
    missing: list[str] = []
    for figures in _FIGURES:
        found = [(figure, [_mean([*map(figure[2], its)]) for its in every]) for figure in figures]
        (title, unit, of_group, of_run), values = min(found, key=lambda each: each[1].count(None))
        without = [
            f"{group.name!r} ({group.mode})" for group, value in zip(groups, values, strict=True) if value is None
        ]
        if len(without) == len(groups):
            missing.append(f"{figures[0][0]} is left out: nobody recorded it")
            continue
        if without:
            missing.append(f"{title} was not recorded of every run of {', '.join(without)}")
        dots = [[dot for run in group.runs if (dot := of_run(run)) is not None] for group in groups]
        factor, unit = scale_of(unit, max(value for value in values if value is not None))
        scaled = [None if value is None else value / factor for value in values]
        scattered = [[dot / factor for dot in each] for each in dots]
        deviations = [_deviation([*map(of_group, its)]) / factor for its in every]
        panels.append(GroupBars(title, unit, scaled, scattered, deviations))
    missing += [
        f"{failed} of {len(group.runs)} runs of {group.name!r} ({group.mode}) did not finish"
        for group in groups
        if (failed := sum(run.status != "finished" for run in group.runs))
    ]
    return panels, missing


def names_of(groups: Sequence[GroupFigures]) -> list[str]:
    """Return what groups are called on an axis: by their modes, with their names where these differ."""
    one_name = len({group.name for group in groups}) == 1
    modes = [group.mode.replace(",", ", ") for group in groups]
    names = modes if one_name else [f"{group.name} {mode}" for group, mode in zip(groups, modes, strict=True)]
    return [
        name if names.count(name) == 1 else f"{name} {group.id}" for group, name in zip(groups, names, strict=True)
    ]
