"""Runs and groups as pictures: one way for the command, the page and notebooks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.basics.packages import require
from penstock.basics.terminal import listed
from penstock.errors import BadSetting
from penstock.runs.record import RunRecord
from penstock.runs.store import Store
from penstock.web.lines import CLOCK, axis_of, chart, line_over
from penstock.web.titles import FOLDED, title_of

if TYPE_CHECKING:
    from penstock.web.paper.draw import Picture
from collections.abc import Callable
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
    """A panel of bars: for each group a value, None if nobody recorded it, and those of its runs."""

    title: str
    unit: str
    values: list[float | None]
    dots: list[list[float]]


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
NOTE = "bars: all runs of a group together (time an epoch: their median); dots: single runs"


def panels_of(groups: Sequence[GroupFigures]) -> tuple[list[GroupBars], list[str]]:
    """Return the panels that have data, and sentences that say what is missing."""
    panels: list[GroupBars] = []
    missing: list[str] = []
    for figures in _FIGURES:
        found = [(figure, [figure[2](group) for group in groups]) for figure in figures]
        (title, unit, _, of_run), values = min(found, key=lambda each: each[1].count(None))
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
        panels.append(GroupBars(title, unit, scaled, [[dot / factor for dot in each] for each in dots]))
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


KINDS = ("pdf", "svg", "png")
_MOST_POINTS = 2000
_MOST_CHARTS = 6


def labels_of(runs: Sequence[RunRecord]) -> list[str]:
    """Return what runs are called beside each other: their names, with groups and ids where they need them."""
    names = [run.name for run in runs]
    if len(set(names)) < len(runs):
        names = [f"{run.name} of {run.group} ({run.mode})" for run in runs]
    return [
        name if names.count(name) == 1 else f"{run.name} {run.id}" for name, run in zip(names, runs, strict=True)
    ]


def runs_picture(
    store: Store,
    runs: Sequence[RunRecord],
    names: Sequence[str],
    *,
    over: str,
    smoothing: float,
    log: bool,
    columns: int,
) -> Picture:
    """Draw a chart of each series of these names; without names, of the first that a run's page shows."""
    from penstock.web.paper.draw import charts_picture

    asked = {"time": "", CLOCK: CLOCK, "step": "series:step", "epoch": "series:epoch"}.get(over, over)
    axis = axis_of(asked)
    if not axis and asked not in {"", CLOCK}:
        raise BadSetting(f"over {over!r}: give time, clock, step, epoch, or series:NAME for what the runs logged")
    if not 0 <= smoothing < 1:
        raise BadSetting(f"smoothing {smoothing:g}: give a weight from 0 to below 1, such as 0.9")
    there = sorted(
        {name for run in runs for name in store.names(run.id)}, key=lambda name: (title_of(name).place, name)
    )
    of_them = f"no run that was asked for ({len(runs):,})"
    if absent := [name for name in names if name not in there]:
        have = f"They have {listed(there, 6)}" if there else "They have none"
        raise BadSetting(f"{of_them} has a series {absent[0]!r}. {have}")
    chosen = names or [name for name in there if title_of(name).place < FOLDED][:_MOST_CHARTS]
    if not chosen:
        raise BadSetting(f"there is nothing to draw: {of_them} has a series that its page begins with; name one")
    if axis and axis not in there and axis != "step":
        raise BadSetting(f"{of_them} has logged {axis!r}: nothing can be drawn over it")
    series = [store.series(run.id, {*chosen, axis}.__contains__) for run in runs]
    charts: dict[str, dict[str, Any]] = {}
    for name in chosen:
        lines = [[line_over(name, each, asked, run.began)] for run, each in zip(runs, series, strict=True)]
        charts[name] = chart(lines, -math.inf, math.inf, _MOST_POINTS, smoothing)
    return charts_picture(charts, labels_of(runs), asked, log, columns)


def show(
    group: str,
    *names: str,
    over: str = "time",
    smoothing: float = 0.0,
    log: bool = False,
    store: str | Path | None = None,
) -> Picture:
    """Show charts of a run or of the runs of a group in a notebook, as the page draws them.

    Args:
        group: Name or id of a group, or id of a run.
        names: Series, a chart each; unless given, the first that a run's page shows.
        over: What the x axis has: ``"time"``, ``"clock"``, ``"step"``, ``"epoch"``, or ``"series:NAME"``.
        smoothing: Weight of what came before in a moving average, from 0 to below 1.
        log: Whether the y axes are logarithmic.
        store: Folder of the store; ``$PENSTOCK_STORE`` or the user's own, if None.

    Returns:
        A figure of matplotlib's, which a notebook shows; ``savefig`` writes it to a file.

    Raises:
        PackageMissing: matplotlib is not there.
        NoSuchRun: there is no such group or run.
        BadSetting: no run has a series of a name.
        StoreUnusable: there is no store in that folder.

    Examples:
        >>> penstock.show("my-sweep", "eval/loss", over="step", smoothing=0.9)  # doctest: +SKIP
    """
    require("penstock.show", "paper", "matplotlib")
    with Store.open(None if store is None else Path(store), to_read=True) as opened:
        runs = opened.named([group])
        return runs_picture(opened, runs, names, over=over, smoothing=smoothing, log=log, columns=2)
