"""The feeds of this user: what runs, how it stands, and how to end it."""

from __future__ import annotations

import os
import time

import msgspec

from penstock.errors import FeedNotFound
from penstock.feed import wire
from penstock.feed.directory import Place, places
from penstock.feed.failures import unknown
from penstock.feed.statistics import FeederStatistics

_ANSWER_S = 2.0
_END_S = 10.0


def feeds() -> list[FeederStatistics]:
    """The statistics of every feed of this user, by name.

    What dead feeders left behind is removed on the way. A feeder that does
    not answer within 2 s (it is stopped, or starting) is left out.
    """
    found = [statistics for place in places() if (statistics := _ask(place)) is not None]
    return sorted(found, key=lambda statistics: statistics.name)


def stop(name: str) -> int:
    """End a feed; its trainers get ``FeederLost``. Returns the feeder's pid once it is gone.

    Raises:
        FeedNotFound: no such feed.
        TimeoutError: it has not ended within 10 s; its source does not return.
    """
    place = Place(name)
    owner = place.owner()
    try:
        with place.connect() as peer:
            peer.send(wire.encode(wire.Stop(os.getpid())))
            deadline = time.monotonic() + _END_S
            while (lock := place.acquire()) is None:
                if time.monotonic() > deadline:
                    raise TimeoutError
                time.sleep(0.02)
    except TimeoutError:
        raise
    except OSError:
        place.sweep()
        raise FeedNotFound(unknown(name)) from None
    place.remove(lock)
    return owner.pid if owner else 0


def _ask(place: Place) -> FeederStatistics | None:
    try:
        peer = place.connect()
    except OSError:
        place.sweep()
        return None
    with peer:
        peer.settimeout(_ANSWER_S)
        try:
            peer.send(wire.encode(wire.Ask()))
            answer = wire.decode_from_feeder(peer.recv(wire.MAX_PACKET_BYTES))
        except (OSError, msgspec.DecodeError):
            return None
    return answer if isinstance(answer, FeederStatistics) else None
