"""Runs and groups as pictures: one way for the command, the page and notebooks."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from penstock.basics.packages import require
from penstock.basics.terminal import listed
from penstock.errors import BadSetting
from penstock.runs.record import RunRecord
from penstock.runs.store import Store
from penstock.web.charts import FOLDED, title_of
from penstock.web.lines import CLOCK, DEVIATION, axis_of, chart, line_over

if TYPE_CHECKING:
    from penstock.web.paper.draw import Picture

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
    means: bool = False,
) -> Picture:
    """Draw a chart of each series of these names; without names, of the first that a run's page shows.

    With ``means``, runs of one name, in groups of one name and mode, are one line: their mean, with its deviation.
    So are repeats of one command, ``train#0`` and ``train#1``.
    """
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
    of_line: dict[object, list[int]] = {}
    for at, run in enumerate(runs):
        of_line.setdefault(_pooled(run) if means else run.id, []).append(at)
    charts: dict[str, dict[str, Any]] = {}
    for name in chosen:
        its = [line_over(name, each, asked, run.began) for run, each in zip(runs, series, strict=True)]
        lines = [[its[at] for at in places] for places in of_line.values()]
        charts[name] = chart(lines, -math.inf, math.inf, _MOST_POINTS, smoothing, DEVIATION)
    first = labels_of([_of_all(runs[places[0]], len(places)) for places in of_line.values()])
    labels = [
        label if len(places) == 1 else f"{label}, mean of {len(places)}"
        for label, places in zip(first, of_line.values(), strict=True)
    ]
    return charts_picture(charts, labels, asked, log, columns)


_NUMBER = re.compile(r"#\d+$")


def _pooled(run: RunRecord) -> object:
    """Return what runs have in common that are one line: their names, or the plan of which they are repeats."""
    if not _NUMBER.search(run.name):
        return run.name, run.group, run.mode
    return run.group, run.mode, msgspec.json.encode(replace(run.plan, name=_NUMBER.sub("", run.plan.name)))


def _of_all(run: RunRecord, count: int) -> RunRecord:
    """Return a run under the name that ``count`` repeats have in common."""
    return run if count == 1 else replace(run, name=_NUMBER.sub("", run.name))


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
