"""A feed and those that have parted from it: how each goes, and who reads on where."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.contracts import Cursor
from penstock.errors import PenstockError
from penstock.feed import wire
from penstock.feed.endpoint import MAX_NAME_CHARACTERS, Endpoint
from penstock.feed.feeder.blocks import TO_COME
from penstock.feed.feeder.parting import (
    Decision,
    GiveUp,
    Join,
    Leave,
    Parting,
    Return,
    StartFeed,
)
from penstock.feed.feeder.seen import FeedSeen, KinSeen, MemberSeen
from penstock.feed.feeder.usage import UsageMeter
from penstock.feed.queries import answer_to, family_of, statistics_of
from penstock.feed.settings import Settings
from penstock.feed.statistics import FamilyStatistics, FeederStatistics
from penstock.feed.suffix import parted_name, root_of
from penstock.linux.cgroups import cpu_limits, free_memory_bytes
from penstock.linux.process import children

if TYPE_CHECKING:
    from penstock.feed.feeder.feed_state import FeedState
    from penstock.feed.feeder.pace import Throughput
    from penstock.feed.feeder.server import Server

_LOOK_S, _TRIAL_LOOK_S, _MEASURE_S = 1.0, 0.25, 5.0
_ANSWER_S = 0.5
_START_S = 3.0
"""A new feed serves so long after ``make_loader`` has returned, or sooner."""
_MEMORY = 3
"""Free memory must be so many times what a feed's processes take before another is started."""
_MOST_NAME_CHARACTERS = MAX_NAME_CHARACTERS - 32
"""A parted feed is named for its root."""
_KEEPS = '(pace="together" keeps all on one feed)'


def why_together(name: str, source: object, settings: Settings, *, by_share: bool) -> str:
    """Return why all trainers of a feed stay on it, in words that follow "as"; empty if they may part."""
    if settings.pace == "together":
        return 'it was started with pace="together"'
    if settings.across:
        return "it gives the order of other machines"
    if settings.remote is not None:
        return "a cluster makes its blocks"
    if settings.memory != "host":
        return f'it asks for a window on a GPU (memory="{settings.memory}")'
    if not by_share:
        return "share() did not start it"
    if not getattr(source, "samples", None) or not getattr(source, "order", ""):
        return "its source has no planned order"
    return "its name is too long" if len(name) > _MOST_NAME_CHARACTERS else ""


