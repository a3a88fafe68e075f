"""Whether runs gain by running together: groups of runs compared, in figures and in a sentence."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import msgspec

from penstock.errors import BadSetting
from penstock.runs.record import ENDED, RunRecord

Last = Callable[[RunRecord, str], "float | None"]
"""Returns the last value of a series of a run; None if it has no such series."""

_WORTH_SAYING = 0.05
"""A share of a run's time from which it is said."""


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What one run took.

    Attributes:
        seconds: From its start to its end.
        cpu_s: CPU time of its processes; None if it was not sampled.
        waited_s: Time that it waited for data; None if nobody recorded that.
    """

    id: str
    name: str
    status: str
    seconds: float
    cpu_s: float | None
    waited_s: float | None

    @property
    def waiting(self) -> float | None:
        """The part of its time that it waited for data."""
        return None if self.waited_s is None or not self.seconds else self.waited_s / self.seconds


class GroupFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a group took.

    Attributes:
        seconds: From the start of its first run to the end of its last.
        each_s: Median of its runs' seconds.
        cpu_s: CPU time of all its runs; None if one was not sampled.
    """

    id: str
    name: str
    mode: str
    runs: tuple[RunFigures, ...]
    seconds: float
    each_s: float
    cpu_s: float | None

    @property
    def finished(self) -> bool:
        return all(run.status == "finished" for run in self.runs)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Groups, the first of which the others are compared with.

    Attributes:
        sentences: What the figures say, in plain words.
    """

    groups: tuple[GroupFigures, ...]
    sentences: tuple[str, ...]


def compare(groups: Mapping[str, Sequence[RunRecord]], last: Last) -> Comparison:
    """Compare groups; a group of runs that ran one after the other comes first.

    Args:
        groups: The runs of each group, by its id.
        last: Looks series up.

    Raises:
        BadSetting: a run has not ended, so there is nothing to compare yet.
    """
    figures = sorted((_figures(runs, last) for runs in groups.values()), key=lambda group: group.mode != "alone")
    sentences: list[str] = []
    if len(figures) > 1:
        first, *others = figures
        sentences += [_against(first, other) for other in others]
    sentences += [sentence for group in figures for sentence in _waits(group)]
    return Comparison(groups=tuple(figures), sentences=tuple(sentences))


def _figures(runs: Sequence[RunRecord], last: Last) -> GroupFigures:
    for run in runs:
        if run.status not in ENDED or run.began is None or run.seconds is None:
            raise BadSetting(
                f"run {run.id} ({run.name!r} of group {run.group!r}) is {run.status}: compare groups whose runs "
                "have all been started and have ended. penstock runs ls shows them"
            )
    of_runs = tuple(
        RunFigures(
            id=run.id,
            name=run.name,
            status=run.status,
            seconds=run.seconds or 0.0,
            cpu_s=_most(last(run, "run.cpu_s"), last(run, "proc.cpu_s")),
            waited_s=last(run, "feed.wait_s"),
        )
        for run in runs
    )
    began = [run.began or 0.0 for run in runs]
    ended = [(run.began or 0.0) + (run.seconds or 0.0) for run in runs]
    cpu_s = [run.cpu_s for run in of_runs]
    return GroupFigures(
        id=runs[0].group_id,
        name=runs[0].group,
        mode=runs[0].mode,
        runs=of_runs,
        seconds=max(ended) - min(began),
        each_s=statistics.median(run.seconds for run in of_runs),
        cpu_s=None if None in cpu_s else math.fsum(each or 0.0 for each in cpu_s),
    )


def _most(*values: float | None) -> float | None:
    """Return the largest: CPU time as the keeper counted it lacks a feeder, as the sampler did the last second."""
    return max((value for value in values if value is not None), default=None)


def _against(first: GroupFigures, other: GroupFigures) -> str:
    if not (first.finished and other.finished):
        failed = sum(run.status != "finished" for group in (first, other) for run in group.runs)
        return f"{_called(first)} and {_called(other)} cannot be compared: {failed} of their runs did not finish."
    if len(first.runs) != len(other.runs):
        return (
            f"{_called(other)} has {len(other.runs)} runs and {_called(first)} {len(first.runs)}, so only the "
            f"times of single runs compare: {_times(other.each_s / first.each_s)} as long."
        )
    ratio = first.seconds / other.seconds
    sooner = f"finish {ratio:.2g} times sooner" if ratio >= 1 else f"finish {1 / ratio:.2g} times later"
    than = "than one after the other" if first.mode == "alone" else f"than {_called(first)}"
    text = f"{len(other.runs)} runs of {_called(other)} {sooner} {than}; each takes "
    text += f"{_times(other.each_s / first.each_s)} as long"
    if first.cpu_s and other.cpu_s:
        text += f", and all take {_times(other.cpu_s / first.cpu_s)} the CPU time"
    return text + "."


def _waits(group: GroupFigures) -> list[str]:
    waiting = [(run.waiting, run) for run in group.runs if run.waiting is not None]
    if not waiting:
        return []
    share, run = max(waiting, key=lambda each: each[0])
    if share < _WORTH_SAYING:
        return [f"No run of {_called(group)} waits for data more than {share:.0%} of its time."]
    return [f"In {_called(group)}, run {run.name!r} waits for data {share:.0%} of its time, the most of all."]


def _called(group: GroupFigures) -> str:
    return f"{group.name!r} ({group.mode})"


def _times(ratio: float) -> str:
    return f"{ratio:.2f} times"
