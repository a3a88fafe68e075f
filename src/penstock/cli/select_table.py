"""Scores, and what they cost, as tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from penstock.basics.terminal import printable
from penstock.cli.command import counted, plain_table
from penstock.select.choices import overlap, top
from penstock.select.identity import ScoresHeader
from penstock.select.savings import ESTIMATED_WH, RunsCost, balances
from penstock.select.scores import Scores

_BINS = 8
_BAR = 24
_FRACTIONS = (0.1, 0.25, 0.5)


def scores_page(scores: Scores) -> Group:
    """Show a header, and a histogram for each target."""
    header = scores.header
    asked = header.asked
    checkpoint = f", by parameters {header.checkpoint}" if header.checkpoint else ""
    energy = "" if header.cost.wh is None else f", {header.cost.wh:.3g} Wh"
    lines = [
        Text.assemble(
            (header.method, "bold cyan"),
            f" (version {header.method_version}{', ' if asked else ''}{asked}), seed {header.seed}; "
            f"{header.direction} scores are worth more",
        ),
        Text(f"{len(scores):,} of {header.data.samples:,} samples{checkpoint}"),
        Text(
            f"cost {header.cost.seconds:,.1f} s, {header.cost.cpu_s:,.1f} CPU-seconds{energy}, on "
            f"{', '.join(header.machine.gpus) or header.machine.cpu}, {header.machine.date[:10]}"
        ),
    ]
    targets = header.targets or ("",)
    return Group(*lines, *(_histogram(name, scores.values[:, i]) for i, name in enumerate(targets)))


def comparison_table(names: Sequence[str], scores: Sequence[Scores]) -> Table:
    """Show the rank correlation and the overlaps of each pair of scores, over all targets."""
    overlaps = (f"top {fraction:.0%} in both" for fraction in _FRACTIONS)
    table = plain_table("scores", "rank correlation", *overlaps)
    worths = [_ranks(each.worth.max(1)) for each in scores]
    for i, one in enumerate(scores):
        for j in range(i + 1, len(scores)):
            both = [f"{overlap(top(one, part), top(scores[j], part)):.0%}" for part in _FRACTIONS]
            correlation = np.corrcoef(worths[i], worths[j])[0, 1]
            table.add_row(printable(f"{names[i]}, {names[j]}"), f"{correlation:.2f}", *both)
    return table


def cost_page(header: ScoresHeader, full: RunsCost, selected: RunsCost, metric: str, watts: float) -> Group:
    """Show the cost of scoring and of runs, after how many runs it has paid, and the metric reached."""
    table = plain_table("", "scoring", "a run on all", "a run on the selection", "has paid after")
    measures = balances(header.cost, full, selected, watts)
    for unit, balance in measures.items():
        paid = "never" if balance.pays_after is None else counted(balance.pays_after, "run")
        table.add_row(unit, *(f"{each:,.3g}" for each in (balance.scoring, balance.full, balance.selected)), paid)
    lines = [
        Text(f"{metric}: {_reached(full, metric)} on all samples, {_reached(selected, metric)} on the selection")
    ]
    if ESTIMATED_WH in measures:
        lines.append(Text(f"Wh are CPU-seconds at {watts:g} W: no counter could be read.", "dim"))
    return Group(table, *lines)


def _reached(cost: RunsCost, metric: str) -> str:
    if not (values := cost.logged.get(metric)):
        return "not logged" + (f" (there are {', '.join(cost.logged)}: --metric)" if cost.logged else "")
    return f"{np.median(values):.4g} ({values[0]:.4g} to {values[-1]:.4g}, {counted(len(values), 'run')})"


def _histogram(name: str, values: np.ndarray) -> Table:
    counts, edges = np.histogram(values, _BINS)
    table = Table(box=None, pad_edge=False, show_header=bool(name), header_style="dim")
    table.add_column(printable(name), justify="right")
    table.add_column("")
    for count, low, high in zip(counts.tolist(), edges[:-1], edges[1:], strict=True):
        bar = "█" * round(_BAR * count / max(1, counts.max()))
        table.add_row(f"{low:.3g} to {high:.3g}", f"{bar} {count:,}")
    return table


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of each value, from 0; equal values share their mean rank."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[places]