class Family:
    """Watches, from a thread of its own, how a feed and its kin go, and sends trainers where they go faster."""

    def __init__(
        self,
        server: Server,
        state: FeedState,
        published: Throughput,  # what the feed has published
        together: str,  # why all its trainers stay on it; empty if they may part
        made_s: float,  # time that ``make_loader`` took
    ) -> None:
        self._server, self._state, self._published = server, state, published
        self.usage = UsageMeter()
        self._together, self._made_s = together, made_s
        self._root, self._started = root_of(server.name), 0
        now = time.monotonic()
        self._parting = Parting(self._next_name, now, is_new=self._root != server.name)
        self._kin: dict[str, KinSeen] = {}
        self._measured_s, self._cpu_s = now, self.usage.read().cpu_s
        self._idle_cores, self._has_memory = 0.0, True
        self._limits = dict[str, tuple[float, float]]()  # cores and CPU time, as measured last
        self._workers = 0  # that have begun with the first block; 0 before it
        self._counts_from: tuple[float, int] | None = None
        """When each of them had made a block, and what had been passed by then."""
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="penstock-family", daemon=True)

    def start(self) -> None:
        """Watch, until it is closed."""
        if not self._together:
            self._thread.start()

    def end(self) -> None:
        """Watch no more."""
        self._ends.set()

    def close(self) -> None:
        """Return when it watches no more."""
        self.end()
        with suppress(RuntimeError):  # not started
            self._thread.join()

    def statistics(self) -> FamilyStatistics:
        """Return how the feed stands among its kin; under the server's lock."""
        published, parting, stayed = self._published, self._parting, self._server.departures.stayed
        self._workers = self._workers or (max(1, len(children(os.getpid()))) if published.blocks else 0)
        if self._counts_from is None and 0 < self._workers <= published.blocks:
            self._counts_from = time.monotonic(), published.positions
        until_s = self._server.pace.idle_since_s if TO_COME in self._state.members else None
        made, made_s = 0, 0.0
        if self._counts_from is not None:
            from_s, before = self._counts_from
            made_s = max(0.0, (until_s or time.monotonic()) - from_s)
            made = published.positions - before if made_s else published.positions
        return FamilyStatistics(
            self._root,
            self._together or self._who_stays(),
            parting.slowest,
            parting.rate,
            parting.is_busy,
            made,
            made_s,
            until_s is not None,
            "a trainer did not leave for it, and said why" if stayed in parting.children else parting.refused,
        )

    def _who_stays(self) -> str:
        """Return why none of its trainers may leave; empty if one may."""
        hellos = [each.hello for each in self._server.sessions.values()]
        stay = hellos and all(hello.world > 1 or hello.follows for hello in hellos)
        return "they are ranks of one run, or follow PENSTOCK_FEED_FILE" if stay else ""

    def _next_name(self) -> str:
        self._started += 1
        return parted_name(self._root, self._started)

    def _watch(self) -> None:
        while not self._ends.wait(_LOOK_S if self._parting.trial is None else _TRIAL_LOOK_S):
            if self._is_alone():
                continue
            with suppress(OSError, PenstockError):
                self._learn()
            with self._server.lock:
                decided = self._decided(time.monotonic())
                for each in decided:
                    self._does(each)
            for each in decided:
                if isinstance(each, Return):
                    self._send_back(each)

    def _is_alone(self) -> bool:
        """Whether there is nobody to part from; a parted feed that nobody reads ends, if another is read."""
        with self._server.lock:
            trainers = len(self._server.sessions)
            is_parted, any_read = self._root != self._server.name, any(each.settled for each in self._kin.values())
            if is_parted and not trainers and any_read and TO_COME not in self._state.members:
                self._server.end_without_trainers()
            return not is_parted and trainers < 2 and not self._parting.children

    def _learn(self) -> None:
        """Measure, and ask the others of the family how they stand."""
        now, trial = time.monotonic(), self._parting.trial
        if now - self._measured_s >= _MEASURE_S:
            self._measure(now)
            family = [feed for feed in family_of(self._root, _ANSWER_S) if feed.name != self._server.name]
            self._kin = {feed.name: seen for feed in family if (seen := self._kin_seen(feed))}
        if trial is not None:
            feed = statistics_of(Endpoint(trial.to), _ANSWER_S)
            if feed is None:
                self._kin.pop(trial.to, None)
            elif seen := self._kin_seen(feed):  # else it does not answer now
                self._kin[feed.name] = seen

    def _decided(self, now: float) -> list[Decision]:
        trial = self._parting.trial
        if trial is not None and not self._server.departures.about(trial.to):
            return self._parting.fail(now, "it could not be started")
        return self._parting.look(now, self._seen(now), self._kin)

    def _does(self, decision: Decision) -> None:
        """Carry out what was decided, but for what another feed is asked to do."""
        departures, alone = self._server.departures, self._parting.alone
        match decision:
            case StartFeed(to=to, members=members):
                departures.begin(members, to, waits=True)
            case Leave(to=to, members=members, stopped=stopped):
                slowest, mine = self._parting.slowest or 0.0, min(alone(each) or 0.0 for each in members)
                faster = f"it can be {mine / max(slowest, 1e-9):.1f} times as fast as the slowest there"
                why = "a run there takes nothing" if stopped else faster if mine > slowest else "it is slower"
                departures.go(to, f"{why} {_KEEPS}")
            case GiveUp(to=to):
                departures.give_up(to)
            case Join(member=member, to=to) if not self._server.sessions[member].told:
                why = f"together nobody is slower {_KEEPS}" if to else ""
                self._server.send([self._state.members[member]], wire.Move(to or self._server.name, why=why))
            case _:
                pass

    def _send_back(self, back: Return) -> None:
        with suppress(OSError, PenstockError):
            feed, here = statistics_of(Endpoint(back.child), _ANSWER_S), self._server.name
            for pid in {trainer.pid for trainer in feed.trainers} if feed else ():
                answer_to(Endpoint(back.child), wire.MoveTrainer(pid, here, now=True, why=back.why), _ANSWER_S)

    def _measure(self, now: float) -> None:
        took_s, self._measured_s = now - self._measured_s, now
        used = self.usage.read()
        self._cpu_s = used.cpu_s
        before, self._limits = self._limits, cpu_limits()
        idle = [
            cores - (used_s - before[where][1]) / took_s
            for where, (cores, used_s) in self._limits.items()
            if where in before
        ]
        self._idle_cores = max(0.0, min(idle, default=0.0))
        own_bytes = used.private_bytes + self._state.room.capacity_bytes
        self._has_memory = free_memory_bytes() >= _MEMORY * own_bytes

    def _kin_seen(self, feed: FeederStatistics) -> KinSeen | None:
        """Return how another feed stands; None if it does not answer."""
        if (its := feed.family) is None:
            return None
        reads = [each for each in feed.trainers if each.state in ("reading", "waiting", "ahead")]
        return KinSeen(
            bool(reads),
            its.made,
            feed.blocks,
            its.rate,
            its.busy,
            its.alone_samples_per_s,
            min((self._place(Cursor(each.cycle, each.sample)) for each in reads), default=0.0),
            self._place(Cursor(feed.cycle, feed.sample)),
            its.made_s,
            its.is_full,
        )

    def _seen(self, now: float) -> FeedSeen:
        """Return how this feed stands; under the server's lock."""
        published, room = self._published, self._state.room
        room_s, idle_s = self._server.pace.waited_s(now)
        free = (room.capacity_bytes - room.used_bytes) * published.positions / max(1, published.bytes)
        return FeedSeen(
            published.positions,
            published.blocks,
            room_s,
            idle_s,
            self._place(self._state.position),
            free,
            [self._member(id) for id in self._server.sessions if self._state.members[id].reads],
            self._cpu_s,
            self._idle_cores,
            self._has_memory and not self._server.departures.are_given_up,
            self._made_s,
            self._made_s + _START_S,
        )

    def _member(self, id: int) -> MemberSeen:
        session, member = self._server.sessions[id], self._state.members[id]
        place, begun = self._place(member.behind), member.epoch_start
        left = 0.0 if begun is None else max(0.0, self._place(begun) + (self._state.samples or 0) - place)
        moves = session.hello.world == 1 and not session.hello.follows and not session.told
        passed = member.taken / member.part
        return MemberSeen(id, passed, member.wait_s, place, left, member.unread > 0, moves, session.hello.starts)

    def _place(self, at: Cursor) -> float:
        return at.cycle * (self._state.samples or 0) + at.sample
