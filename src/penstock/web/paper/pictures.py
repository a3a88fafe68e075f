"""Runs and groups as pictures: one way for the command, the page and notebooks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.basics.packages import require
from penstock.basics.terminal import listed
from penstock.errors import BadSetting
from penstock.runs.compare import GroupFigures
from penstock.runs.record import RunRecord
from penstock.runs.store import Series, Store
from penstock.web.lines import CLOCK, axis_of, chart, line_over
from penstock.web.paper.panels import NOTE, names_of, panels_of
from penstock.web.titles import FOLDED, title_of

if TYPE_CHECKING:
    from penstock.web.paper.draw import Picture

KINDS = ("pdf", "svg", "png")
MOST_POINTS = 2000
_MOST_CHARTS = 6


def needs_matplotlib(what: str) -> None:
    """Check that pictures can be drawn.

    Raises:
        PackageMissing: matplotlib is not there.
    """
    require(what, "paper", "matplotlib")


def labels_of(runs: Sequence[RunRecord]) -> list[str]:
    """Return what runs are called beside each other: their names, with groups and ids where they need them."""
    names = [run.name for run in runs]
    if len(set(names)) < len(runs):
        names = [f"{run.name} of {run.group} ({run.mode})" for run in runs]
    return [
        name if names.count(name) == 1 else f"{run.name} {run.id}" for name, run in zip(names, runs, strict=True)
    ]


def chart_picture(
    drawn: Mapping[str, dict[str, Any]],
    labels: Sequence[str],
    over: str,
    log: bool,
    columns: int,
    span: tuple[float, float] = (-math.inf, math.inf),
) -> Picture:
    """Draw charts.

    Args:
        drawn: What ``penstock.web.lines.chart`` returns, by the name of the series.
        labels: Names of the lines.
        over: What the x axis has, as ``penstock.web.lines.line_over`` takes it.
        log: Whether the y axes are logarithmic.
        columns: Columns of a page that the picture takes: 1 or 2.
        span: First and last place of the x axis.
    """
    from penstock.web.paper.draw import Chart, charts_picture

    axis = axis_of(over) or ("time of day (UTC)" if over == CLOCK else "time (s)")
    charts = [
        Chart(title.text, title.unit, labels, each, axis, span, over == CLOCK, log)
        for title, each in ((title_of(name), each) for name, each in drawn.items())
    ]
    return charts_picture(charts, columns)


def groups_picture(groups: Sequence[GroupFigures], columns: int) -> tuple[Picture, list[str]]:
    """Draw groups beside each other; return the picture, and sentences that say what is missing in it.

    Raises:
        BadSetting: nothing was recorded of any group.
    """
    from penstock.web.paper.draw import bars_picture

    panels, missing = panels_of(groups)
    if not panels:
        raise BadSetting("there is nothing to draw: no group has an epoch, samples, CPU time, energy or memory")
    for group in groups:
        if failed := sum(run.status != "finished" for run in group.runs):
            missing.append(f"{failed} of {len(group.runs)} runs of {group.name!r} ({group.mode}) did not finish")
    return bars_picture(panels, names_of(groups), NOTE, columns), missing


def parts_of_groups(groups: Sequence[GroupFigures], columns: int) -> Picture:
    """Draw where the time of each run of some groups goes."""
    from penstock.web.paper.draw import parts_picture

    names = dict(zip([group.id for group in groups], names_of(groups), strict=True))
    several = len(groups) > 1
    runs = [
        (f"{run.name}, {names[group.id]}" if several else run.name, run) for group in groups for run in group.runs
    ]
    return parts_picture(runs, columns)


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
    """Draw a chart of each series of these names; without names, of the first that a run's page shows.

    Raises:
        BadSetting: no run has a series of a name, or any series.
    """
    there = sorted(
        {name for run in runs for name in store.names(run.id)}, key=lambda name: (title_of(name).place, name)
    )
    if absent := [name for name in names if name not in there]:
        have = f"They have {listed(there, 6)}" if there else "They have none"
        raise BadSetting(f"no run that was asked for ({len(runs):,}) has a series {absent[0]!r}. {have}")
    chosen = names or [name for name in there if title_of(name).place < FOLDED][:_MOST_CHARTS]
    if not chosen:
        raise BadSetting("there is nothing to draw: no run has a series that its page begins with; name one")
    axis = axis_of(over)
    if axis and axis not in there and axis != "step":
        raise BadSetting(
            f"no run that was asked for ({len(runs):,}) has logged {axis!r}: nothing can be drawn over it"
        )
    wanted = {*chosen, axis}.__contains__
    series = [store.series(run.id, wanted) for run in runs]
    drawn = {name: _chart(name, runs, series, over, smoothing) for name in chosen}
    return chart_picture(drawn, labels_of(runs), over, log, columns)


def _chart(
    name: str, runs: Iterable[RunRecord], series: Iterable[Mapping[str, Series]], over: str, smoothing: float
) -> dict[str, Any]:
    lines = [line_over(name, each, over, run.began) for run, each in zip(runs, series, strict=True)]
    return chart(lines, -math.inf, math.inf, MOST_POINTS, smoothing)


def over_of(word: str) -> str:
    """Return what the x axis has from what people call it: time, clock, step, epoch, or series:NAME.

    Raises:
        BadSetting: it is none of these.
    """
    known = {"time": "", CLOCK: CLOCK, "step": "series:step", "epoch": "series:epoch"}
    if word not in known and not axis_of(word):
        raise BadSetting(f"over {word!r}: give time, clock, step, epoch, or series:NAME for what the runs logged")
    return known.get(word, word)


def checked_smoothing(weight: float) -> float:
    """Return the weight of a moving average, if it is one.

    Raises:
        BadSetting: it is not from 0 to below 1.
    """
    if not 0 <= weight < 1:
        raise BadSetting(f"smoothing {weight:g}: give a weight from 0 to below 1, such as 0.9")
    return weight


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
    needs_matplotlib("penstock.show")
    x = over_of(over)
    with Store.open(None if store is None else Path(store), to_read=True) as opened:
        runs = opened.named([group])
        weight = checked_smoothing(smoothing)
        return runs_picture(opened, runs, names, over=x, smoothing=weight, log=log, columns=2)
