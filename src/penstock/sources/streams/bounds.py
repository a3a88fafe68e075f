"""Where the cycles of a stream begin, as the trainers of a feed know it and the feed cuts it (decision 38).

Nothing is written down: each trainer that reads knows its own cycle and all later ones, keeps them in its state,
and brings them to the feeder that it starts on. Pure: a model of feeders and trainers in random histories drives
it (``tests/sources/streams/test_bounds.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import pairwise

from penstock.contracts import Bound, Column, Cursor, CycleBegin, Known


class StreamBounds:
    """What a feed knows of its stream's cycles.

    Some of it is fixed: where somebody has read, or the feed has opened a cycle. The rest is what trainers have
    heard of cycles of which nobody has had a row: it holds unless a trainer comes who has read otherwise.
    """

    def __init__(self) -> None:
        self._begins: dict[int, Bound] = {}  # by cycle, rising
        self._fixed: set[int] = set()  # cycles whose beginnings are
        self._records: dict[tuple[Bound, Bound], int] = {}  # between two bounds
        self.columns: tuple[Column, ...] = ()  # leaves of its rows
        self.news: tuple[CycleBegin, ...] = ()
        """What the newest trainer that was admitted has brought, which others must know, too."""

    def known(self, cycles: Iterable[CycleBegin]) -> Known:
        """Return these cycles, and the leaves of rows, as trainers are told of them."""
        return Known(cycles=tuple(cycles), columns=self.columns)

    def admit(self, at: Cursor, brings: Known) -> str:
        """Take over what a trainer knows that goes on at a place; return why it cannot, empty if it can."""
        known = brings.cycles
        before, self.news = self.since(0), ()
        theirs = {each.cycle: each.bound for each in known}
        needed = [at.cycle, at.cycle + 1] if at.sample else [at.cycle]
        read = {cycle: theirs[cycle] for cycle in needed if cycle in theirs}
        count = next((each.before for each in known if each.cycle == at.cycle + 1), -1)
        if at.sample and (len(read) < 2 or count < 0):  # else it may have come before the stream had begun
            return f"it does not know where cycle {at.cycle} begins and ends"
        if at.sample > max(0, count):
            return f"it has read {at.sample:,} of the {count:,} records of cycle {at.cycle}"
        for cycle, bound in read.items():
            if (other := self._against(cycle, bound, self._fixed)) is not None:
                return (
                    f"it has read a stream whose cycle {cycle} begins at {in_words(bound)}, and this feed's cycle "
                    f"{other} at {in_words(self._begins[other])}: both cannot have each record once. Share its "
                    "loader under another name"
                )
        for cycle, bound in read.items():
            while (other := self._against(cycle, bound, self._begins)) is not None:
                del self._begins[other]
            self._learn(cycle, bound)
        self._fixed.update(read)
        for one, other in pairwise(known):
            if other.cycle == one.cycle + 1 and other.before >= 0:
                self._records.setdefault((one.bound, other.bound), other.before)
        for cycle, bound in theirs.items():
            if cycle > at.cycle and self._against(cycle, bound, self._begins) is None:
                self._learn(cycle, bound)
        self.news = tuple(each for each in self.since(0) if each not in before)
        self.columns = self.columns or brings.columns
        return ""

    def begin(self, cycle: int) -> Bound | None:
        """Return where a cycle begins that is opened now; None while nothing is known.

        For who has read nothing, and knows nothing, the stream begins with what others know of.
        """
        if cycle not in self._begins and (ahead := self.ahead(cycle)):
            self._learn(cycle, ahead[0])
        if cycle in self._begins:
            self._fixed.add(cycle)
        return self._begins.get(cycle)

    def ahead(self, cycle: int) -> tuple[Bound, int, int] | None:
        """Return the next bound behind a cycle that is known, the cycles before it, and this one's records.

        The last is -1 while nobody knows.
        """
        behind = (
            (bound, each - cycle, self._before(each)) for each, bound in self._begins.items() if each > cycle
        )
        return next(behind, None)

    def fix(self, cycle: int, bound: Bound, before: int = -1) -> bool | None:
        """Fix where a cycle begins, and how many records the one before has, if that is known.

        Return whether that is news; None if it begins elsewhere by now.
        """
        if self._against(cycle, bound, self._begins) is not None:
            return None
        is_new = cycle not in self._begins
        self._learn(cycle, bound)
        self._fixed.add(cycle)
        if before >= 0 and (stretch := (self._begins.get(cycle - 1, bound), bound)) not in self._records:
            self._records[stretch], is_new = before, True
        return is_new

    def since(self, cycle: int) -> tuple[CycleBegin, ...]:
        """Return what a trainer must know whose epoch is this cycle."""
        known = ((each, bound) for each, bound in self._begins.items() if each >= cycle)
        return tuple(CycleBegin(each, bound, self._before(each)) for each, bound in known)

    def forget_before(self, cycle: int) -> None:
        """Forget the cycles before one, which nobody reads."""
        for each in [each for each in [*self._begins][:-1] if each < cycle]:
            del self._begins[each]
        self._fixed.intersection_update(self._begins)
        kept = {*self._begins.values()}
        self._records = {stretch: count for stretch, count in self._records.items() if stretch[0] in kept}

    def _against(self, cycle: int, bound: Bound, among: Collection[int]) -> int | None:
        """Return a cycle, among some, whose beginning contradicts one."""

        def agrees(other: int, there: Bound) -> bool:
            if other == cycle:
                return there == bound
            return there.is_before(bound) if other < cycle else bound.is_before(there)

        return next(
            (each for each, there in self._begins.items() if each in among and not agrees(each, there)), None
        )

    def _before(self, cycle: int) -> int:
        """Return how many records lie before a known beginning, in the cycle that ends there."""
        begin = self._begins.get(cycle - 1)
        return -1 if begin is None else self._records.get((begin, self._begins[cycle]), -1)

    def _learn(self, cycle: int, bound: Bound) -> None:
        self._begins = dict(sorted({**self._begins, cycle: bound}.items()))


def in_words(bound: Bound) -> str:
    """Describe a bound in a few words."""
    shown = [f"{part.name or f'partition {part.number}'} record {part.offset:,}" for part in bound.parts[:3]]
    if len(bound.parts) > len(shown):
        shown.append(f"{len(bound.parts) - len(shown):,} more")
    after = [f"the end of {bound.finished}"] if bound.finished else []
    return ", ".join([*after, *shown]) or "the beginning"
