"""Why a trainer waits, in one line for its standard error."""

from __future__ import annotations

from penstock.feed.statistics import FeederStatistics, TrainerStatistics


def slowness(feed: FeederStatistics, pid: int) -> str:
    """Say what this process's trainer has been waiting for, from its feeder's statistics."""
    mine = next((trainer for trainer in feed.trainers if trainer.pid == pid), None)
    return f"feed {feed.name!r} has sent this trainer (pid {pid}) nothing for 30 s: {_why(feed, mine)}"


def _why(feed: FeederStatistics, mine: TrainerStatistics | None) -> str:
    if mine is not None and mine.waits_for == "the other ranks":
        ranks = {trainer.rank for trainer in feed.trainers if trainer.world == mine.world}
        missing = sorted(set(range(mine.world)) - ranks)
        return f"of its {mine.world} ranks {', '.join(map(str, missing)) or 'some'} have yet to begin to read"
    if mine is not None and mine.state == "ahead":
        return (
            f"the feed has gone back to sample {feed.sample:,} of cycle {feed.cycle} for a trainer that was "
            "resumed there, and this one waits until it has caught up"
        )
    if feed.held_back_by is not None:
        return (
            f"the window is full, and the trainer of process {feed.held_back_by} holds the most of it, which has "
            f"read nothing for {feed.held_back_s:.0f} s. Look at that process, or give the feed a larger window"
        )
    if mine is not None and mine.waits_for:
        return f"it begins at {mine.waits_for}, and the feed is at sample {feed.sample:,} of cycle {feed.cycle}"
    if feed.waits_for == "source":
        return f"its source ({feed.source}) has given no batch"
    return f"the feed is at sample {feed.sample:,} of cycle {feed.cycle}"
