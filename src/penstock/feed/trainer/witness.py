"""Whether the feed's samples are those that this process's own data set makes."""

from __future__ import annotations

import time
from typing import NamedTuple

from penstock.feed import wire
from penstock.feed.trainer.connection import FeedConnection
from penstock.fingerprint.batch import STRUCTURE, Leaf, difference, twice
from penstock.fingerprint.making import LIMIT_S, LeavesOf, Making


class Finding(NamedTuple):
    """What a comparison has found; nothing if the samples are the same.

    Attributes:
        differs: Which sample differs, and in which leaf.
        unproved: Why there is no telling.
        random: Leaves that come out another each time, and so are not compared.
        cpu_s: CPU time of this process's child.
    """

    differs: str = ""
    unproved: str = ""
    cpu_s: float = 0.0
    random: str = ""


class SampleComparison:
    """Compares what this process's own data set makes of a few samples with what the feeder's does.

    Either makes them in a child of its own, and twice; only what comes out alike in each of them is compared.
    Random images so have labels that are.

    Args:
        connection: The feed.
        number: Which samples: the feeder chooses some for each number.
        leaves_of: Makes samples, in a child.
        most_made_s: Compare only if the feed's ``make_loader`` took less time.
    """

    def __init__(
        self, connection: FeedConnection, number: int, leaves_of: LeavesOf, most_made_s: float = float("inf")
    ) -> None:
        self._connection = connection
        self._number = number
        self._leaves_of = leaves_of
        self._most_made_s = most_made_s
        self._making: Making | None = None
        self._began_s = time.monotonic()
        connection.ask_witness(number)

    def finding(self, *, wait: bool) -> Finding | None:
        """Return what has been found; None if that takes longer, unless it is to be waited for.

        It is given up 2 s after it began, or when the feeder is gone.
        """
        try:
            found = self._found(wait=wait)
        except BaseException:
            self.close()
            raise
        if found is None and time.monotonic() - self._began_s > LIMIT_S:
            found = Finding(unproved=f"making its samples took over {LIMIT_S:g} s")
        elif found is None and wait:
            found = Finding(unproved="the feeder is gone")
        if found is not None:
            self.close()
        return found

    def close(self) -> None:
        """Give it up."""
        if self._making is not None:
            self._making.close()

    def _found(self, *, wait: bool) -> Finding | None:
        theirs = self._connection.witness(self._number, self._left_s(wait), complete=False)
        if theirs is None:
            return None
        if theirs.why:
            return Finding(unproved=f"in the feeder, {theirs.why}")
        if theirs.made_s >= self._most_made_s:
            return Finding(unproved=f"make_loader took {theirs.made_s:.1f} s")
        if self._making is None:
            self._making = Making(self._leaves_of, theirs.ids)
        mine = self._making.result(self._left_s(wait))
        if mine is None:
            return None
        if isinstance(mine, str):
            return Finding(unproved=f"here, {mine}", cpu_s=self._making.cpu_s)
        theirs = self._connection.witness(self._number, self._left_s(wait), complete=True)
        return None if theirs is None else self._compared(mine, theirs, self._making)

    def _compared(self, mine: tuple[Leaf, ...], theirs: wire.Witness, making: Making) -> Finding:
        """Compare what both have made; what differs is made once more, in another child, if that can be."""
        if theirs.leaves is None:
            return Finding(unproved=f"in the feeder, {theirs.why}", cpu_s=making.cpu_s)
        here, there = ({leaf.name for leaf in each if leaf.repeats} for each in (mine, theirs.leaves))
        if not here & there - {STRUCTURE}:
            return Finding(unproved="its data set makes nothing twice alike", cpu_s=making.cpu_s)
        if difference(mine, theirs.leaves):
            self._making = Making(self._leaves_of, theirs.ids)
            again = self._making.result(LIMIT_S)
            if isinstance(again, tuple):
                mine = twice(mine, again)
        if found := difference(mine, theirs.leaves):
            return Finding(f"of sample {theirs.ids[found[1]]:,}, {found[0]} differs", cpu_s=making.cpu_s)
        random = sorted({leaf.name for leaf in mine} - (here & there))
        return Finding(cpu_s=making.cpu_s, random=", ".join(random)[:200])

    def _left_s(self, wait: bool) -> float:
        return max(0.0, self._began_s + LIMIT_S - time.monotonic()) if wait else 0.0
