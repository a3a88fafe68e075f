"""Trainers that leave a feed for another, which is started first: nobody leaves before it has what they read."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.contracts import Known
from penstock.errors import PenstockError
from penstock.feed import wire
from penstock.feed.endpoint import Endpoint
from penstock.feed.feeder.blocks import FeedMember
from penstock.feed.feeder.session import Session
from penstock.feed.queries import answer_to, statistics_of
from penstock.feed.statistics import FeederStatistics

if TYPE_CHECKING:
    from penstock.feed.feeder.server import Server

_LOOK_S = 0.1
_ANSWER_S = 0.5
_START_S = 600.0
"""A feed that is not there by then is not waited for any more: making a loader may take minutes."""
_GIVEN_UP_S = 5.0


@dataclass
class _Departure:
    """Trainers that leave for a feed."""

    to: str
    members: set[int]
    until_s: float
    why: str  # for the user
    waits: bool  # whether they do not leave yet, even if it serves
    starter: int | None = None  # the trainer that was asked to start it
    is_there: bool = False  # whether it has been seen
    told: bool = False  # whether they have been told to go; until they have gone, it is asked for
    ends: bool = False  # whether it was started in vain, as all stay


class Departures:
    """Sends a feed's trainers to others, from a thread that is there while somebody is about to leave."""

    def __init__(self, server: Server, known: Callable[[FeedMember], Known | None]) -> None:
        self._server = server
        self._known = known  # returns what a member must know of joints
        self._departures: list[_Departure] = []
        self._looks = False
        self.stayed = ""  # for which feed nobody left who was last told to go

    def begin(self, members: Sequence[int], to: str, why: str = "", *, waits: bool = False) -> None:
        """Send trainers to a feed, from their places, once it serves; have it started, if need be."""
        self.cancel(members)
        self._departures.append(_Departure(to, {*members}, time.monotonic() + _START_S, why, waits))
        if not self._looks:
            self._looks = True
            threading.Thread(target=self._look, name="penstock-departures", daemon=True).start()

    def cancel(self, members: Sequence[int]) -> None:
        """Let trainers stay."""
        for each in self._departures:
            each.members.difference_update(members)

    def about(self, to: str) -> bool:
        """Whether somebody is about to leave for a feed."""
        return any(each.to == to and not each.told for each in self._departures)

    @property
    def are_given_up(self) -> bool:
        """Whether a feed that is being started is to end at once."""
        return any(not each.members for each in self._departures)

    def go(self, to: str, why: str) -> None:
        """Let those leave who wait for it."""
        for each in self._departures:
            if each.to == to:
                each.waits, each.why = False, why

    def give_up(self, to: str) -> None:
        """Let those stay who wait to leave for a feed, which ends; one that is not there soon ends by itself."""
        for each in self._departures:
            if each.to == to:
                each.members.clear()
                each.until_s = time.monotonic() + _GIVEN_UP_S

    def stays(self, to: str) -> None:
        """Note that a trainer does not leave for a feed: it cannot read on there, and has said why."""
        self.stayed = to
        self.end(to, "")

    def end(self, to: str, why: str) -> None:
        """Let all stay who are about to leave for a feed, and tell them why; if it is empty, they know."""
        for each in [departure for departure in self._departures if departure.to == to]:
            self._departures.remove(each)
            if why and not each.told and not each.waits:
                stay = wire.Move(self._server.name, why=f"it does not leave for {to!r}, {why}")
                self._server.send([session.member for session in self._here(each)], stay)

    def _look(self) -> None:
        while True:
            with self._server.lock:
                waiting = [*self._departures] if self._server.closing is None else []
                self._looks = bool(waiting)
            if not waiting:
                return
            for each in waiting:
                try:
                    feed = statistics_of(Endpoint(each.to), _ANSWER_S, sends=True)
                except PenstockError:
                    feed = None
                with self._server.lock:
                    if each in self._departures:
                        self._go_on(each, feed)
                if each.ends and feed is not None and not feed.trainers:
                    with suppress(OSError, PenstockError):
                        answer_to(Endpoint(each.to), wire.Stop(os.getpid()), _ANSWER_S)
            time.sleep(_LOOK_S)

    def _go_on(self, departure: _Departure, feed: FeederStatistics | None) -> None:
        here, is_there = self._here(departure), feed is not None
        serves = feed is not None and feed.answers and (feed.blocks > 0 or departure.starter is None)
        ended = departure.is_there and not is_there
        departure.is_there = is_there
        if not here:
            starts = not is_there and not ended and departure.starter in self._server.sessions
            if not starts or departure.told or time.monotonic() > departure.until_s:
                departure.ends = departure.starter is not None and not departure.told
                self._departures.remove(departure)
        elif ended:
            self.end(departure.to, "which has ended")
        elif time.monotonic() > departure.until_s:
            self.end(departure.to, f"which was not there after {_START_S:.0f} s")
        elif serves and not departure.told and not departure.waits:
            departure.told, self.stayed = True, ""
            self._server.send([each.member for each in here], wire.Move(departure.to, now=True, why=departure.why))
        elif not is_there and departure.starter not in self._server.sessions:
            departure.starter = self._prepare(departure.to, here)

    def _here(self, departure: _Departure) -> list[Session]:
        return [
            each
            for id, each in self._server.sessions.items()
            if id in departure.members and not each.member.resting
        ]

    def _prepare(self, to: str, here: Sequence[Session]) -> int | None:
        """Have one start a feed that prepares from the place of the last of them; return who, if one can."""
        reading = [each for each in here if each.member.reads and each.member.epoch_start is not None]
        starter = next((each.member for each in reading if each.hello.starts), None)
        if starter is None:
            if not any(each.hello.starts for each in here):
                self.end(to, "which does not run: only a trainer of share() can start it")
            return None
        places = [(each.member.behind, each.member.epoch_start, each.member) for each in reading]
        at, epoch_start, last = min(places, key=lambda place: place[0])
        assert epoch_start is not None
        at = max(at, epoch_start)
        known = (self._known(last) or Known()).read_on(at, epoch_start)
        self._server.send([starter], wire.Prepare(to, *at, *epoch_start, known))
        return starter.id
