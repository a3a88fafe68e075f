"""The ranks of a job begin an iteration of a shared loader together, or not at all."""

# torch's own annotations leave its stores unknown.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from penstock.autosharing.verdict import Declined
from penstock.sources.torch.compat import default_store

PATIENCE_S = 20.0
_LOOK_S = 0.01


class Meeting:
    """Where ranks meet before they read a feed, each time in the store that ``torch.distributed`` keeps.

    A feed gives ranks nothing until all of them ask, while a DataLoader lets one of them read alone. So a rank
    that has waited in vain calls the meeting off, and whoever comes to it later goes to the next one.

    Args:
        feed: Name of the feed.
        rank: Rank of this process.
        world: Number of ranks.
    """

    def __init__(self, feed: str, rank: int, world: int) -> None:
        self._feed = feed
        self._rank = rank
        self._world = world
        self._number = 0

    def hold(self) -> None:
        """Wait for all ranks.

        Raises:
            Declined: they did not come, or run on several machines, each of which would have a feed of its own.
        """
        store: Any = default_store()
        if store is None:
            raise Declined("this torch has no store by which its ranks could agree")
        while True:
            key = f"penstock/{self._feed}/{self._number}"
            self._number += 1
            store.set(f"{key}/machine/{self._rank}", _machine())
            if store.add(f"{key}/came", 1) == self._world:
                store.compare_set(f"{key}/outcome", "", "held")
            outcome = self._outcome(store, key, time.monotonic() + PATIENCE_S)
            if outcome == "held":
                machines = {store.get(f"{key}/machine/{rank}") for rank in range(self._world)}
                if len(machines) > 1:
                    raise Declined(f"its ranks run on {len(machines)} machines: each would have a feed of its own")
                return
            if outcome == "given up":
                raise Declined(f"this rank iterates alone: the others did not come within {PATIENCE_S:g} s")

    def _outcome(self, store: Any, key: str, until_s: float) -> str:
        """Return "held", "called off" (before this rank came), or "given up" (by this rank)."""
        first = True
        while True:
            if store.check([f"{key}/outcome"]):
                held = store.get(f"{key}/outcome") == b"held"
                return "held" if held else "called off" if first else "given up"
            first = False
            if time.monotonic() > until_s:
                held = store.compare_set(f"{key}/outcome", "", "called off") == b"held"
                return "held" if held else "given up"
            time.sleep(_LOOK_S)


def _machine() -> str:
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.uname().nodename}"
