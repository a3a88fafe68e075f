"""Where the cycles of a stream begin, as the trainers of a feed know it and the feed cuts it (decision 38).

Nothing is written down: each trainer that reads knows its own cycle and all later ones, keeps them in its state,
and brings them to the feeder that it starts on. Pure: a model of feeders and trainers in random histories drives
it (``tests/sources/streams/test_bounds.py``).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence

from penstock.contracts import Bound, Cursor, CycleBegin


class StreamBounds:
    """What a feed knows of its stream's cycles.

    Some of it is fixed: where somebody has read, or the feed has opened a cycle. The rest is what trainers have
    heard of cycles of which nobody has had a row: it holds unless a trainer comes who has read otherwise.
    """

    def __init__(self) -> None:
        self._begins: list[CycleBegin] = []  # rising
        self._fixed: set[int] = set()  # cycles whose beginnings are

    def admit(self, at: Cursor, known: Sequence[CycleBegin]) -> str:
        """Take over what a trainer knows that goes on at a place; return why it cannot, empty if it can."""
        theirs = {each.cycle: each for each in known}
        begin, end = theirs.get(at.cycle), theirs.get(at.cycle + 1)
        if at.sample and (begin is None or end is None or begin.records < 0):
            return f"it does not know where cycle {at.cycle} begins and ends"
        if begin is not None and at.sample > max(0, begin.records):
            return f"it has read {at.sample:,} of the {begin.records:,} records of cycle {at.cycle}"
        read = [begin] if begin is not None else []  # without it, it came before the stream had begun
        read = [*read, end] if at.sample and end is not None else [each._replace(records=-1) for each in read]
        for each in read:
            if (other := self._against(each, self._fixed)) is not None:
                return (
                    f"it has read a stream whose cycle {each.cycle} begins at {in_words(each.bound)}, and this "
                    f"feed's cycle {other.cycle} at {in_words(other.bound)}: both cannot have each record once. "
                    "Share its loader under another name"
                )
        for each in read:
            while (other := self._against(each, {one.cycle for one in self._begins})) is not None:
                self._forget(other)
        self.fix(*read)
        for each in known:
            if each.cycle > at.cycle and self._against(each, {one.cycle for one in self._begins}) is None:
                self._learn(each)
        return ""

    def begin(self, cycle: int) -> Bound | None:
        """Return where a cycle begins that is opened now; None while nothing is known.

        For who has read nothing, and knows nothing, the stream begins with what others know of.
        """
        if self._at(cycle) is None and (ahead := self.ahead(cycle)) is not None:
            self._learn(CycleBegin(cycle, ahead[0]))
        found = self._at(cycle)
        if found is not None:
            self._fixed.add(cycle)
        return found and found.bound

    def end(self, cycle: int) -> tuple[Bound, int] | None:
        """Return where a cycle ends, and how many records it has; None while both are not known."""
        begin, end = self._at(cycle), self._at(cycle + 1)
        return None if begin is None or end is None or begin.records < 0 else (end.bound, begin.records)

    def ahead(self, cycle: int) -> tuple[Bound, int] | None:
        """Return the next bound behind a cycle that is known, and how many cycles lie before it, with this one."""
        i = bisect_right(self._begins, cycle, key=lambda each: each.cycle)
        return (self._begins[i].bound, self._begins[i].cycle - cycle) if i < len(self._begins) else None

    def fix(self, *begins: CycleBegin) -> bool | None:
        """Fix where cycles begin, and the length of those of which it is known.

        Return whether that is news; None if one begins elsewhere by now.
        """
        known = {each.cycle for each in self._begins}
        if any(self._against(each, known) is not None for each in begins):
            return None
        before = [*self._begins]
        for each in begins:
            self._learn(each)
            self._fixed.add(each.cycle)
        return before != self._begins

    def since(self, cycle: int) -> tuple[CycleBegin, ...]:
        """Return what a trainer must know whose epoch is this cycle."""
        return tuple(each for each in self._begins if each.cycle >= cycle)

    def forget_before(self, cycle: int) -> None:
        """Forget the cycles before one, which nobody reads."""
        for each in [each for each in self._begins[:-1] if each.cycle < cycle]:
            self._forget(each)

    def _at(self, cycle: int) -> CycleBegin | None:
        return next((each for each in self._begins if each.cycle == cycle), None)

    def _against(self, new: CycleBegin, among: set[int]) -> CycleBegin | None:
        """Return one of what is known, among some cycles, that contradicts a beginning."""

        def agrees(one: CycleBegin) -> bool:
            if one.cycle == new.cycle:
                return one.bound == new.bound and (one.records == new.records or min(one.records, new.records) < 0)
            first, second = (one, new) if one.cycle < new.cycle else (new, one)
            return first.bound.is_before(second.bound)

        return next((one for one in self._begins if one.cycle in among and not agrees(one)), None)

    def _learn(self, new: CycleBegin) -> None:
        old = self._at(new.cycle)
        if old is not None:
            self._begins.remove(old)
            new = new._replace(records=max(old.records, new.records))
        insort(self._begins, new, key=lambda each: each.cycle)

    def _forget(self, old: CycleBegin) -> None:
        """Forget where a cycle begins, and the length of the one that ends there."""
        self._begins.remove(old)
        self._fixed.discard(old.cycle)
        before = self._at(old.cycle - 1)
        if before is not None:
            self._begins[self._begins.index(before)] = before._replace(records=-1)


def in_words(bound: Bound) -> str:
    """Describe a bound in a few words."""
    shown = [f"{part.name or f'partition {part.number}'} record {part.offset:,}" for part in bound.parts[:3]]
    if len(bound.parts) > len(shown):
        shown.append(f"{len(bound.parts) - len(shown):,} more")
    after = [f"the end of {bound.finished}"] if bound.finished else []
    return ", ".join([*after, *shown]) or "the beginning"
