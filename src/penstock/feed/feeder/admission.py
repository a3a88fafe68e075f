"""Whether a feed admits a trainer, and what that trainer may then ask for."""

from __future__ import annotations

from penstock._version import __version__
from penstock.feed import wire
from penstock.feed.feeder.held_blocks import FeedState
from penstock.feed.feeder.subscriber import Subscriber


def objection_to(hello: wire.Hello, welcome: wire.Welcome, state: FeedState, *, known: bool) -> str | None:
    """Return why a trainer is not admitted, in words for it; None if it is admitted.

    Args:
        hello: What the trainer says of itself.
        welcome: What it would be told.
        state: The feed's trainers.
        known: Whether it has said hello before.
    """
    if hello.protocol != wire.PROTOCOL:
        return (
            f"it speaks protocol {hello.protocol} (penstock {hello.version}), the feeder {wire.PROTOCOL} "
            f"(penstock {__version__})"
        )
    if known or hello.rank >= hello.world:
        return "its hello makes no sense"
    if hello.borrow and welcome.settings.stall_timeout is not None:
        return (
            f"the feed evicts trainers after stall_timeout={welcome.settings.stall_timeout} s, and a view "
            "cannot outlive an eviction: use borrow=False, or a feed without stall_timeout"
        )
    if state.rank_taken(hello.group, hello.rank, hello.world):
        return f"rank {hello.rank} of {hello.world} has joined already"
    return None


def objection_to_reading(
    message: wire.Start | wire.Epoch, welcome: wire.Welcome, member: Subscriber
) -> str | None:
    """Return why a trainer cannot read as it asks, in words for it; None if it can.

    Args:
        message: What the trainer asks.
        welcome: What it was told.
        member: What the feed knows of it.
    """
    if member.resting:
        return "it reads on, after it said that it reads no more"
    if isinstance(message, wire.Epoch):
        if member.next is None:
            return "its epoch begins before it has started"
        asked = [message.sample]
    else:
        asked = [message.sample, message.epoch_sample]
    if welcome.samples is not None and max(asked) >= welcome.samples:
        return f"it asked for sample {max(asked)} of a cycle of {welcome.samples}"
    return None
