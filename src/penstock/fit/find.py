"""Finds a setting: tries a script, and answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from rich.console import Group, RenderableType

from penstock.basics.results import results_table, short
from penstock.basics.sizes import size_text
from penstock.fit.answers import Answer, Limit, mostly_sleeps, of_batch_sizes, of_together, of_workers
from penstock.fit.search import Tried, batch_sizes, growing, smaller
from penstock.fit.trial import Trial
from penstock.fit.tries import TrialLog
from penstock.linux.cgroups import cores


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


_MOST_TOGETHER = 16
_WORKERS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


class Question(NamedTuple):
    """What can be found."""

    setting: str  # what varies
    option: str  # how a command may name it; empty where that has no place for it
    time_limit: str  # time for all trials
    find: Callable[[TrialLog, Limit], Answer]  # tries a script, and answers


def _batch_size(tries: TrialLog, limit: Limit) -> Answer:
    if tries.search(batch_sizes()) and (best := tries.tried.best):
        tries.search(smaller(tries.tried.good[0], best.samples_per_s))
    tries.confirm()
    return of_batch_sizes(tries.tried, limit, tries.cost)


def _workers(tries: TrialLog, _limit: Limit) -> Answer:
    tries.search(growing(_worker_counts(tries)))
    tries.confirm()
    return of_workers(tries.tried, cores(), tries.cost)


def _worker_counts(tries: TrialLog) -> Iterator[int]:
    """Yield numbers of workers up to twice the cores, and beyond while they mostly sleep."""
    for count in _WORKERS:
        if count > 2 * cores() + 2 and not mostly_sleeps(tries.tried.good[-1], cores()):
            return
        yield count


def _together(tries: TrialLog, limit: Limit) -> Answer:
    tries.search(growing([1]), copies=True)
    alone = next(iter(tries.tried.good), None)
    fit = int(limit.nbytes / alone.memory_bytes) if alone and alone.memory_bytes else _MOST_TOGETHER
    if alone:
        counts = range(2, min(fit, _MOST_TOGETHER) + 1)
        own, shared = (growing(counts, alone.samples_per_s, patience=1) for _ in range(2))
        tries.search(own, shared, copies=True)
    own, shared = (Tried([each for each in tries.tried.trials if each.share == share]) for share in (False, True))
    return of_together(own, shared, fit, limit, tries.cost)


QUESTIONS = {
    "batch-size": Question("batch size", "--batch-size", "3m", _batch_size),
    "workers": Question("workers", "--workers", "3m", _workers),
    "together": Question("together", "", "5m", _together),
}
