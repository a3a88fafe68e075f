"""Joins or starts a feed: the first caller starts the feeder, the rest attach, and whoever is left replaces it."""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from penstock.basics.tracebacks import users_stacklevel
from penstock.errors import BadSetting, SettingsDiffer
from penstock.feed import wire
from penstock.feed.launch.election import connection_to
from penstock.feed.launch.spec import FeederSpec
from penstock.feed.launch.variables import with_suffix, workers
from penstock.feed.settings import DEFAULT_LINGER_S, Settings
from penstock.feed.trainer.batcher import LoaderOptions
from penstock.feed.trainer.connection import FeedConnection, OpenRing
from penstock.feed.trainer.loader import Loader
from penstock.feed.trainer.witness import SampleComparison
from penstock.fingerprint.code import Fingerprint, fingerprint_difference, same_fingerprint
from penstock.fingerprint.data import fingerprint_of_files
from penstock.sources.adapt import with_workers, witness_of
from penstock.sources.seeds import seed_process

_MOST_MADE_S = 1.0


def shared(
    make_loader: Callable[[], Any],
    name: str,
    fingerprint: Fingerprint,
    asked: dict[str, Any],
    given: LoaderOptions,
    joined: Callable[[int | None], None] = lambda rows: None,
    seed: int = 0,
    compares: bool = False,
) -> Loader:
    """Join or start a feed of a fingerprint that is known already; see ``share``.

    Args:
        make_loader: Function that is called in the feeder.
        name: Name of the feed.
        fingerprint: What the feed must have been made of.
        asked: Settings that it must have, as ``checked`` returns them.
        given: What this trainer asks.
        joined: Told the rows of a block, each time that a feeder has admitted this trainer.
        seed: Seed of a feed that is started here, where none is asked; one that runs may have another.
        compares: Whether what ``make_loader`` makes here is compared with what a feeder makes that another process
            has started, before the first batch.
    """
    feed_name, feeder_workers = with_suffix(name), workers()
    began_by_us: set[int] = set()  # feeders
    new: dict[str, Any] = {"linger": DEFAULT_LINGER_S, "seed": seed, **asked}

    def connect(hello: wire.Hello, open_ring: OpenRing, replaced: wire.Welcome | None) -> FeedConnection:
        name, settings = (replaced.name, replaced.settings) if replaced else (feed_name, Settings(**new))
        spec = FeederSpec(make_loader, name, settings, fingerprint, sys.argv, feeder_workers)
        connection, began_here = connection_to(spec, hello, open_ring)
        if began_here:
            began_by_us.add(connection.welcome.pid)
        try:
            _check_same(connection.welcome, {} if replaced else asked, fingerprint)
            if not replaced:
                _warn_of_other_data(connection.welcome)
            joined(connection.welcome.batch_size)
        except BaseException:
            connection.close()
            raise
        return connection

    def check(connection: FeedConnection) -> None:
        welcome = connection.welcome
        if not compares or welcome.pid in began_by_us:
            return
        leaves_of = partial(_made_anew, make_loader, welcome.settings.seed, feeder_workers)
        finding = SampleComparison(connection, 0, leaves_of, _MOST_MADE_S).finding(wait=True)
        if finding is not None and finding.differs:
            raise SettingsDiffer(
                f"your make_loader makes other samples than that of feed {welcome.name!r} (feeder {welcome.pid}): "
                f"{finding.differs}. What it reads from elsewhere (the environment, a file, an object that was "
                "changed) is another: end that feed first "
                f"(penstock stop {shlex.quote(welcome.name)}), or share under another name"
            )

    return Loader(connect, given, failover=True, check=check)


def _made_anew(make_loader: Callable[[], Any], seed: int, workers: int | None, ids: Sequence[int]) -> Any:
    """Make the loader as its feeder does, and digest some of its samples; none of a loader that names none."""
    seed_process(seed)
    leaves_of, why = witness_of(with_workers(make_loader(), workers))
    if leaves_of is None or why:
        raise BadSetting(why or "it is no DataLoader")
    return leaves_of(ids)


def _check_same(welcome: wire.Welcome, asked: dict[str, Any], fingerprint: Fingerprint) -> None:
    feed = f"feed {welcome.name!r} (feeder {welcome.pid})"
    if differs := welcome.settings.difference(asked):
        raise SettingsDiffer(f"{feed} runs with {differs}")
    if welcome.fingerprint and not same_fingerprint(welcome.fingerprint, fingerprint):
        differs = fingerprint_difference(welcome.fingerprint, fingerprint)
        raise SettingsDiffer(
            f"{feed} was started with another make_loader than yours: {differs}. "
            f"If yours was edited, end that feed first (penstock stop {shlex.quote(welcome.name)}); to feed "
            "something else beside it, share under another name"
        )


def _warn_of_other_data(welcome: wire.Welcome) -> None:
    if welcome.fingerprint is None:
        return
    then = welcome.fingerprint.data
    if changed := then.difference(fingerprint_of_files(then.files)):
        warnings.warn(
            f"feed {welcome.name!r} (feeder {welcome.pid}) began with other data than lie there now: {changed}. "
            "If its loader had read them by then, it goes on with what it read. To feed the new ones, end it: "
            f"penstock stop {shlex.quote(welcome.name)}",
            stacklevel=users_stacklevel(),
        )
