"""``penstock runs show``: all that is known of runs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.basics.terminal import printable, printable_lines
from penstock.cli.command import plain_table
from penstock.cli.runs_table import began_text, figure_text, parts_table, status_text
from penstock.runs.compare import RunAdvice, group_figures
from penstock.runs.figures import RunFigures, newest_values
from penstock.runs.record import RunRecord
from penstock.runs.store import Series, Store
from penstock.runs.store.columns import Floats


class RunFacts(NamedTuple):
    """What is known of a run."""

    run: RunRecord
    folder: Path  # where its files are
    environment: Mapping[str, Any] | None  # what it ran on; None if it never began
    series: Mapping[str, Mapping[str, float]]  # of each the last value, the mean, and how many points it has
    damage: str  # what is gone of its series, in a sentence; "" for nothing
    figures: RunFigures
    advice: RunAdvice | None

    def fields(self) -> dict[str, Any]:
        """Return what JSON has of it."""
        return {
            **self.run.fields,
            "plan": self.run.plan,
            "parameters": self.run.parameters,
            "environment": self.environment,
            "series": self.series,
            "damage": self.damage,
            "parts": self.figures.parts,
            "advice": self.advice.text if self.advice else "",
            "folder": str(self.folder),
        }


def facts_of(store: Store, runs: Sequence[RunRecord]) -> list[RunFacts]:
    """Return what is known of runs; what they took is told beside the runs of their groups that have begun."""
    found: dict[str, RunFacts] = {}
    summaries: dict[str, dict[str, dict[str, float]]] = {run.id: {} for run in runs}

    def series(run: RunRecord) -> dict[str, Series]:
        its = store.series(run.id)
        if run.id in summaries:
            summaries[run.id] = {name: _summary(newest_values(name, its)) for name in sorted(its)}
        return its

    for group in dict.fromkeys(run.group_id for run in runs):
        begun = [run for run in store.runs(group) if run.began is not None]
        waiting = [[run] for run in runs if run.group_id == group and run.began is None]
        for beside in filter(None, [begun, *waiting]):
            together = group_figures(beside, series)
            for run, figures in zip(beside, together.runs, strict=True):
                if run.id in summaries:
                    place = store.folder_of(run.id), store.environment(run.id)
                    told = summaries[run.id], store.damage(run.id), figures, together.advice.get(run.id)
                    found[run.id] = RunFacts(run, *place, *told)
    return [found[run.id] for run in runs]


def run_pages(runs: Sequence[RunFacts]) -> RenderableType:
    """Show all that is known of runs, one below the other."""
    return Group(*(line for known in runs for line in (Text(), _page(known))[known is runs[0] :]))


def _page(known: RunFacts) -> RenderableType:
    run, figures = known.run, known.figures
    facts = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")
    exit_code = "" if run.exit_code is None else f", exit code {run.exit_code}"
    facts.add_row("run", f"{run.id}, {printable(run.name)} of {printable(run.group)} ({printable(run.mode)})")
    facts.add_row(
        "status", Text.assemble(status_text(run), exit_code, f": {printable(run.reason)}" if run.reason else "")
    )
    if run.began is not None:
        facts.add_row("began", f"{began_text(run)}, {run.seconds or 0:,.1f} s")
    for name, text in (("tags", " ".join(run.tags)), ("note", run.note)):
        if text:
            facts.add_row(name, printable_lines(text))
    facts.add_row("command", printable(shlex.join(run.plan.command)))
    facts.add_row("in", printable(run.plan.directory))
    for name, value in run.parameters.items():
        facts.add_row(printable(name), printable(value))
    facts.add_row("kept in", printable(str(known.folder)))
    for name, value in (known.environment or {}).items():
        if value and name not in {"command", "directory"}:
            text = ", ".join(value) if name == "code" else value if isinstance(value, str) else json.dumps(value)
            shown = printable(text)
            facts.add_row(printable(name), shown if len(shown) <= 300 else f"{shown[:300]}… (--json has all)")
    if known.damage:
        facts.add_row("damaged", Text(printable(known.damage), "bold red"))
    if figures.parts.waiting is not None:
        facts.add_row("its time", parts_table([(run.group, figures)]))
    if known.advice:
        facts.add_row("", Text(printable(f"It {known.advice.text}."), "bold green"))
    if not known.series:
        return facts
    table = plain_table("\nseries", "last", "mean", "points")
    for name, each in known.series.items():
        table.add_row(
            printable(name), figure_text(each["last"], 6), figure_text(each["mean"], 6), f"{each['points']:,}"
        )
    return Group(facts, table)


@np.errstate(invalid="ignore")  # infinity less infinity
def _summary(values: Floats) -> dict[str, float]:
    return {"last": float(values[-1]), "mean": float(values.mean()), "points": len(values)}
