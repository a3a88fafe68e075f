"""What of each block is wanted: the samples of all trainers that will read it, fixed when it is planned."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from penstock.contracts import Cursor
from penstock.selection.bitmap import Bitmap, union


class _Planned(NamedTuple):
    """A block that the source is loading; ``wanted`` is what it loads of it, None for all."""

    at: Cursor
    end: Cursor
    wanted: Bitmap | None


def covers(wanted: Bitmap | None, selected: Bitmap | None) -> bool:
    """Whether what was wanted of a block is enough for a trainer that takes these samples; None is all."""
    return wanted is None or (selected is not None and wanted.covers(selected))


class Wanted:
    """The blocks that a source has planned and not given yet, in order, and what it loads of each."""

    def __init__(self) -> None:
        self._planned: deque[_Planned] = deque()
        self._union: Bitmap | None = None

    def forget(self) -> None:
        """Forget the blocks planned: the source is opened anew."""
        self._planned.clear()

    def plan(self, at: Cursor, end: Cursor, selections: Sequence[Bitmap | None]) -> Bitmap | None:
        """Note a block that is planned now; return what to load of it.

        Args:
            at: Its first position.
            end: The position after it.
            selections: What its readers take, as far as they are known; if nobody reads, the last ones count.
        """
        known = [each for each in selections if each is not None]
        if len(known) < len(selections):
            self._union = None
        elif known:
            digests = frozenset[str]().union(*(each.digests for each in known))
            if self._union is None or self._union.digests != digests:
                self._union = union(known)
        self._planned.append(_Planned(at, end, self._union))
        return self._union

    def given(self, at: Cursor) -> Bitmap | None:
        """Return what was loaded of a block that the source gives now."""
        while self._planned and self._planned[0].at <= at:
            block = self._planned.popleft()
            if block.at == at:
                return block.wanted
        return None

    def covered_from(self, selected: Bitmap | None) -> Cursor | None:
        """Return where the last planned block ends that may lack samples of a trainer's; None if none does."""
        return next((each.end for each in reversed(self._planned) if not covers(each.wanted, selected)), None)
