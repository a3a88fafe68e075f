"""The ranks of a job begin an iteration of a shared loader together, or not at all."""

# torch's own annotations leave its stores unknown.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import msgspec

from penstock.autosharing.messages import difference
from penstock.autosharing.verdict import Declined
from penstock.basics.terminal import say
from penstock.fingerprint.comparison import Fingerprint
from penstock.sources.torch.compat import default_store

PATIENCE_S = 8.0
"""Less than 10 s: a rank that does not come may wait for this one, at a barrier."""
_SAY_AFTER_S = 3.0
_LOOK_S = 0.01


class Meeting:
    """Where ranks meet before they read a feed, each time in the store of ``torch.distributed``.

    A feed gives ranks nothing until all of them ask, while a DataLoader lets one of them read alone. So a rank
    that has waited in vain calls the meeting off, and whoever comes to it later goes to the next one.
    """

    def __init__(self, feed: str, rank: int, world: int, fingerprint: Fingerprint) -> None:
        self._feed = feed  # name of the feed
        self._fingerprint = fingerprint  # fingerprint of what the feed is made of
        self._rank = rank  # rank of this process
        self._world = world  # number of ranks
        self._number = 0

    def hold(self) -> None:
        """Wait for all ranks."""
        store: Any = default_store()
        if store is None:
            raise Declined("this torch has no store by which its ranks could agree")
        store.set(f"penstock/asks/{self._rank}", msgspec.json.encode((self._feed, self._fingerprint)))
        while True:
            key = f"penstock/{self._feed}/{self._number}"
            self._number += 1
            store.set(f"{key}/came/{self._rank}", _machine())
            if store.add(f"{key}/came", 1) == self._world:
                store.compare_set(f"{key}/outcome", "", "held")
            outcome = self._outcome(store, key, time.monotonic() + PATIENCE_S)
            if outcome == "held":
                machines = {store.get(f"{key}/came/{rank}") for rank in range(self._world)}
                if len(machines) > 1:
                    raise Declined(f"its ranks run on {len(machines)} machines: each would have a feed of its own")
                return
            if outcome == "given up":
                others = self._missing(store, f"{key}/came")
                raise Declined(f"this rank iterates alone: within {PATIENCE_S:g} s {others} did not come")

    def first_says(self, finding: str) -> str:
        """Return what the first of the ranks has found that comes here."""
        return default_store().compare_set(f"penstock/{self._feed}/found", "", finding).decode()

    def agreed(self, refusal: str) -> str:
        """Return why this rank, or else another, refuses what it has read; empty if none does.

        Each rank calls it once for each ``hold``.
        """
        store: Any = default_store()
        key = f"penstock/{self._feed}/{self._number - 1}"
        store.set(f"{key}/refusal/{self._rank}", refusal)
        others = [f"{key}/refusal/{rank}" for rank in range(self._world)]
        until_s = time.monotonic() + PATIENCE_S
        outcome = ""
        while not outcome:
            if store.check(others):
                outcome = store.compare_set(f"{key}/agreed", "", "all have said").decode()
            elif time.monotonic() > until_s:
                outcome = store.compare_set(f"{key}/agreed", "", "given up").decode()
            else:
                time.sleep(_LOOK_S)
        if outcome == "given up":
            raise Declined(f"within {PATIENCE_S:g} s not every rank has found whether its samples are the feed's")
        refusals = [store.get(each).decode() for each in others]
        return refusal or next((f"rank {rank}: {each}" for rank, each in enumerate(refusals) if each), "")

    def _outcome(self, store: Any, key: str, until_s: float) -> str:
        """Return "held", "called off" (before this rank came), or "given up" (by this rank)."""
        first, say_at_s = True, time.monotonic() + _SAY_AFTER_S
        while True:
            if store.check([f"{key}/outcome"]):
                held = store.get(f"{key}/outcome") == b"held"
                return "held" if held else "called off" if first else "given up"
            first = False
            if time.monotonic() > until_s:
                held = store.compare_set(f"{key}/outcome", "", "called off") == b"held"
                return "held" if held else "given up"
            if time.monotonic() > say_at_s:
                say_at_s = until_s
                others = self._missing(store, f"{key}/came")
                say(f"rank {self._rank} waits {PATIENCE_S:g} s at most for {others} to read feed {self._feed}")
            time.sleep(_LOOK_S)

    def _missing(self, store: Any, came: str) -> str:
        """Return which ranks have not come, and what they wait to read in another meeting."""
        missing = [rank for rank in range(self._world) if not store.check([f"{came}/{rank}"])]
        names = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
        for rank in missing:
            if store.check([asks := f"penstock/asks/{rank}"]):
                feed, fingerprint = msgspec.json.decode(store.get(asks), type=tuple[str, Fingerprint])
                if differs := difference(fingerprint, self._fingerprint):
                    return f"{names} (rank {rank} last asked for feed {feed}: {differs})"
        return names


def _machine() -> str:
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.uname().nodename}"
