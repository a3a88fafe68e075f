"""Answers as people see them: a table, sentences and a picture."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType

from penstock.basics.sizes import size_text
from penstock.bench.experiment import results_table, short
from penstock.bench.picture import AFTER, BEFORE, Curve, Mark, Panel, series_picture
from penstock.fit.answers import Answer, Limit


def shown(answer: Answer, setting: str) -> RenderableType:
    """Return the table of what was tried, and the answer."""
    table = results_table(setting, "samples/s", "waits", "memory", "first batch s", "")
    rows = [(each.value, each.share, each, "") for each in answer.trials]
    rows += [(value, False, None, why) for value, why in answer.failed.items() if value not in _good(answer)]
    for value, share, trial, why in sorted(rows, key=lambda row: (row[1], row[0])):
        name = f"{value:,}{' shared' * share}"
        if trial is None:
            table.add_row(name, "", "", "", "", why)
            continue
        memory = size_text(trial.memory_bytes) if trial.memory_bytes else ""
        mark = "←" if (value, share) == (answer.chosen, answer.share) else ""
        table.add_row(name, short(trial.samples_per_s), f"{trial.waiting:.0%}", memory, short(trial.first_s), mark)
    return Group(table, "", *answer.sentences)


def picture(answer: Answer, setting: str, script: str, limit: Limit | None) -> Any:
    """Draw throughput, and of batch sizes memory, against the setting."""
    logarithmic = setting == "batch size"
    arms = [(script, False, AFTER)]
    if setting == "together":
        arms = [("loaders of their own", False, BEFORE), ("one shared feed", True, AFTER)]
    curves = [
        Curve(name, color, [Mark(each.value, each.samples_per_s) for each in found])
        for name, share, color in arms
        if (found := [each for each in answer.trials if each.share == share])
    ]
    counts = () if logarithmic else sorted({each.value for each in answer.trials})
    varies = "trainings at once" if setting == "together" else setting
    panels = [Panel("samples a second", curves, varies, "", log=logarithmic, counts=counts)]
    taken = [each for each in answer.trials if each.memory_bytes]
    if limit is not None and taken:
        marks = [Mark(each.value, each.memory_bytes / 2**20) for each in taken]
        panels.append(Panel("memory, MiB", [Curve(script, AFTER, marks)], varies, "", log=logarithmic))
    return series_picture(f"{script}: {varies}", answer.sentences[0], panels, columns=2)


def _good(answer: Answer) -> set[int]:
    return {each.value for each in answer.trials}
