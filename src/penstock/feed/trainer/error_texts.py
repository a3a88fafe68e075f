"""What a training script prints and raises: why it waits, and errors of a feeder that reports one or is silent."""

from __future__ import annotations

import builtins
import re
import shlex
from contextlib import suppress
from functools import lru_cache
from typing import Any

from penstock import errors
from penstock._version import __version__
from penstock.basics.terminal import say
from penstock.errors import FeedEnded, FeederSilent, FeedNotFound, FeedStopped, PenstockError, Refused, SourceError
from penstock.feed import wire
from penstock.feed.endpoint import Endpoint, endpoints
from penstock.feed.settings import GATHER_S
from penstock.feed.statistics import FeederStatistics, TrainerStatistics


def again(error: PenstockError) -> PenstockError:
    """Copy an error: raising a stored one again would hold the frames it passed through, and their views."""
    return type(error)(str(error))


def not_found(name: str) -> FeedNotFound:
    """Make the error for a name that nobody serves; it lists those that are served."""
    return FeedNotFound(f"{unknown(name)}. Start it with share() or penstock feed, or pass wait_s to wait for it")


def silent(endpoint: Endpoint, waited_s: float) -> FeederSilent:
    """Make the error for a feeder that is there and does not answer."""
    owner = endpoint.owner()
    who = f"process {owner.pid}" if owner else "of an unknown process"
    return FeederSilent(
        f"the feeder ({who}) of feed {endpoint.name!r} has not answered for {waited_s:.0f} s: it is stopped, or "
        f"too busy. Let it go on{f' (kill -CONT {owner.pid})' if owner else ''}, or end it with: "
        f"penstock stop {shlex.quote(endpoint.name)}"
    )


def unknown(name: str) -> str:
    """Say that no feed has this name, and which feeds there are."""
    others = sorted(endpoint.name for endpoint in endpoints() if endpoint.name != name)
    listed = "feeds that run: " + ", ".join(map(repr, others)) if others else "no feed runs"
    return f"no feed is named {name!r} ({listed})"


def refusal(name: str, message: wire.Rejected) -> Refused:
    same = (message.protocol, message.version) == (wire.PROTOCOL, __version__)
    versions = "" if same else f" (its feeder runs penstock {message.version}, this process {__version__})"
    kind = errors.VersionMismatch if message.protocol != wire.PROTOCOL else Refused
    return kind(f"feed {name!r} does not admit this trainer: {message.reason}{versions}")


def ended(name: str, feeder: str, message: wire.Bye) -> PenstockError:
    """Make the error for a feed that has ended."""
    if not message.reason:
        return FeedEnded(f"feed {name!r} has ended: it has given every trainer its epochs")
    return FeedStopped(f"{feeder} {message.reason}. To go on, start the feed again and load the last state_dict()")


def failure(message: wire.Failed) -> SourceError:
    """Make the error for a source that failed; it is of the type, too, that was raised, if that is Python's."""
    kind = getattr(errors, message.kind, SourceError)
    if not (isinstance(kind, type) and issubclass(kind, SourceError)):
        kind = SourceError
    text = message.message
    if kind is SourceError and message.traceback_text and message.traceback_text not in text:
        text += f"\n\nIn the feeder:\n{message.traceback_text}"
    raised = getattr(builtins, message.raised, None)
    if isinstance(raised, type) and issubclass(raised, Exception):
        with suppress(TypeError):  # some take other arguments
            return _also(kind, raised)(text, message.traceback_text)
    return kind(text, message.traceback_text)


@lru_cache
def _also(kind: type[SourceError], raised: type[Exception]) -> type[SourceError]:
    """Make a type of both."""

    def message(self: SourceError) -> str:  # a KeyError's would be quoted
        return self.args[0]

    def reduced(self: SourceError) -> Any:
        return kind, (self.args[0], self.traceback_text)

    both = {"__str__": message, "__reduce__": reduced, "__module__": kind.__module__}
    return type(kind.__name__, (kind, raised), both)


