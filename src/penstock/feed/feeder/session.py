"""One trainer of a feed, from its hello on, as the feeder's server knows it."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.feed import wire
from penstock.feed.feeder.blocks import FeedMember
from penstock.feed.feeder.connections import Peer
from penstock.feed.feeder.feed_state import FeedState
from penstock.feed.statistics import TrainerStatistics


@dataclass
class Session:
    """A trainer that was admitted.

    Attributes:
        peer: Its connection.
        hello: What it has said of itself.
        member: What it reads, and holds.
        starved: Serial of its last word that it waits while it keeps views; None once that was answered.
        compares: Whether it has asked for a witness.
        layout: Layout of the block that was last announced to it.
    """

    peer: Peer
    hello: wire.Hello
    member: FeedMember
    starved: int | None = None
    compares: bool = False
    layout: object = None

    def statistics(self, state: FeedState, batch_size: int | None, held_back_s: float) -> TrainerStatistics:
        """Return this trainer as it is now.

        Args:
            state: The feed's members.
            batch_size: Samples of a batch, unless it has asked for others; None where they vary.
            held_back_s: Time for which it has held the feed back.
        """
        member = self.member
        behind, word = state.behind(member), self._state(state)
        return TrainerStatistics(
            pid=self.peer.pid,
            batch_size=self.hello.batch_size or batch_size,
            borrow=self.hello.borrow,
            rank=member.rank,
            world=member.world,
            epoch=member.epoch,
            state=word,
            cycle=behind.cycle,
            sample=behind.sample,
            lag_samples=member.held_rows,
            held_bytes=member.held_bytes,
            held_back_s=held_back_s,
            waits_for=self._waits_for(state) if word == "waiting" else "",
            selected=None if member.selected is None else len(member.selected),
            taken=member.taken,
            wait_s=member.wait_s,
            group=member.group,
            joined_sample=member.epoch_start.sample if member.epoch_start else 0,
        )

    def _state(self, state: FeedState) -> str:
        """Return what it does, in a word."""
        member = self.member
        if state.gathers and member.reads:
            return "waiting"
        if member.reads and member.next is not None and state.position < state.furthest <= member.next:
            return "ahead"
        if member.reads and member.next is not None and member.next > state.position:
            return "waiting"  # for the feed to reach the position where it begins
        return member.state

    def _waits_for(self, state: FeedState) -> str:
        """Return what it waits for."""
        if state.gathers and self.member.reads:
            more = state.expect - state.gathered
            return f"{more:,} more trainer" + "s" * (more != 1)
        return self.member.waits_for
