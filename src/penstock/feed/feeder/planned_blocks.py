"""What is wanted of each block: the samples of all trainers that will read it, fixed when it is planned."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from penstock.contracts import Cursor, Ids
from penstock.subsets.selection import Bitmap, Mask, union


class _Planned(NamedTuple):
    """A block that the source has planned: what it loads of it (None for all), and whether that is any."""

    at: Cursor
    end: Cursor
    wanted: Bitmap | None
    loads: bool


def covers(wanted: Bitmap | None, selected: Bitmap | None) -> bool:
    """Whether the samples wanted of a block include all that a trainer takes; None is all."""
    return wanted is None or (selected is not None and wanted.covers(selected))


class PlannedBlocks:
    """The blocks that a source has planned and not given yet, in order, and what it loads of each."""

    def __init__(self) -> None:
        self._planned: deque[_Planned] = deque()
        self._union: Bitmap | None = None

    def forget(self) -> None:
        """Forget the blocks planned: the source is opened anew."""
        self._planned.clear()

    def plan(self, at: Cursor, end: Cursor, ids: Ids, selections: Sequence[Bitmap | None]) -> Mask | None:
        """Note a block that is planned now; return which of its samples to load, None for all.

        ``selections`` are what its readers take, as far as they are known; if nobody reads, the last ones count.
        """
        known = [each for each in selections if each is not None]
        if len(known) < len(selections):
            self._union = None
        elif known:
            digests = frozenset[str]().union(*(each.digests for each in known))
            if self._union is None or self._union.digests != digests:
                self._union = union(known)
        mask = None if self._union is None else self._union.holds(ids)
        self._planned.append(_Planned(at, end, self._union, mask is None or bool(mask.any())))
        return mask

    def given(self, at: Cursor) -> Bitmap | None:
        """Return what was loaded of a block that the source gives now."""
        while self._planned and self._planned[0].at <= at:
            block = self._planned.popleft()
            if block.at == at:
                return block.wanted
        return None

    def covered_from(self, selected: Bitmap | None) -> Cursor | None:
        """Return where the last planned block that may lack a trainer's samples ends; None if none does.

        Blocks at the end that load nothing cost nothing to plan again, and do not count.
        """
        last = next((i for i, each in enumerate(reversed(self._planned)) if each.loads), 0)
        loading = islice(reversed(self._planned), last, None)
        return next((each.end for each in loading if not covers(each.wanted, selected)), None)