_REPEATED_AFTER_S = 10.0
_MORE = ("more trainer", "more trainers")


class Reasons:
    """Prints why a trainer waits: each reason once, and after 10 s of one wait again."""

    def __init__(self, pid: int) -> None:
        self.answer: FeederStatistics | None = None  # its feeder's newest answer during this wait
        self._pid = pid  # process of the trainer
        self._asked = 0  # since the feeder has answered
        self._printed: set[str] = set()
        self._repeated_in = 0.0

    def say(self, began_s: float, waited_s: float) -> None:
        """Print why the trainer waits, if its feeder has answered and that was not printed.

        ``began_s`` is when the wait began, which identifies it.
        """
        if (feed := self.answer) is None:
            return
        why = slowness(feed, self._pid)
        kind = re.sub(r"(?<!process )\b[\d,]+", "", why.partition(": about")[0])
        repeats = waited_s > _REPEATED_AFTER_S and self._repeated_in != began_s
        if kind in self._printed and not repeats:
            return
        self._printed.add(kind)
        self._repeated_in = began_s if repeats else self._repeated_in
        say(f"feed {feed.name!r} has sent this trainer (pid {self._pid}) nothing for {waited_s:.0f} s: {why}")

    def begin(self) -> None:
        """Note that a wait has begun."""
        self.answer, self._asked = None, 0

    def ask(self, feed: str, feeder_pid: int) -> None:
        """Note that the feeder is asked once more; until it answers both, it is taken for silent."""
        if self._asked:
            self.answer = FeederStatistics(feed, feeder_pid, answers=False)
        self._asked += 1

    def hear(self, answer: FeederStatistics) -> None:
        """Note what the feeder has answered."""
        self.answer, self._asked = answer, 0

    @property
    def held_back(self) -> bool:
        """Whether the feed waits for another trainer."""
        return self.answer is not None and self.answer.held_back_by is not None


def slowness(feed: FeederStatistics, pid: int) -> str:
    """Return what this process's trainer waits for, from its feeder's statistics."""
    mine = next((trainer for trainer in feed.trainers if trainer.pid == pid), None)
    if not feed.answers:
        return (
            f"its feeder (process {feed.pid}) does not answer. It is stopped (kill -CONT {feed.pid} ends that), "
            "or too busy, as where its data set lets no other thread run"
        )
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
        still = "is behind" if feed.held_back_s < 1 else f"has read nothing for {feed.held_back_s:.0f} s"
        return (
            f"the window is full, and the trainer of process {feed.held_back_by}, which holds the most of it, "
            f"{still}. Look at that process, or give the feed a larger window"
        )
    if mine is not None and mine.waits_for.endswith(_MORE):
        return f"the feed begins with {mine.waits_for}, or {GATHER_S:.0f} s after its first"
    if mine is not None and mine.waits_for:
        of = f" of {feed.samples_per_cycle:,}" if feed.samples_per_cycle else ""
        of += f" of cycle {feed.cycle}" if not of or mine.cycle > feed.cycle + 1 else ""
        return f"it begins at {mine.waits_for}, and the feed is at sample {feed.sample:,}{of}{_about(feed, mine)}"
    if feed.stream is not None and feed.waits_for.endswith("records"):
        trouble = f" ({feed.stream.trouble})" if feed.stream.trouble else ""
        return f"its next cycle has {feed.waits_for}{trouble}"
    if feed.waits_for == "source":
        return f"its source ({feed.source}) has given no batch"
    return f"the feed is at sample {feed.sample:,} of cycle {feed.cycle}"


def _about(feed: FeederStatistics, mine: TrainerStatistics) -> str:
    """Return how long the feed takes to come to a trainer's place, in words; empty if nobody knows."""
    cycles = mine.cycle - feed.cycle
    if feed.samples_per_s <= 0 or (cycles and not feed.samples_per_cycle):
        return ""
    left = cycles * (feed.samples_per_cycle or 0) + mine.sample - feed.sample
    return f": about {max(1, round(left / feed.samples_per_s)):,} s" if left > 0 else ""
