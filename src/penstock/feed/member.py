"""One trainer of a feed, and one block that trainers hold, as the roster keeps them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from penstock.contracts import Cursor


@dataclass
class PublishedBlock:
    """A block in the ring, the members that still need it, and what its publisher notes of it."""

    number: int
    at: Cursor
    rows: int
    offset: int
    nbytes: int
    holders: set[int]
    note: Any


@dataclass
class Member:
    """One trainer of a feed.

    Attributes:
        next: The first sample that it has not been sent, once it reads.
        end: Where its last epoch ends; None for a feed without end.
        held: Numbers of the blocks that it has been sent and has not released, oldest first, and
            how often: one may be sent again while views of it live.
        pending: It has asked to start, and waits for the other ranks of its group.
        resting: It will not read again; it only holds what somebody still looks at.
    """

    id: int
    rank: int = 0
    world: int = 1
    group: str = ""
    epoch: int = 0
    next: Cursor | None = None
    end: Cursor | None = None
    held: dict[int, int] = field(default_factory=dict[int, int])
    held_bytes: int = 0
    held_rows: int = 0
    pending: bool = False
    resting: bool = False

    @property
    def reads(self) -> bool:
        return self.next is not None and not self.finished

    @property
    def state(self) -> str:
        if self.finished:
            return "finished"
        if self.reads:
            return "reading"
        return "waiting" if self.pending else "attached"

    @property
    def finished(self) -> bool:
        return self.next is not None and self.end is not None and self.next >= self.end
