"""What the feeder's loader makes of a few samples: trainers compare their own with it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from penstock.contracts import Ids
from penstock.feed import wire
from penstock.fingerprint.batch import LIMIT_S, LeavesOf, Making

_SAMPLES = 4

Send = Callable[[wire.Witness], None]


class Witnesses:
    """A few samples of blocks, as the loader makes them in a child forked from this process.

    The workers that feed are left alone: their draws, counters and caches must not move. Each witness is made
    once, from the first block after it was wanted; the first of them from the first block.
    """

    def __init__(self, leaves_of: LeavesOf | None = None, hindrance: str = "", made_s: float = 0.0) -> None:
        self._leaves_of = leaves_of  # makes and digests samples in a child
        self._hindrance = hindrance or ("" if leaves_of else "its source is no DataLoader that share() made")
        """Why it cannot; empty if it can."""
        self._made_s = made_s  # time that ``make_loader`` took, in seconds
        self._known: dict[int, wire.Witness] = {}
        self._wanted = set[int]() if self._hindrance else {0}
        self._changing = threading.Lock()

    def want(self, number: int) -> wire.Witness | None:
        """Return a witness, or as much as there is of it; if there is nothing, it will be made."""
        if self._hindrance:
            return wire.Witness(number, why=self._hindrance)
        with self._changing:
            if number not in self._known:
                self._wanted.add(number)
            return self._known.get(number)

    def see(self, ids: Ids | None, send: Send) -> None:
        """Begin a witness that is wanted with the first ids of a block; ``send`` gets it begun, and made."""
        if not self._wanted:
            return
        known = ids is not None and len(ids) > 0 and ids.min() >= 0
        chosen = () if ids is None or not known else tuple(ids[:_SAMPLES].tolist())
        why = "" if known else "its samples have no numbers"
        with self._changing:  # from here on nobody wants it made again, of other samples
            number = self._wanted.pop()
            begun = self._known[number] = wire.Witness(number, chosen, why=why, made_s=self._made_s)
        send(begun)
        if why:
            return
        assert self._leaves_of is not None
        making = Making(self._leaves_of, begun.ids)
        threading.Thread(target=self._finish, args=(begun, making, send), daemon=True).start()

    def _finish(self, begun: wire.Witness, making: Making, send: Send) -> None:
        while (result := making.result(LIMIT_S)) is None:
            pass
        made = {"why": result} if isinstance(result, str) else {"leaves": result}
        witness = msgspec.structs.replace(begun, **made)
        with self._changing:
            self._known[witness.number] = witness
        send(witness)
