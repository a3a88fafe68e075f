"""Which blocks a cluster keeps for the feeds of one name, until each of them has had them: a model without Ray.

Feeds that read the same order ask for the same blocks, each at its own time. A block is made when the first asks,
and kept until each feed has got it. When too much is kept, it evicts a block that every feed has had, else the
oldest; a later request rebuilds it.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from penstock.contracts import Cursor
from penstock.sources.remote.status import Passed

_SILENT_S = 5.0
_BEFORE = Cursor(-1, 0)
_REMEMBERED = 1 << 18


class Key(NamedTuple):
    """A block: its place, and the ids of the samples that are wanted of it."""

    at: Cursor
    ids: bytes


class BlockRetention:
    """The feeds of one name, and the blocks that are kept for them."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes  # size of blocks that are kept at once; the newest stays, however large
        self._feeds: dict[str, float] = {}  # when each was heard of last
        self._at: dict[str, Cursor] = {}
        self._needs_from: dict[str, Cursor] = {}
        self._kept: dict[Key, int] = {}  # sizes, oldest first
        self._handed_to: dict[Key, set[str]] = {}
        self._once: set[int] = set()
        self._made = self._again = self._handed = 0

    def hear(self, feed: str, now_s: float) -> list[Key]:
        """A feed lives; forget those that were not heard of for long. Return blocks that nobody needs any more."""
        self._feeds[feed] = now_s
        for other in [each for each, heard_s in self._feeds.items() if heard_s < now_s - _SILENT_S]:
            del self._feeds[other]
            self._at.pop(other, None)
            self._needs_from.pop(other, None)
        return self._let_go()

    def asks(self, feed: str, key: Key, oldest: Cursor) -> list[Key]:
        """A feed asks for a block; return blocks that nobody needs any more.

        ``oldest`` is the first block that the feed has not got: what it asks for comes in any order.
        """
        self._at[feed] = key.at
        self._needs_from[feed] = oldest
        return self._let_go()

    def made(self, key: Key, nbytes: int, by: Set[str]) -> list[Key]:
        """A block that feeds asked for was made, and is kept until each has got it; return those not kept now."""
        self._made += 1
        self._again += hash(key) in self._once
        self._once.add(hash(key))
        if len(self._once) > _REMEMBERED:
            self._once.clear()
        self._kept[key] = nbytes
        self._handed_to[key] = set(by)
        gone = self._let_go()
        while sum(self._kept.values()) > self._most_bytes and len(self._kept) > 1:
            had_by_all = filter(self._is_had_by_all, self._kept)
            gone.append(next(had_by_all, next(iter(self._kept))))
            self._forget(gone[-1])
        return gone

    def handed(self, feed: str, key: Key) -> None:
        """A feed was handed a block: whether it got it shows once it lacks only others."""
        self._handed += 1
        if key in self._kept:
            self._handed_to[key].add(feed)

    @property
    def frontier(self) -> Cursor | None:
        """The furthest block that a feed that lives has asked for; None if none has."""
        return max((self._at[feed] for feed in self._feeds if feed in self._at), default=None)

    @property
    def counts(self) -> Passed:
        return Passed(self._made, self._again, self._handed)

    def _forget(self, key: Key) -> None:
        del self._kept[key], self._handed_to[key]

    def _let_go(self) -> list[Key]:
        gone = [key for key in self._kept if all(self._is_past(feed, key) for feed in self._feeds)]
        for key in gone:
            self._forget(key)
        return gone

    def _is_past(self, feed: str, key: Key) -> bool:
        return self._needs_from.get(feed, _BEFORE) > key.at

    def _is_had_by_all(self, key: Key) -> bool:
        return all(feed in self._handed_to[key] or self._is_past(feed, key) for feed in self._feeds)
