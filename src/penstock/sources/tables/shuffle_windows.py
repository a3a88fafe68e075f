"""Cycles over row groups: a few groups at a time, drawn afresh in each cycle, whose rows are shuffled together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from penstock.contracts import NO_JOINTS, Cursor, Ids, Joints
from penstock.sources.order import Order, digest

_ROWS = 3
_KEPT = 4
"""Cycles whose shuffle windows are kept: of all groups, they are asked for again and again."""


class ShuffleWindow(NamedTuple):
    """Row groups whose rows are shuffled together."""

    sample: int  # its first sample's place in the cycle
    rows: int  # how many rows its groups have
    groups: tuple[int, ...]  # their numbers


def _drawn(n: int, *words: int) -> Ids:
    """Draw a random order of ``range(n)`` that depends on ``words`` alone.

    Each number is sorted by random bits before its own: words that all differ are sorted several times as fast as
    ``permutation`` finds their places.
    """
    own = max(1, (n - 1).bit_length())
    words_drawn = np.random.PCG64(np.random.SeedSequence(words)).random_raw(n)
    keyed = words_drawn >> np.uint64(own) << np.uint64(own) | np.arange(n, dtype=np.uint64)
    keyed.sort()
    return (keyed & np.uint64((1 << own) - 1)).astype(np.int64)


class ShuffleWindows:
    """The order of a cycle's rows. Blocks end where shuffle windows end, and an epoch begins at one only.

    A row's id is its place in the data: group after group.
    """

    segment_starts = (0,)

    def __init__(
        self, rows: Ids, nbytes: Ids, most_bytes: int, batch_size: int, seed: int, *, shuffle: bool
    ) -> None:
        self._rows = rows  # rows of each group
        self._nbytes = nbytes  # bytes of each group in memory
        self._most_bytes = most_bytes  # most bytes of a shuffle window; a group that is larger is one by itself
        self.batch_size = batch_size  # rows of a full block
        self._seed = seed % 2**64
        self.shuffled = shuffle  # whether they come in another order than that of the data
        self._first = np.cumsum(rows) - rows
        self._groups = Order(len(rows), 1, None, seed, shuffle=shuffle, sizes=rows)
        self._found: dict[tuple[int, Joints], list[ShuffleWindow]] = {}
        self.samples = int(rows.sum())  # rows of a cycle
        self.batches = sum(-(-each.rows // batch_size) for each in self.of(0))  # blocks of the first cycle
        sizes = digest(rows.tolist(), nbytes.tolist())
        self.digest = digest("handfuls", sizes, most_bytes, batch_size, self._seed if shuffle else None)
        """Digest of all that decides the order."""

    def of(self, cycle: int, joints: Joints = NO_JOINTS) -> list[ShuffleWindow]:
        """Return the shuffle windows of a cycle, in their order."""
        if (cycle, joints) not in self._found:
            if len(self._found) >= _KEPT:
                self._found.pop(next(iter(self._found)))
            self._found[cycle, joints] = self._cut(cycle, joints)
        return self._found[cycle, joints]

    def _cut(self, cycle: int, joints: Joints) -> list[ShuffleWindow]:
        drawn = self._groups.ids(cycle, joints) if self.shuffled else np.arange(len(self._rows))
        groups: list[int] = drawn.tolist()
        rows: list[int] = self._rows[drawn].tolist()
        nbytes: list[int] = self._nbytes[drawn].tolist()
        edges = {*joints.of(cycle)}
        found, own, own_rows, own_bytes = list[ShuffleWindow](), list[int](), 0, 0
        for group, its_rows, its_bytes, at in zip(groups, rows, nbytes, accumulate(rows, initial=0), strict=False):
            if own and (own_bytes + its_bytes > self._most_bytes or at in edges):
                found.append(ShuffleWindow(at - own_rows, own_rows, tuple(own)))
                own, own_rows, own_bytes = [], 0, 0
            own.append(group)
            own_rows += its_rows
            own_bytes += its_bytes
        return [*found, ShuffleWindow(self.samples - own_rows, own_rows, tuple(own))]

    def starts(self, cycle: int, joints: Joints = NO_JOINTS) -> list[int]:
        """Return where the shuffle windows of a cycle begin."""
        return [each.sample for each in self.of(cycle, joints)]

    def blocks(self, at: Cursor, joints: Joints = NO_JOINTS) -> Iterator[tuple[ShuffleWindow, int, Ids, Ids]]:
        """Yield shuffle window, first sample, ids, and their places in memory, of each block from a place on.

        The rows of a shuffle window lie there in the order of their ids.
        """
        for shuffle_window in self.of(at.cycle, joints):
            if shuffle_window.sample + shuffle_window.rows <= at.sample:
                continue
            own = np.sort(shuffle_window.groups)  # as they lie in memory
            rows = self._rows[own]
            places = np.arange(shuffle_window.rows)
            ids = places + np.repeat(self._first[own] - (np.cumsum(rows) - rows), rows)
            if self.shuffled:
                places = _drawn(shuffle_window.rows, self._seed, _ROWS, at.cycle, shuffle_window.sample)
                ids = ids[places]
            passed = max(0, at.sample - shuffle_window.sample) // self.batch_size * self.batch_size
            for start in range(passed, shuffle_window.rows, self.batch_size):
                block = slice(start, start + self.batch_size)
                yield shuffle_window, shuffle_window.sample + start, ids[block], places[block]

    def groups_seen(self) -> float:
        """Return the share of a cycle's row groups of which a full block of the first cycle has rows, on average.

        A group with n of a window's N rows misses a block of b rows with a probability of about (1 - n / N)^b.
        """
        seen = weight = 0.0
        for shuffle_window in self.of(0):
            b = min(self.batch_size, shuffle_window.rows)
            n = self._rows[list(shuffle_window.groups)]
            groups = (
                np.sum(1 - (1 - n / shuffle_window.rows) ** b)
                if self.shuffled
                else b * len(n) / shuffle_window.rows
            )
            seen += shuffle_window.rows * max(1.0, float(groups))
            weight += shuffle_window.rows
        return seen / weight / len(self._rows)
