"""The errors that a training script sees when its feeder reports one, or is silent."""

from __future__ import annotations

import builtins
import shlex
from contextlib import suppress
from functools import lru_cache
from typing import Any

from penstock import errors
from penstock._version import __version__
from penstock.errors import FeedEnded, FeederSilent, FeedNotFound, FeedStopped, PenstockError, Refused, SourceError
from penstock.feed import wire
from penstock.feed.endpoint import Endpoint, endpoints


def again(error: PenstockError) -> PenstockError:
    """Copy an error: raising a kept one would keep the frames it passed through, and their views."""
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
