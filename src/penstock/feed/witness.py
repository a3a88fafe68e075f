"""The witness: a few samples that the feeder's loader and a trainer's own data set make, which are compared."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from penstock.contracts import Ids
from penstock.feed import wire
from penstock.fingerprint.batch import LIMIT_S, STRUCTURE, LeafDigest, LeavesOf, Making, difference, twice

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
        self.made_s = made_s  # time that ``make_loader`` took, in seconds
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
            begun = self._known[number] = wire.Witness(number, chosen, why=why, made_s=self.made_s)
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


class Answers(Protocol):
    """A trainer's connection, as far as witnesses come through it."""

    def ask_witness(self, number: int) -> None: ...

    def witness(self, number: int, wait_s: float, *, complete: bool) -> wire.Witness | None: ...


class Compared(NamedTuple):
    """What a comparison has found; nothing if the samples are the same."""

    differs: str = ""  # which sample differs, and in which leaf
    unproved: str = ""  # why it is not known
    cpu_s: float = 0.0  # CPU time of this process's child
    random: str = ""  # leaves that come out another each time, and so are not compared


class SampleComparison:
    """Compares what this process's own data set makes of a few samples with what the feeder's does.

    Either makes them in a child of its own, and twice; only what comes out alike in each of them is compared.
    Random images so have labels that are.
    """

    def __init__(
        self, connection: Answers, number: int, leaves_of: LeavesOf, most_made_s: float = float("inf")
    ) -> None:
        self._connection = connection
        self._number = number  # which samples: the feeder chooses some for each number
        self._leaves_of = leaves_of  # makes samples, in a child
        self._most_made_s = most_made_s  # compare only if the feed's ``make_loader`` took less time
        self._making: Making | None = None
        self._began_s = time.monotonic()
        connection.ask_witness(number)

    def finding(self, *, wait: bool) -> Compared | None:
        """Return what has been found; None if that takes longer, unless it is to be waited for.

        It is given up 2 s after it began, or when the feeder is gone.
        """
        try:
            found = self._found(wait=wait)
        except BaseException:
            self.close()
            raise
        if found is None and time.monotonic() - self._began_s > LIMIT_S:
            found = Compared(unproved=f"making its samples took over {LIMIT_S:g} s")
        elif found is None and wait:
            found = Compared(unproved="the feeder is gone")
        if found is not None:
            self.close()
        return found

    def close(self) -> None:
        """Give it up."""
        if self._making is not None:
            self._making.close()

    def _found(self, *, wait: bool) -> Compared | None:
        theirs = self._connection.witness(self._number, self._left_s(wait), complete=False)
        if theirs is None:
            return None
        if theirs.why:
            return Compared(unproved=f"in the feeder, {theirs.why}")
        if theirs.made_s >= self._most_made_s:
            return Compared(unproved=f"make_loader took {theirs.made_s:.1f} s")
        if self._making is None:
            self._making = Making(self._leaves_of, theirs.ids)
        mine = self._making.result(self._left_s(wait))
        if mine is None:
            return None
        if isinstance(mine, str):
            return Compared(unproved=f"here, {mine}", cpu_s=self._making.cpu_s)
        theirs = self._connection.witness(self._number, self._left_s(wait), complete=True)
        return None if theirs is None else self._compared(mine, theirs, self._making)

    def _compared(self, mine: tuple[LeafDigest, ...], theirs: wire.Witness, making: Making) -> Compared:
        """Compare what both have made; what differs is made once more, in another child, if that can be."""
        if theirs.leaves is None:
            return Compared(unproved=f"in the feeder, {theirs.why}", cpu_s=making.cpu_s)
        here, there = ({leaf.name for leaf in each if leaf.repeats} for each in (mine, theirs.leaves))
        if not here & there - {STRUCTURE}:
            return Compared(unproved="its data set makes nothing twice alike", cpu_s=making.cpu_s)
        if difference(mine, theirs.leaves):
            self._making = Making(self._leaves_of, theirs.ids)
            again = self._making.result(LIMIT_S)
            if isinstance(again, tuple):
                mine = twice(mine, again)
        if found := difference(mine, theirs.leaves):
            return Compared(f"of sample {theirs.ids[found[1]]:,}, {found[0]} differs", cpu_s=making.cpu_s)
        random = sorted({leaf.name for leaf in mine} - (here & there))
        return Compared(cpu_s=making.cpu_s, random=", ".join(random)[:200])

    def _left_s(self, wait: bool) -> float:
        return max(0.0, self._began_s + LIMIT_S - time.monotonic()) if wait else 0.0
