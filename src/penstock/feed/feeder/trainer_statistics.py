"""What a feed tells of one of its trainers."""

from __future__ import annotations

from penstock.feed.feeder.blocks import FeedMember
from penstock.feed.feeder.connections import Peer
from penstock.feed.feeder.feed_state import FeedState
from penstock.feed.statistics import TrainerStatistics


def trainer_statistics(
    peer: Peer, state: FeedState, *, batch_size: int | None, borrow: bool, held_back_s: float
) -> TrainerStatistics:
    """Return a trainer as it is now.

    Args:
        peer: The trainer, which is a member of the feed.
        state: The feed's members.
        batch_size: Samples of its batches; None where they vary.
        borrow: Whether it reads views.
        held_back_s: Time for which it has held the feed back.
    """
    member = state.members[peer.id]
    behind, word = state.behind(member), _state_of(member, state)
    return TrainerStatistics(
        pid=peer.pid,
        batch_size=batch_size,
        borrow=borrow,
        rank=member.rank,
        world=member.world,
        epoch=member.epoch,
        state=word,
        cycle=behind.cycle,
        sample=behind.sample,
        lag_samples=member.held_rows,
        held_bytes=member.held_bytes,
        held_back_s=held_back_s,
        waits_for=_waits_for(member, state) if word == "waiting" else "",
        selected=None if member.selected is None else len(member.selected),
        taken=member.taken,
        wait_s=member.wait_s,
        group=member.group,
        joined_sample=member.epoch_start.sample if member.epoch_start else 0,
    )


def _state_of(member: FeedMember, state: FeedState) -> str:
    """Return what a trainer does, in a word."""
    if state.gathers and member.reads:
        return "waiting"
    if member.reads and member.next is not None and state.position < state.furthest <= member.next:
        return "ahead"
    if member.reads and member.next is not None and member.next > state.position:
        return "waiting"  # for the feed to reach the position where it begins
    return member.state


def _waits_for(member: FeedMember, state: FeedState) -> str:
    """Return what a waiting trainer waits for."""
    if state.gathers and member.reads:
        more = state.expect - state.gathered
        return f"{more:,} more trainer" + "s" * (more != 1)
    return member.waits_for
