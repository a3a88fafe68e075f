"""Messages on shared loaders, each on one line of stderr, with the place in the script."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any

from penstock.autosharing.verdict import Declined
from penstock.basics.terminal import say_once
from penstock.basics.tracebacks import OURS
from penstock.errors import PenstockError
from penstock.feed.launch.feeds import feeds, made_of
from penstock.feed.trainer.loader import Loader
from penstock.fingerprint.code import in_library
from penstock.fingerprint.comparison import Fingerprint, fingerprint_difference, same_fingerprint

if TYPE_CHECKING:
    from penstock.autosharing.script_feed import ScriptFeed

_LONGEST = 400
_read: set[str] = set()


def place() -> str:
    """Return file and line of the code that iterates: the script's own, or a library's if that is all there is."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    outer = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(OURS) and not file.startswith("<frozen"):
            where = f"{os.path.basename(file)}:{frame.f_lineno}"
            if not in_library(file):
                return where
            outer = outer or where
        frame = frame.f_back
    return outer


def decline(loader: Any, why: str | Exception) -> None:
    """Print why a loader is not shared, once for all loaders over data sets of its class."""
    if isinstance(why, Exception) and not isinstance(why, (Declined, PenstockError)):
        why = f"{type(why).__name__}: {why}"
    why = " ".join(str(why).partition("\nTraceback")[0].split())
    why = why if len(why) <= _LONGEST else f"{why[:_LONGEST]} …"
    say_once(f"{place()} is not shared: {why}", type(loader.dataset).__name__ + why)


def say_reads(feed: ScriptFeed, loader: Loader) -> None:
    """Print, once for each feed, that a loop reads it; and if nobody else does, how others differ."""
    if feed.is_announced:
        return
    feed.is_announced = True
    _read.add(loader.name)
    samples = "" if loader.samples is None else f", {loader.samples:,} samples"
    if loader.anywhere:
        samples = f", an epoch is {len(loader):,} batches from where it joins"
    say_once(f"{place()} reads feed {loader.name} ({feed.data}{samples}): one order for all, whatever their seeds")
    there = {each.name: each for each in feeds() if _stem(each.name) == _stem(loader.name)}
    if loader.name in there and all(each.pid == os.getpid() for each in there[loader.name].trainers):
        names = sorted(name for name in there.keys() - _read if there[name].trainers)
        made = [(name, other) for name in names if (other := made_of(name))]
        others = [(name, differs) for name, other in made if (differs := difference(other, feed.fingerprint))]
        if others:
            name, differs = others[0]
            many = f"; it is one of {len(others)} that differ" if len(others) > 1 else ""
            say_once(
                f"feed {name} is another one: {differs}{many}. Runs read one feed if all of this is equal: seed "
                "what a script draws at random"
            )


def difference(feeds: Fingerprint, yours: Fingerprint) -> str:
    """Return what differs between two feeds' makings, files that the data sets name included; empty if nothing."""
    if not same_fingerprint(feeds, yours):
        return fingerprint_difference(feeds, yours)
    files = feeds.data.difference(yours.data)
    return files and f"the data set names a file that was written to in between, {files}"


def _stem(name: str) -> str:
    """Return a feed's name without the digest in it."""
    return re.sub(r"-[0-9a-f]{12}(?=-|$)", "-", name)
