"""How the nodes of a cluster stand, for the feeder that asks them and for who looks at its feed."""

from __future__ import annotations

import msgspec

from penstock.sources.remote.nodes import NodeReport


class Passed(msgspec.Struct, frozen=True):
    """What became of the blocks so far.

    Attributes:
        made: Blocks that were made.
        again: Those of them that had been made before.
        handed: Times that one was handed to a feed.
    """

    made: int
    again: int
    handed: int


class ClusterStanding(msgspec.Struct, frozen=True):
    """How the nodes stand.

    Attributes:
        workers: Workers that can be asked.
        nodes: The nodes.
        why: Why there are no workers; empty while some start for the first time.
        passed: What became of the blocks of all feeds of this name; None of a feed that shares none.
        awaited: The machine whose feed of this name this one waits for; empty if it waits for none.
    """

    workers: int
    nodes: tuple[NodeReport, ...] = ()
    why: str = ""
    passed: Passed | None = None
    awaited: str = ""

    @property
    def in_words(self) -> str:
        """How many workers there are, and why there are none, or some nodes have none."""
        if not self.workers:
            return self.why or "its workers start"
        nodes = sum(each.workers > 0 and not each.aside for each in self.nodes)
        text = f"{self.workers:,} worker{'s' * (self.workers > 1)} on {nodes:,} node{'s' * (nodes > 1)}"
        text += f"; not by {self.why}" if self.why else ""
        return text + (f"; waits for the feed on {self.awaited}" if self.awaited else "")


class ClusterReport(msgspec.Struct, frozen=True):
    """Who made a feed's blocks.

    Attributes:
        standing: The nodes.
        blocks: Blocks that came from the cluster.
        bytes: Their bytes, if all their leaves are arrays: over the network, unless a node here made them.
        own: Blocks that the feeder loaded by itself.
    """

    standing: ClusterStanding
    blocks: int
    bytes: int
    own: int
