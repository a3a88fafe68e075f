"""Where a trainer is asked to read its next epoch, by its feeder or by a file, and its connection there."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from penstock.basics.terminal import say
from penstock.errors import BadSetting, FeedNotFound, Refused
from penstock.feed import wire
from penstock.feed.endpoint import ANSWER_S, Endpoint
from penstock.feed.suffix import FeedOfRun
from penstock.feed.trainer.connection import FeedConnection, OpenRing

Connect = Callable[[wire.Hello, OpenRing, wire.Welcome | None], FeedConnection]
"""Finds a feeder, or under ``share`` starts one (in the place of the one that sent this welcome, if any)."""


class Moving(NamedTuple):
    """How one trainer moves.

    Attributes:
        connect: Finds a feeder, or starts it.
        hello: The trainer's hello.
        of_run: The feed that the environment asks for.
        starts: Whether ``connect`` starts a feeder.
    """

    connect: Connect
    hello: wire.Hello
    of_run: FeedOfRun
    starts: bool

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

    def connected(self, to: str, here: wire.Welcome, open_ring: OpenRing) -> tuple[FeedConnection, bool]:
        """Connect to a feed; start it, if the environment asks for it and it does not run.

        Returns:
            The connection, and whether the feed has begun for this trainer.

        Raises:
            Refused: this trainer cannot move.
            PenstockError: the feed does not run, cannot be started, or differs.
        """
        if self.hello.world > 1:
            raise Refused("it is one of several ranks, which begin each epoch on one feed")
        try:
            return FeedConnection(Endpoint(to), self.hello, open_ring, ANSWER_S), False
        except FeedNotFound:
            if not self.starts or to != self.of_run.asked:
                raise
        settings = msgspec.structs.replace(here.settings, expect=1)
        like = msgspec.structs.replace(here, name=to, settings=settings)
        return self.connect(self.hello, open_ring, like), True
