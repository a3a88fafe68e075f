"""Where a trainer reads on when it leaves a feed: at its next epoch, for the rest of one, or at once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from penstock.basics.terminal import say
from penstock.contracts import Cursor, Known, last_read
from penstock.errors import BadSetting, FeedNotFound, PenstockError, Refused, SettingsDiffer
from penstock.feed import wire
from penstock.feed.endpoint import ANSWER_S, MAX_NAME_CHARACTERS, Endpoint
from penstock.feed.suffix import FeedOfRun
from penstock.feed.trainer.connection import FeedConnection, OpenRing
from penstock.feed.trainer.deadlock import Deadlock
from penstock.sources.order import digest

Connect = Callable[[wire.Hello, OpenRing, wire.Welcome | None], FeedConnection]
"""Finds a feeder, or under ``share`` starts one (in the place of the one that sent this welcome, if any)."""


Prepare = Callable[[wire.Welcome, wire.Prepare], None]
"""Starts a feeder like the one that sent this welcome, which prepares from a place; returns once it serves."""


_EACH_S = 60.0
_said_s = [float("-inf")]


def say_moved(text: str, why: str) -> None:
    """Print where a trainer reads on; where its feeder has decided so, and says ``why``, once a minute at most."""
    if not why:
        say(text)
    elif (now := time.monotonic()) - _said_s[0] >= _EACH_S:
        _said_s[0] = now
        say(f"{text}: {why}")


class Elsewhere(NamedTuple):
    """How one trainer comes to another feed."""

    connect: Connect  # finds a feeder, or starts it
    hello: wire.Hello  # the trainer's hello
    of_run: FeedOfRun  # the feed that the environment asks for
    prepare: Prepare | None  # starts a feeder; None where ``connect`` starts none, either

    def asked(self, here: FeedConnection) -> str | None:
        """Return the feed that this trainer is asked to move to; the later word counts."""
        of_run = self.of_run
        if (version := of_run.newest()) != of_run.version:
            try:
                here.moves_to = of_run.asked = of_run.named()
            except BadSetting as error:
                say(f"this trainer (pid {os.getpid()}) stays on feed {here.welcome.name!r}: {error}")
            of_run.version = version
        return here.asked_to_move()

    def connected(
        self, to: str, here: wire.Welcome, open_ring: OpenRing, *, starts: bool
    ) -> tuple[FeedConnection, bool]:
        """Connect to a feed; start it, if the environment asks for it and it does not run, with ``starts``.

        Returns:
            The connection, and whether the feed has begun for this trainer.
        """
        if self.hello.world > 1:
            raise Refused("it is one of several ranks, which begin each epoch on one feed")
        try:
            return FeedConnection(Endpoint(to), self.hello, open_ring, ANSWER_S), False
        except FeedNotFound:
            if self.prepare is None or not starts or to != self.of_run.asked:
                raise
        settings = msgspec.structs.replace(here.settings, expect=1)
        like = msgspec.structs.replace(here, name=to, settings=settings)
        return self.connect(self.hello, open_ring, like), True

    def begin(self, here: FeedConnection, asked: wire.Prepare) -> None:
        """Start a feed in the background, for trainers that read on here until it serves."""
        threading.Thread(target=self._begin, args=(here, asked), name="penstock-prepare", daemon=True).start()

    def _begin(self, here: FeedConnection, asked: wire.Prepare) -> None:
        try:
            assert self.prepare is not None
            self.prepare(here.welcome, asked)
        except (PenstockError, OSError) as error:
            why = str(error).partition("\n")[0]
            name = here.welcome.name
            say(f"feed {asked.to!r} cannot be started, and who would leave {name!r} for it stays: {why}")
            here.stay(asked.to)

    def around(self, deadlock: Deadlock, here: wire.Welcome) -> wire.Welcome:
        """Return a feed of equal order, for those who leave this one because of the same process."""
        name = f"{here.name[: MAX_NAME_CHARACTERS - 24]}-without-{deadlock.holder_pid}"
        say(f"{deadlock}. This one goes on from its place on a feed of its own, {name}")
        return msgspec.structs.replace(here, name=name)

    def for_rest(
        self, here: wire.Welcome, at: Cursor, epoch_start: Cursor, known: Known, *, is_apart: bool
    ) -> wire.Welcome:
        """Return a feed that has the rest of an epoch in its order; ``is_apart`` says that this was to be one."""
        what = f"an epoch that began at sample {epoch_start.sample:,} of cycle {epoch_start.cycle}"
        if is_apart or self.prepare is None:
            raise SettingsDiffer(
                f"feed {here.name!r} has gone on without what makes {what} whole: its samples come in another "
                "order by now. Begin that epoch anew, or read with share(), which gives its rest apart"
            )
        ranks, cycle = self.hello.world > 1, last_read(at, epoch_start)
        decides = self.hello.group if ranks else known.joints.deciding(cycle)  # ranks may stand in two cycles
        name = f"{here.name[: MAX_NAME_CHARACTERS - 24]}-apart-{digest(epoch_start, decides)}"
        again = "" if ranks else f", and begins its next epoch on {here.name!r} again"
        say(f"this trainer (pid {os.getpid()}) reads the rest of {what} on a feed of its own, {name}{again}")
        return msgspec.structs.replace(here, name=name)
