"""Decides, each time a script iterates a DataLoader, whether it reads a feed."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import PurePath
from typing import Any, NamedTuple

import torch

from penstock.autosharing.iterator import SharedIterator, StatefulIterator
from penstock.autosharing.messages import decline, place
from penstock.autosharing.options import ShareOptions, from_environment, runs_together
from penstock.autosharing.ranks import Meeting
from penstock.autosharing.recipe import LoaderRecipe, things_of
from penstock.autosharing.script_feed import ScriptFeed
from penstock.autosharing.verdict import Declined, Plan, judge, ranks_here
from penstock.basics.terminal import say_once
from penstock.errors import BadSetting
from penstock.fingerprint.comparison import Fingerprint
from penstock.fingerprint.objects import fingerprint_of_objects, small_state
from penstock.fingerprint.shared_memory import shared_memory_state
from penstock.inject import FEEDER
from penstock.sources.torch.sampling import chain_of

options: ShareOptions | None = from_environment()
"""What is asked for all of the script's loaders; None if only those are shared that it has marked."""
marks: dict[int, tuple[Any, str]] = {}
"""Data sets whose loaders the script has marked, by identity, and the names of their feeds."""

_LEAST_STARTS = 10
"""An epoch that lasts for fewer starts of a feeder is not worth one of its own."""

_TURNS = 4
"""New loaders whose data differ, one after another, may be of so many data sets by turns, and one more."""

_SHARED = (
    "memory that its persistent workers share has changed, which a feed does not see: its own workers begin now, "
    "with what is now"
)
_CHANGED = (
    "its sampler was told more, and its data have changed since its persistent workers began, which see no "
    "change: its own workers begin now, with what is now"
)


class _Decision(NamedTuple):
    """A feed, the loader's small state when it was chosen, and of that what workers that persist began with."""

    state: str
    feed: ScriptFeed
    workers: str
    shared: str  # of memory that they share


def guard(loader: Any, make: Callable[[], Any]) -> Any:
    """Return an iterator that reads a feed, or the loader's own."""
    mark = marks.get(id(loader.dataset))
    if (options is None and mark is None) or FEEDER in os.environ:
        return make()
    feed = _decided(loader)
    read = feed or _later(loader)
    if read is None:
        return make()
    try:
        kind = StatefulIterator if hasattr(loader, "next_iter_state") else SharedIterator
        iterator = kind(loader, _decided, read, make, _asked())
    except Declined as declined:
        _decline(loader, declined)
        return make()
    if feed is None:
        iterator.go_alone()
    return iterator


def _decided(loader: Any) -> ScriptFeed | None:
    """Return the feed that a loader reads in the epoch that begins; None for none, with a message if needed."""
    try:
        return _feed_of(loader)
    except Declined as declined:
        _decline(loader, declined)
    except Exception as error:
        if _asked().strict:
            raise
        decline(loader, error)
    return None


def _decline(loader: Any, declined: Declined) -> None:
    """Say why a loader is not shared, if that needs to be said; raise it where all must be."""
    if _asked().strict and not declined.expected:
        raise BadSetting(f"{place()} is not shared, and --strict is asked for: {declined}") from None
    if _asked().explain or not declined.expected:
        decline(loader, declined)


def _later(loader: Any) -> ScriptFeed | None:
    """Return the feed of a loader's next epochs, if its iterator persists, and only this one validates."""
    if not loader.persistent_workers or (torch.is_grad_enabled() and not torch.is_inference_mode_enabled()):
        return None
    with suppress(Exception), torch.inference_mode(False), torch.enable_grad():
        return _feed_of(loader)
    return None


def _asked() -> ShareOptions:
    return options or ShareOptions()


class _Read(NamedTuple):
    """What a loop has read last."""

    feed: str
    before: frozenset[str]  # all feeds that it has read
    loader: weakref.ref[Any]
    since_s: float
    epochs: int  # that it has read of that feed
    changes: int  # how often data had changed after one epoch, one after another


class _Known:
    """What this process has decided."""

    def __init__(self) -> None:
        self.decisions: weakref.WeakKeyDictionary[Any, _Decision] = weakref.WeakKeyDictionary()
        self.feeds: weakref.WeakValueDictionary[Any, ScriptFeed] = weakref.WeakValueDictionary()
        self.joined: Counter[str] = Counter()
        self.meetings: dict[tuple[str, int, int], Meeting] = {}
        self.alone: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()  # and why
        self.read: dict[tuple[str, str], _Read] = {}  # by class of the data set, and place
        self.changing: dict[tuple[str, str], str] = {}  # where data change too often, and why it is alone
        self.latest: ScriptFeed | None = None  # for a loader that is made anew for each epoch


_known = _Known()


def _forget() -> None:
    """In a forked child: what its parent reads is the parent's."""
    global _known  # noqa: PLW0603
    _known = _Known()


os.register_at_fork(after_in_child=_forget)


