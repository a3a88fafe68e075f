"""Several data sets in given shares."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real

import numpy as np

from penstock.contracts import Ids
from penstock.errors import BadSetting
from penstock.sources.order import permutation
from penstock.sources.tokens.files import TokenFile, Tokens
from penstock.sources.tokens.rows import Rows, distinct

_MOST_REPEATS = 100
_EXTRA = 2


class Mixture:
    """Rows of several data sets, each with its share of a cycle.

    A cycle is as short as can be while every row comes at least once: the data set that is largest for its share
    comes once, and the others again and again. Those rows of a data set that come once more than its others are
    drawn at random, and are the same in each cycle.

    Args:
        parts: Rows of each data set, by its name.
        weights: Their shares, in any unit, by name.
        seed: Seed of that draw.

    Raises:
        BadSetting: a weight is not above 0, or one data set would come very often.
    """

    def __init__(self, parts: Mapping[str, Rows], weights: Mapping[str, float], seed: int) -> None:
        self._parts = list(parts.values())
        shares = _shares(weights)
        cycle = max(part.count / share for part, share in zip(self._parts, shares, strict=True))
        counts = [round(cycle * share) for share in shares]
        often, name = max(
            (count / part.count, name) for count, (name, part) in zip(counts, parts.items(), strict=True)
        )
        if often > _MOST_REPEATS:
            raise BadSetting(
                f"{name} would come {often:,.0f} times in each epoch, which has every other row at least once: "
                f"at most {_MOST_REPEATS} times make sense. Give {name} a smaller weight"
            )
        self._ends = np.cumsum(counts, dtype=np.int64)
        # Rows of each that come before the first of those that come once more than others.
        self._whole = [count // part.count * part.count for part, count in zip(self._parts, counts, strict=True)]
        self._again = [
            permutation(part.count, seed % 2**64, _EXTRA, i)[: count % part.count]
            for i, (part, count) in enumerate(zip(self._parts, counts, strict=True))
        ]
        self.count = int(self._ends[-1])
        self.counts = counts
        told = (
            f"{share:.1%} {name} ({count / part.count:.2f} times {part.description})"
            for share, count, (name, part) in zip(shares, counts, parts.items(), strict=True)
        )
        self.description = f"{self.count:,} rows: {', '.join(told)}"

    def files_of(self, rows: Ids) -> Sequence[TokenFile]:
        return [file for part, own, _ in self._divided(rows) for file in part.files_of(own)]

    def will_need(self, rows: Ids) -> None:
        for part, own, _ in self._divided(rows):
            part.will_need(own)

    def fill(self, rows: Ids, to: Ids, leaves: Sequence[Tokens]) -> None:
        for part, own, which in self._divided(rows):
            part.fill(own, to[which], leaves)

    def _divided(self, rows: Ids) -> Iterator[tuple[Rows, Ids, Ids]]:
        """Yield each data set that has some of the rows, their numbers in it, and which of the rows they are."""
        of = np.searchsorted(self._ends, rows, side="right")
        for i in distinct(of):
            part, which = self._parts[i], np.flatnonzero(of == i)
            within = rows[which] - (self._ends[i - 1] if i else 0)
            again = within - self._whole[i]
            own = within % part.count
            own[again >= 0] = self._again[i][again[again >= 0]]
            yield part, own, which


def _shares(weights: Mapping[str, float]) -> list[float]:
    for name, weight in weights.items():
        if not isinstance(weight, Real) or not 0 < weight < math.inf:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise BadSetting(f"the weight of {name} is {weight!r}: it must be a number above 0")
    total = sum(weights.values())
    return [weight / total for weight in weights.values()]
