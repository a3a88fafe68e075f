"""One trainer of a feed: whether it is admitted, what it may ask for, and how it stands."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock._version import __version__
from penstock.contracts import ByteArray
from penstock.errors import ProtocolError
from penstock.feed import wire
from penstock.feed.feeder.blocks import FeedMember
from penstock.feed.feeder.connections import Peer
from penstock.feed.feeder.feed_state import FeedState
from penstock.feed.named_rows import MOST_NAMED_ROWS
from penstock.feed.statistics import TrainerStatistics
from penstock.subsets.selection import Bitmap


@dataclass
class Session:
    """A trainer that was admitted."""

    peer: Peer
    hello: wire.Hello
    member: FeedMember  # what it reads, and holds
    starved: int | None = None  # serial of its newest ``Starved``; None once that was answered
    told: bool = False  # whether somebody else than this feeder has said which feed it is to read
    compares: bool = False  # whether it has asked for a witness
    way: str = ""  # how its batches come out of the ring, in its words
    left_out: int = 0  # rows that filled no step of its run
    layout: object = None  # layout of the block that was last announced to it

    def statistics(self, state: FeedState, batch_size: int | None, held_back_s: float) -> TrainerStatistics:
        """Return this trainer as it is now, which has held the feed back for ``held_back_s``.

        Its batches have ``batch_size`` samples, None where they vary, unless it has asked for others.
        """
        member = self.member
        behind, word = member.behind, self._state(state)
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
            way=self.way,
            left_out=self.left_out,
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
        if self.member.next is None:
            return "the other ranks"
        cycle, sample = self.member.next
        return f"sample {sample:,} of cycle {cycle}" if sample else f"cycle {cycle}"


def objection_to(hello: wire.Hello, welcome: wire.Welcome, *, known: bool, selects: bool) -> str | None:
    """Return why a trainer is not admitted, in words for it; None if it is admitted.

    It is ``known`` if it has sent a hello before; the source ``selects`` if it can load some samples only.
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
    if hello.selected is not None and (cannot := _cannot_select(welcome, selects=selects)):
        return f"it reads with select=, and the feed {cannot}"
    return None


def objection_to_reading(
    message: wire.Start | wire.EpochBegun, welcome: wire.Welcome, state: FeedState, id: int
) -> str | None:
    """Return why a trainer cannot read as it asks, in words for it; None if it can."""
    member = state.members[id]
    if member.resting:
        return "it reads on, after it said that it reads no more"
    if isinstance(message, wire.EpochBegun):
        if member.next is None:
            return "its epoch begins before it has started"
        asked = [message.sample]
    elif message.cycle is None and selects_otherwise(state, id):
        return "another rank of its run waits with another selection: pass the same select= to all ranks"
    else:
        asked = [message.sample, message.epoch_sample]
    if isinstance(message, wire.Start) and not message.known.fits(welcome.samples or 2**48):
        return "it knows of joints that this feed cannot have"
    if welcome.samples is not None and max(asked) >= welcome.samples:
        return f"it asked for sample {max(asked)} of a cycle of {welcome.samples}"
    return None


def selects_otherwise(state: FeedState, id: int) -> bool:
    """Whether another rank of a member's group waits for its ranks with another selection."""
    member = state.members[id]
    return member.world > 1 and any(
        (m.group, m.world) == (member.group, member.world) and m.rank != member.rank
        for m in state.members.values()
        if m.pending and m.digests != member.digests
    )


def objection_to_moving(message: wire.MoveTrainer, hellos: Sequence[wire.Hello], state: FeedState) -> str | None:
    """Return why a process's trainers, of these hellos, cannot move, in words for the asker; None if they can."""
    if state.bounds is not None:
        return "this feed's source is a stream, which another feed may have cut elsewhere"
    if not hellos:
        return f"process {message.pid} does not train from it"
    if any(hello.world > 1 for hello in hellos):
        return f"process {message.pid} is one of several ranks, which begin each epoch on one feed"
    return None


def _cannot_select(welcome: wire.Welcome, *, selects: bool) -> str:
    """Return why a trainer cannot select samples of a feed; empty if it can."""
    if welcome.settings.whole_batches:
        return "gives whole batches: leave out whole_batches=True, or select in the loader (SelectionSampler)"
    if not selects or welcome.samples is None or welcome.block_rows is None:
        return (
            "has a source that cannot leave samples out, such as a stream, or a loader with a sampler of its own: "
            "give a DataLoader over a map-style data set with shuffle=True, or select in the loader "
            "(SelectionSampler)"
        )
    if welcome.block_rows > MOST_NAMED_ROWS:
        return (
            f"has blocks of {welcome.block_rows:,} rows: make its loader's batch_size at most {MOST_NAMED_ROWS:,}"
        )
    return ""


def member_of(peer: Peer, hello: wire.Hello, samples: int | None) -> FeedMember:
    """Return the feed's member for a trainer."""
    member = FeedMember(peer.id, hello.rank, hello.world, hello.group, hello.batch_size)
    if hello.selected is not None and samples is not None:
        packed = np.zeros(-(-samples // 8), np.uint8)
        bits = _bits_of(peer, samples)
        packed[: len(bits)] = bits
        member.selected = Bitmap(packed, frozenset([hello.selected.digest]))
        member.part = max(1, len(member.selected)) / samples
    return member


def _bits_of(peer: Peer, samples: int) -> ByteArray:
    if peer.brought is None:
        raise ProtocolError("its selection did not come with its hello")
    fcntl.fcntl(peer.brought, fcntl.F_GET_SEALS)  # an OSError for all but memory, whose reads never wait
    return np.frombuffer(os.pread(peer.brought, -(-samples // 8), 0), np.uint8)