def _feed_of(loader: Any) -> ScriptFeed:
    """Choose the feed that a loader reads in the epoch that begins."""
    if threading.current_thread() is not threading.main_thread():
        raise Declined("it is iterated in a thread, and a feed is read in the main thread of a process")
    asked, mark = _asked(), marks.get(id(loader.dataset))
    plan = judge(loader, ranks_here(), iterable=asked.iterable, asked=mark is not None)
    here = kind, where = type(loader.dataset).__name__, place()
    if asked.only and not any(fnmatch(name, asked.only) for name in here):
        decline(loader, why := f"neither {kind} nor {where} is among --only {asked.only}")
        raise Declined(why, expected=True)
    changing = None if plan.shard or loader in _known.decisions else _known.changing.get(here)
    if why := _known.alone.get(loader) or changing:
        raise Declined(why)
    things = things_of(loader, plan)
    # Workers that persist see no change of what they have, unless it is in memory that they share.
    state = small_state({"sampler": things.get("sampler")} if loader.persistent_workers else things)
    shared = shared_memory_state(things) if loader.persistent_workers else ""
    decision = _known.decisions.get(loader)
    is_other = decision is None or decision.state != state or decision.feed.plan != plan
    workers = small_state({**things, "sampler": None}) if is_other and loader.persistent_workers else ""
    if decision is not None:
        why = _SHARED if decision.shared != shared else ""
        if is_other:
            why = why or (_CHANGED if decision.workers != workers else _too_short(loader, plan, decision.feed))
        if why:
            _known.alone[loader] = why
            _leave(loader)
            raise Declined(why)
    if decision is None or is_other:
        fingerprint = fingerprint_of_objects(things)
        stem = (mark and mark[1]) or asked.name or _script()
        feed = _feed(loader, plan, things, fingerprint, stem, is_first=here not in _known.read)
        if why := _changes_too_often(here, feed, loader):
            _known.changing[here] = why
            _leave(loader)
            raise Declined(why)
        if asked.explain:
            say_once(f"{where} is shared as {feed.name}: {plan.reason}")
        if decision is not None and decision.feed is feed:
            feed.proof.renew()
        decision = _known.decisions[loader] = _Decision(state, feed, workers, shared)
    name, read = decision.feed.name, _known.read.get(here)
    if read is None or read.feed != name:
        before = read.before if read else frozenset[str]()
        changes = read.changes + 1 if read and read.epochs == 1 and name not in before else 0
        read = _Read(name, before | {name}, weakref.ref(loader), time.monotonic(), 0, changes)
    _known.read[here] = read._replace(epochs=read.epochs + 1)
    _known.latest = decision.feed
    return decision.feed


def _changes_too_often(here: tuple[str, str], feed: ScriptFeed, loader: Any) -> str:
    """Return why a loop whose data have changed reads no feed any more; empty if it does, as ranks do together."""
    read, latest = _known.read.get(here), _known.latest
    if read is None or latest is None or feed.meeting or feed.name in read.before or read.epochs > 1:
        return ""
    is_long_so = read.changes >= (1 if read.loader() is loader else _TURNS)
    lasts = _lasts_too_short(read.since_s, latest.start_s) if is_long_so else ""
    each = "its data have changed with each of its epochs, each of which takes a feed of its own"
    return lasts and f"{each}, and {lasts}"


def _leave(loader: Any) -> None:
    """Have a loader come back to no feed, if it has read one."""
    if decision := _known.decisions.pop(loader, None):
        decision.feed.leave()


def _lasts_too_short(since_s: float, start_s: float) -> str:
    """Return how long an epoch that began then lasts, if that is not worth a feed of its own."""
    lasted_s = time.monotonic() - since_s
    if lasted_s >= _LEAST_STARTS * start_s:
        return ""
    return f"lasts {lasted_s:.1f} s, less than {_LEAST_STARTS} starts of a feeder ({start_s:.1f} s)"


def _too_short(loader: Any, plan: Plan, feed: ScriptFeed) -> str:
    """Return why a loader reads no feed of its next epoch, and none of the later ones; empty if it does."""
    told = [each for each in (*chain_of(plan.sampler), loader.dataset) if hasattr(each, "set_epoch")]
    if not told or feed.begun_s is None or feed.looked_at:  # a look at the first batch was no epoch
        return ""
    lasts = _lasts_too_short(feed.begun_s, feed.start_s)
    what = f"what its {type(told[0]).__name__} is told of the epoch takes a feed for each"
    found = f"{what}, and an epoch {lasts}" if lasts else "-"
    found = feed.meeting.first_says(found) if feed.meeting else found
    return "" if found == "-" else found


def _feed(
    loader: Any, plan: Plan, things: dict[str, Any], fingerprint: Fingerprint, stem: str, *, is_first: bool
) -> ScriptFeed:
    """Return the feed of a fingerprint, as this process knows it already or anew.

    It waits for the other runs if it is the first one here: they come to a later one each in its time.
    """
    versions = [(path, file.nbytes, file.mtime_ns, file.etag) for path, file in fingerprint.data.files.items()]
    name = f"{stem}-{hashlib.sha256(repr((fingerprint.digest, versions)).encode()).hexdigest()[:12]}"
    key = name, plan.batch_size, plan.drop_last, plan.shard, plan.pad, plan.full, plan.pin_memory
    feed = _known.feeds.get(key)
    if feed is None:
        world = plan.shard[1] if plan.shard else 1
        workers = options.workers if options and options.workers is not None else loader.num_workers * world
        if plan.kind == "stream":  # each worker gives its own part
            workers = loader.num_workers
        asked: dict[str, Any] = {"whole_batches": plan.whole}
        if options and options.pace:
            asked["pace"] = options.pace
        if is_first and (together := runs_together()) > 1:
            asked["expect"] = together
        feed = ScriptFeed(
            name,
            fingerprint,
            LoaderRecipe(loader, plan, workers, things, fingerprint),
            plan,
            asked,
            type(loader.dataset).__name__,
            _known.joined,
            plan.shard
            and _known.meetings.setdefault((name, *plan.shard), Meeting(name, *plan.shard, fingerprint)),
        )
        _known.feeds[key] = feed
    return feed


def _script() -> str:
    """Return the name of the script that runs."""
    main = getattr(sys.modules["__main__"], "__file__", None) or sys.argv[0]
    return PurePath(main).stem or "script"
