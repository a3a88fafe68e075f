"""How fast runs go, and whether that is what the plan's model expects."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from penstock.schedule.estimates import UsageSpan
from penstock.schedule.jobs import GpuMachine
from penstock.schedule.partition import Sharing, rates_together
from penstock.schedule.rates import Placed
from penstock.schedule.usage import Usage, costs

SETTLED_S = 10.0
"""Seconds of training beside the same others, after which figures of a run are believed."""
WINDOW_S = 58.0
"""Seconds for which two must have been slower together."""
_KEPT_S = 60.0
_OFF = 0.15
"""A rate that differs by more than this part from the model's changes the plan."""
_SLOWER = 0.95
"""Pairs that reach less than this part of their sequential progress are not placed together again."""


class UsageWindow:
    """The looks at one run that goes on."""

    def __init__(self) -> None:
        self.first: Usage | None = None  # the first look that saw samples
        self.newest: Usage | None = None  # the newest look
        self.expected: float | None = None  # samples a second that the model expects; None before it trains
        self._looks: deque[Usage] = deque()
        self._all: deque[Usage] = deque(maxlen=round(_KEPT_S))  # whoever was beside it

    def add(self, look: Usage) -> None:
        """Take a look; it tells nothing of training if no sample has come since the last."""
        self.newest = look
        if self._all and look.of != self._all[-1].of:
            self.first = None
            self._looks.clear()
            self._all.clear()
        if look.samples <= (self._all[-1].samples if self._all else 0.0):
            return
        if self.first is None:
            self.first = look
        self._looks.append(look)
        self._all.append(look)
        while look.time_s - self._looks[0].time_s > _KEPT_S:
            self._looks.popleft()

    def begin_anew(self) -> None:
        """Forget the looks: others have come or gone."""
        while len(self._looks) > 1:
            self._looks.popleft()

    def seen(self, least_s: float = SETTLED_S) -> UsageSpan | None:
        """Return what was seen of it beside the same others; None if that is too little."""
        return self._seen(self._looks, least_s)

    def in_all(self) -> UsageSpan | None:
        """Return what was seen of one that has ended, whoever was beside it: where a feed was read, of that."""
        fed = [look for look in self._all if look.feed]
        of_feed = [look for look in fed if look.feed and fed[-1].feed and look.feed.pid == fed[-1].feed.pid]
        return self._seen(of_feed or self._all, 1.0)

    def _seen(self, looks: Sequence[Usage], least_s: float) -> UsageSpan | None:
        if self.first is None or len(looks) < 2 or looks[-1].time_s - looks[0].time_s < least_s:
            return None
        return UsageSpan(self.first, looks[-1], costs(looks[0], looks[-1]))

    def is_off(self) -> bool:
        """Whether its rate is not the model's."""
        seen = self.seen()
        return bool(seen and self.expected and abs(seen.costs.samples_per_s / self.expected - 1) > _OFF)


def slower_together(
    watched: Mapping[str, UsageWindow],  # the looks at runs, by name
    placed: Sequence[Placed],  # the runs that train
    left: Mapping[str, float],  # samples that each has yet to train on
    machine: GpuMachine,
    sharing: Sharing,  # how feeds are shared
) -> list[tuple[str, str]]:
    """Name pairs on one GPU that would be faster one after the other, everything else being as it is."""
    found = list[tuple[str, str]]()
    for number, one in enumerate(placed):
        for other in placed[number + 1 :]:
            if {*one.gpus}.isdisjoint(other.gpus):
                continue
            progress = 0.0
            for run, partner in ((one, other), (other, one)):
                seen = watched[run.job.name].seen(WINDOW_S)
                rest = [each for each in placed if each is not partner]
                rates, _, _ = rates_together(rest, [left[each.job.name] for each in rest], 0, machine, sharing)
                alone = rates[rest.index(run)]
                progress += seen.costs.samples_per_s / alone if seen and alone > 0 else 1.0
            if progress < _SLOWER:
                found.append((one.job.name, other.job.name))
    return found
