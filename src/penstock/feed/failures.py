"""What a feeder tells, or its silence, as the errors that a training script sees."""

from __future__ import annotations

import re

import penstock
from penstock import errors
from penstock.errors import FeedNotFound, PenstockError, Refused, SourceError
from penstock.feed import wire
from penstock.feed.directory import places


def again(error: PenstockError) -> PenstockError:
    """The same error anew: one that is kept would keep the frames it was raised through, and their views."""
    return type(error)(str(error))


def not_found(name: str) -> FeedNotFound:
    """The error for a name that nobody serves, with those that are served, to who wants to read it."""
    return FeedNotFound(f"{unknown(name)}. Start it with share() or penstock feed, or pass wait_s to wait for it")


def unknown(name: str) -> str:
    """That a name is nobody's, and which are somebody's."""
    others = sorted(place.name for place in places() if place.name != name)
    listed = "feeds that run: " + ", ".join(map(repr, others)) if others else "no feed runs"
    return f"no feed is named {name!r} ({listed})"


def refusal(name: str, message: wire.Rejected) -> Refused:
    kind = errors.VersionMismatch if message.protocol != wire.PROTOCOL else Refused
    return kind(
        f"feed {name!r} does not admit this trainer: {message.reason} (its feeder runs penstock "
        f"{message.version}, this process {penstock.__version__})"
    )


def cause(error: Exception) -> str:
    """An exception's type and message; of one that a torch worker raised, those of the original and where."""
    caught = re.match(r"Caught (\w+) (in .*?)\.\nOriginal Traceback", str(error))
    if caught is None:
        return f"{type(error).__name__}: {error}"
    kind, where = caught.groups()
    *_, original = re.split(rf"\n(?=[\w.]*\b{kind}\b)", str(error).rstrip())
    return f"{original} ({where})"


def failure(message: wire.Failed) -> SourceError:
    kind = getattr(errors, message.kind, SourceError)
    if not issubclass(kind, SourceError):
        kind = SourceError
    text = message.message
    if kind is SourceError and message.traceback_text and message.traceback_text not in text:
        text += f"\n\nIn the feeder:\n{message.traceback_text}"
    return kind(text, message.traceback_text)
