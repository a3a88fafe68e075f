"""What a feeder and a loader tell about themselves, as frozen values."""

from __future__ import annotations

from typing import Annotated

import msgspec


class TrainerStatistics(msgspec.Struct, frozen=True):
    """One trainer, as its feeder sees it.

    Attributes:
        lag_samples: Samples that were published to it and that it has not released.
        held_bytes: Their bytes in the window.
        held_back_s: How long the feed has waited for room while this trainer held the most.
        state: "attached" (not reading yet), "waiting", "reading", "ahead" (of the feed,
            which has gone back for another) or "finished".
        waits_for: What a waiting trainer waits for: "the other ranks", or the place in the
            feed at which it begins, "cycle 3" or "sample 4,000 of cycle 3"; "" otherwise.
    """

    pid: int
    batch_size: int | None
    borrow: bool
    rank: int
    world: int
    epoch: int
    state: str
    cycle: int
    sample: int
    lag_samples: int
    held_bytes: int
    held_back_s: float
    waits_for: str


class FeederStatistics(msgspec.Struct, frozen=True, tag="statistics"):
    """A feed at one moment.

    Attributes:
        cycle, sample: The cursor: the next sample to publish.
        samples_per_s: Published in the last seconds.
        waits_for: What the feeder waits for now: "source", "trainers" (to
            release blocks), "nobody reads", or "" while it publishes.
        held_back_by: Pid of the trainer that holds most of a full window, or None.
        held_back_s: For how long it has done so by now.
        blocks_held: Blocks on their way now: published, and not released by every trainer.
        most_blocks: How many may be, however small they are: the feed waits for room then,
            as it does when ``used_bytes`` reaches ``window_bytes``.
        blocks: Blocks that were published in all.
        blocks_in_place: Blocks that the source's workers wrote into the ring themselves.
        copy_s: Time that the feeder spent copying the others.
        reopened: How often the source was opened again at another position.
        sharing: The path taken: "host memfd", or "ring on GPU-…" and how blocks come there.
        answers: False where the feeder did not answer (it is stopped, or too busy); all but its name and pid
            is unknown then.
    """

    name: str
    pid: int
    source: str
    sharing: str
    cycle: int
    sample: int
    samples_per_cycle: int | None
    segments: int
    seed: int
    window_bytes: Annotated[int, msgspec.Meta(ge=1)]
    used_bytes: int
    blocks_held: int
    most_blocks: int
    blocks: int
    blocks_in_place: int
    samples: int
    bytes: int
    samples_per_s: float
    copy_s: float
    source_s: float
    waits_for: str
    held_back_by: int | None
    held_back_s: float
    reopened: int
    trainers: tuple[TrainerStatistics, ...]
    answers: bool = True

    @classmethod
    def silent(cls, name: str, pid: int) -> FeederStatistics:
        """Of a feeder that does not answer: only its name and pid are known."""
        return cls(
            name=name,
            pid=pid,
            source="",
            sharing="",
            cycle=0,
            sample=0,
            samples_per_cycle=None,
            segments=1,
            seed=0,
            window_bytes=1,
            used_bytes=0,
            blocks=0,
            blocks_held=0,
            most_blocks=1,
            blocks_in_place=0,
            samples=0,
            bytes=0,
            samples_per_s=0.0,
            copy_s=0.0,
            source_s=0.0,
            waits_for="",
            held_back_by=None,
            held_back_s=0.0,
            reopened=0,
            trainers=(),
            answers=False,
        )


class LoaderStatistics(msgspec.Struct, frozen=True):
    """One Loader since it was made.

    Attributes:
        sharing: The ring that it reads: "host memfd", "ring on GPU-…", or "host twin of the ring on GPU-…".
        handed: What batches are and how they came: "private copy", "view", "copy on cuda:0" (of a ring
            on a GPU), "copy on cuda:1 from the pinned ring", or "copy on cuda:1 by way of a buffer";
            and why it is not a shorter way.
        wait_s: Time spent waiting for blocks.
        latency_s: Publish to receipt of the newest block that was waited for.
        failovers: How often the feeder was replaced.
    """

    name: str
    feeder_pid: int
    sharing: str
    handed: str
    epoch: int
    batches: int
    samples: int
    copied_bytes: int
    viewed_bytes: int
    wait_s: float
    latency_s: float
    failovers: int
