"""Statistics of a feeder, its trainers and a loader, as frozen values."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.sources.remote.status import ClusterReport
from penstock.sources.streams.status import StreamReport


class TrainerStatistics(msgspec.Struct, frozen=True):
    """One trainer, as its feeder sees it.

    Attributes:
        pid: Process of the trainer.
        batch_size: Samples of its batches; None where they vary.
        borrow: Whether it reads views.
        rank: Its rank, of ``world`` ranks.
        world: Ranks of its data-parallel run.
        epoch: Number of its epoch, from 0.
        state: "attached" (not reading yet), "waiting", "reading", "ahead" (of the feed, which has gone back for
            another trainer) or "finished".
        cycle: Cycle of the first sample that it has not released.
        sample: That sample's place in the cycle.
        lag_samples: Samples that were published to it and that it has not released.
        held_bytes: Bytes of those samples in the window.
        held_back_s: Time for which the feed has waited for room while this trainer held the most, in seconds.
        waits_for: What a waiting trainer waits for: "the other ranks", or the place in the feed at which it
            begins, "cycle 3" or "sample 4,000 of cycle 3", or those that the feed expects, "2 more trainers";
            empty otherwise.
        selected: Samples that it takes of each cycle; None for all.
        taken: Samples that it has taken, of the blocks that it has released.
        wait_s: Seconds for which it has waited for samples, as last reported: while it waits, each second.
        group: Names the data-parallel run whose rank it is; empty for a run of one process.
        joined_sample: Where in a cycle its epoch began; 0 with it, and before it has begun.
        way: How its batches come out of the ring, as ``LoaderStatistics.handed``; empty before it reads.
        left_out: Rows that filled no step of its run, of cycles of unknown length such as those of a stream.
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
    selected: int | None = None
    taken: int = 0
    wait_s: float = 0.0
    group: str = ""
    joined_sample: int = 0
    way: str = ""
    left_out: int = 0


class FeederUsage(msgspec.Struct, frozen=True):
    """What a feeder and its workers use, and have used.

    Attributes:
        cpu_s: Their CPU time.
        cores: Cores that they use: CPU time by time, since somebody asked before, a second or longer ago.
        private_bytes: Host memory of theirs, without the window (``FeederStatistics.resident_bytes``).
        read_bytes: Bytes that they have read from storage.
        write_bytes: Bytes that they have sent towards storage.
        processes: How many they are.
    """

    cpu_s: float = 0.0
    cores: float = 0.0
    private_bytes: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    processes: int = 1


class FamilyStatistics(msgspec.Struct, frozen=True):
    """How a feed stands among those that have parted from it, or it from them.

    Attributes:
        root: Name of the first of them.
        together: Why all its trainers stay on it; empty if they may part.
        alone_samples_per_s: What its slowest trainer could take if it never waited; None while that is not known.
        rate: Samples that it has passed per second, over the last 5 s, loaded or left out.
        busy: Whether it has waited neither for room nor for its readers, in that time.
        made: Samples that it has passed in ``made_s`` seconds, since each of its workers had made a block; for
            trainers that are to come, until half of its window was full. In 0 s if nobody had looked before.
        is_full: Whether it has made half a window for trainers that are to come.
        refused: Why the last trial of another feed failed; empty after none.
    """

    root: str
    together: str = ""
    alone_samples_per_s: float | None = None
    rate: float = 0.0
    busy: bool = False
    made: int = 0
    made_s: float = 0.0
    is_full: bool = False
    refused: str = ""


