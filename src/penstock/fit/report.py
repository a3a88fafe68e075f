"""Answers as people see them: a table, sentences and a picture."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType

from penstock.basics.results import results_table, short
from penstock.basics.sizes import size_text
from penstock.fit.answers import Answer
from penstock.fit.trial import Trial


def shown(answer: Answer, setting: str) -> RenderableType:
    """Return the table of what was tried, and the answer."""
    table = results_table(setting, "samples/s", "waits", "memory", "first batch s", "")
    for each in sorted([*answer.trials, *answer.failed], key=lambda each: (each.share, each.value)):
        memory = size_text(each.memory_bytes) if each.memory_bytes else ""
        if each.failed:
            table.add_row(each.name, "failed", "", memory, "", "")
            continue
        mark = "←" if (each.value, each.share) == (answer.chosen, answer.share) else ""
        table.add_row(
            each.name, short(each.samples_per_s), f"{each.waiting:.0%}", memory, short(each.first_s), mark
        )
    return Group(table, "", *answer.sentences)


def picture(answer: Answer, setting: str, script: str) -> Any:
    """Draw throughput, and of batch sizes memory, against the setting."""
    from penstock.basics.pictures import AFTER, BEFORE, Curve, Mark, Panel, series_picture

    def mark(each: Trial, height: float) -> Mark:
        is_chosen = (each.value, each.share) == (answer.chosen, answer.share)
        return Mark(each.value, height, f"{each.value:,}: take this" if is_chosen else "")

    logarithmic = setting == "batch size"
    arms = [(script, False, AFTER)]
    if setting == "together":
        arms = [("loaders of their own", False, BEFORE), ("one shared feed", True, AFTER)]
    curves = [
        Curve(name, color, [mark(each, each.samples_per_s) for each in found])
        for name, share, color in arms
        if (found := [each for each in answer.trials if each.share == share])
    ]
    counts = sorted({each.value for each in answer.trials})
    varies = "trainings at once" if setting == "together" else setting
    panels = [Panel("samples a second", curves, varies, "", log=logarithmic, counts=counts)]
    taken = [each for each in answer.trials if each.memory_bytes]
    if logarithmic and taken:
        marks = [mark(each, each.memory_bytes / 1e6) for each in taken]
        memory = [Curve(script, AFTER, marks)]
        panels.append(Panel("memory, MB", memory, varies, "", log=logarithmic, counts=counts))
    return series_picture(f"{script}: {varies}", answer.sentences[0], panels, columns=2)
