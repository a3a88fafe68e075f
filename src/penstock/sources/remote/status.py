"""How the nodes of a cluster stand, for the feeder that asks them and for who looks at its feed."""

from __future__ import annotations

import msgspec

from penstock.sources.remote.nodes import NodeReport


class Passed(msgspec.Struct, frozen=True):
    """What became of the blocks so far."""

    made: int  # blocks that were made
    again: int  # those of them that had been made before
    handed: int  # times that one was handed to a feed


class ClusterStanding(msgspec.Struct, frozen=True):
    """How the nodes stand."""

    workers: int  # workers that can be asked
    nodes: tuple[NodeReport, ...] = ()
    why: str = ""  # why there are no workers; empty while some start for the first time
    passed: Passed | None = None
    """What became of the blocks of all feeds of this name; None of a feed that shares none."""

    @property
    def in_words(self) -> str:
        """How many workers there are, and why there are none, or some nodes have none."""
        if not self.workers:
            return self.why or "its workers start"
        nodes = sum(each.workers > 0 and not each.aside for each in self.nodes)
        text = f"{self.workers:,} worker{'s' * (self.workers > 1)} on {nodes:,} node{'s' * (nodes > 1)}"
        return text + (f"; not by {self.why}" if self.why else "")


class ClusterReport(msgspec.Struct, frozen=True):
    """Who made a feed's blocks."""

    standing: ClusterStanding
    blocks: int  # blocks that came from the cluster
    bytes: int  # their bytes, if all their leaves are arrays: over the network, unless a node here made them
    own: int  # blocks that the feeder loaded by itself