class FeederStatistics(msgspec.Struct, frozen=True, tag="statistics"):
    """A feed at one moment.

    Attributes:
        name: Name of the feed.
        pid: Process of its feeder.
        source: What it feeds, in words.
        sharing: Path taken: "host memfd", and why, where a GPU's was asked for, or "ring on GPU-…" and how blocks
            come there.
        cycle: Cycle of the next sample to publish.
        sample: That sample's place in the cycle.
        samples_per_cycle: Samples in a cycle; None if only a pass of the source shows it.
        segments: Parts of a cycle that are shuffled each by itself.
        seed: Random seed of the order.
        window_bytes: Size of the ring.
        used_bytes: Bytes of the ring that are taken.
        resident_bytes: Host memory that the ring takes by now: a page once written to stays until it ends.
        blocks_held: Blocks on their way now: published, and not released by every trainer.
        most_blocks: Most blocks that may be on their way, however small; at that number the feed waits for room,
            as it does when ``used_bytes`` reaches ``window_bytes``.
        blocks: Blocks published since the feed began.
        blocks_in_place: Those of them that the source's workers wrote into the ring themselves.
        samples: Samples loaded and published since the feed began.
        taken: Samples that its trainers have taken of those, counted for each of them.
        cluster: Who made its blocks; None where only the feeder does.
        stream: Of a stream, how far it has been read; None of other sources.
        family: How it stands among the feeds that have parted from it, or it from them.
        usage: What its feeder and workers use.
        newcomer_waits_samples: Samples that will be published before a trainer that came now would begin; None
            where only a pass of the source shows it.
        bytes: Bytes published since the feed began.
        samples_per_s: Samples published per second, over the last seconds.
        copy_s: Time that the feeder spent copying blocks into the ring, in seconds.
        source_s: Time that the feeder spent waiting for its source, in seconds.
        waits_for: What the feeder waits for now: "source", "trainers" (to release blocks), "expected trainers" (to
            begin to read), "nobody reads", or empty while it publishes.
        held_back_by: Process of the trainer that holds most of a full window, or None.
        held_back_s: Time for which it has done so by now, in seconds.
        reopened: Times that the source was opened again at another position.
        trainers: The trainers.
        answers: False if the feeder did not answer (it is stopped, or too busy); only its name and pid are known
            then.
    """

    name: str
    pid: int
    source: str = ""
    sharing: str = ""
    cycle: int = 0
    sample: int = 0
    samples_per_cycle: int | None = None
    segments: int = 1
    seed: int = 0
    window_bytes: Annotated[int, msgspec.Meta(ge=1)] = 1
    used_bytes: int = 0
    resident_bytes: int = 0
    blocks_held: int = 0
    most_blocks: int = 1
    blocks: int = 0
    blocks_in_place: int = 0
    samples: int = 0
    bytes: int = 0
    samples_per_s: float = 0.0
    copy_s: float = 0.0
    source_s: float = 0.0
    waits_for: str = ""
    held_back_by: int | None = None
    held_back_s: float = 0.0
    reopened: int = 0
    trainers: tuple[TrainerStatistics, ...] = ()
    answers: bool = True
    taken: int = 0
    newcomer_waits_samples: int | None = None
    cluster: ClusterReport | None = None
    stream: StreamReport | None = None
    family: FamilyStatistics | None = None
    usage: FeederUsage = FeederUsage()


class LoaderStatistics(msgspec.Struct, frozen=True):
    """Tells what a ``Loader`` has received since it was made.

    Attributes:
        name: Name of the feed.
        feeder_pid: Process of the feeder.
        sharing: Ring that it reads: "host memfd", "ring on GPU-…", or "host twin of the ring on GPU-…".
        handed: What batches are and how they came: "private copy", "view", "copy on cuda:0, on the trainer's
            stream" (of a ring on that GPU), "copy on cuda:0" (beside what it computes, where the feed evicts),
            "copy on cuda:1 from the pinned ring", or "copy on cuda:1 by way of a buffer"; and why not by a shorter
            way.
        epoch: Number of the epoch that it is in, from 0.
        batches: Batches handed out.
        samples: Samples handed out.
        copied_bytes: Bytes handed out as copies.
        viewed_bytes: Bytes handed out as views.
        wait_s: Time spent waiting for blocks, in seconds.
        latency_s: Time from publishing to receiving the newest block that was waited for, in seconds.
        failovers: Times that the feeder was replaced.
        left_out: Rows that filled no step of all ranks, or no batch with ``drop_last``, and went to nobody: of
            cycles of unknown length, such as those of a stream.
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
    left_out: int = 0
