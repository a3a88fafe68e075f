"""Whether a feed is what a trainer expects: its order, its settings and data, and the samples themselves."""

from __future__ import annotations

import time
import warnings
from typing import Any, NamedTuple, cast

from penstock._version import __version__
from penstock.basics.tracebacks import users_stacklevel
from penstock.errors import BadSetting, SettingsDiffer
from penstock.feed import wire
from penstock.feed.trainer.connection import FeedConnection
from penstock.fingerprint.batch import LIMIT_S, STRUCTURE, LeafDigest, LeavesOf, Making, difference, twice
from penstock.fingerprint.comparison import fingerprint_difference

STATE_VERSION = 2


def plan_of(welcome: wire.Welcome) -> dict[str, Any]:
    """Return what a state records; ``order`` is a digest of what decides the order in the source."""
    return {
        "samples": welcome.samples,
        "source_batch_size": welcome.block_rows,
        "segments": len(welcome.segment_starts),
        "seed": welcome.settings.seed,
        "order": welcome.order,
    }


def order_of(welcome: wire.Welcome) -> dict[str, Any]:
    """Return, by name, what must not differ if a trainer is to go on with another feeder."""
    plan = plan_of(welcome)
    return {
        "batch size": plan.pop("source_batch_size"),
        **plan,
        "epochs": welcome.settings.epochs,
        "whole_batches": welcome.settings.whole_batches,
        "joints": welcome.joins,
    }


def check_goes_on(before: wire.Welcome, now: wire.Welcome) -> None:
    """Raise SettingsDiffer if a feeder in the place of another has another order."""
    had, has = order_of(before), order_of(now)
    if changed := ", ".join(name for name in had if had[name] != has[name]):
        raise SettingsDiffer(
            f"feed {now.name!r}, on which this trainer would go on, has other {changed} than {before.name!r} had "
            "under its last feeder. Load its state_dict() into a Loader of a feed like the first"
        )


def warn_of_other_data(before: wire.Welcome, now: wire.Welcome) -> None:
    """Warn if the rest of an epoch comes from other files than its beginning."""
    if before.fingerprint is None or now.fingerprint is None:
        return
    if changed := before.fingerprint.data.difference(now.fingerprint.data):
        warnings.warn(
            f"the feeder of {now.name!r} died, and the one in its place reads other data: {changed}. From here on "
            "batches come from the new files",
            stacklevel=users_stacklevel(),
        )


def difference_of_feeds(here: wire.Welcome, there: wire.Welcome, *, views: bool) -> str:
    """Say why a trainer of one feed cannot begin its next epoch on another; empty if it can.

    For a trainer that reads ``views``, a smaller window may be too small.
    """
    mine, other = here.fingerprint, there.fingerprint
    if mine is None or other is None:
        return "only of feeds that share() started is known that they have the same samples"
    if mine.digest != other.digest:
        return f"that was started with another make_loader: {fingerprint_difference(other, mine)}"
    if changed := mine.data.difference(other.data):
        return f"that reads other data: {changed}"
    before, now = ({**order_of(welcome), "memory": welcome.settings.memory} for welcome in (here, there))
    differ = [name for name in before if before[name] != now[name]]
    if views and there.settings.window_bytes < here.settings.window_bytes:
        differ.append("window")
    return f"that has other {', '.join(differ)}" if differ else ""


def check_state(state: Any, welcome: wire.Welcome) -> None:
    """Check that a state comes from a Loader of this version, of a feed with the same order of samples."""
    if not isinstance(state, dict) or "plan" not in state:
        raise BadSetting("this state does not come from a Loader's state_dict()")
    saved = cast("dict[str, Any]", state)
    if saved.get("version") != STATE_VERSION:
        raise BadSetting(
            f"this state has version {saved.get('version')!r}, and penstock {__version__} reads "
            f"version {STATE_VERSION}: it was saved by another version of penstock. Begin its epoch anew"
        )
    if differs := plan_difference(saved["plan"], plan_of(welcome)):
        raise BadSetting(
            f"this state belongs to another order of samples than that of feed {welcome.name!r}: {differs}. "
            "Start the feed with the loader, sampler, segments and seed of the state"
        )


def plan_difference(saved: Any, here: dict[str, Any]) -> str:
    """Describe how a state's plan differs from a feed's; empty if it does not."""
    if not isinstance(saved, dict):
        return "it names none"
    plan = cast("dict[str, Any]", saved)
    found = [
        f"it was saved with {name}={plan.get(name)!r}, the feed has {value!r}"
        for name, value in here.items()
        if name != "order" and plan.get(name) != value
    ]
    if not found and plan.get("order") != here["order"]:
        found = [
            "its source's order is another (shuffle, sampler, generator, the source's own seed, or which file has "
            "which id)"
        ]
    return ", ".join(found)


class Compared(NamedTuple):
    """What a comparison has found; nothing if the samples are the same."""

    differs: str = ""  # which sample differs, and in which leaf
    unproved: str = ""  # why it is not known
    cpu_s: float = 0.0  # CPU time of this process's child
    random: str = ""  # leaves that come out another each time, and so are not compared


class SampleComparison:
    """Compares what this process's own data set makes of a few samples with what the feeder's does.

    Either makes them in a child of its own, and twice; only what comes out alike in each of them is compared.
    Random images so have labels that are.
    """

    def __init__(
        self, connection: FeedConnection, number: int, leaves_of: LeavesOf, most_made_s: float = float("inf")
    ) -> None:
        self._connection = connection
        self._number = number  # which samples: the feeder chooses some for each number
        self._leaves_of = leaves_of  # makes samples, in a child
        self._most_made_s = most_made_s  # compare only if the feed's ``make_loader`` took less time
        self._making: Making | None = None
        self._began_s = time.monotonic()
        connection.ask_witness(number)

    def finding(self, *, wait: bool) -> Compared | None:
        """Return what has been found; None if that takes longer, unless it is to be waited for.

        It is given up 2 s after it began, or when the feeder is gone.
        """
        try:
            found = self._found(wait=wait)
        except BaseException:
            self.close()
            raise
        if found is None and time.monotonic() - self._began_s > LIMIT_S:
            found = Compared(unproved=f"making its samples took over {LIMIT_S:g} s")
        elif found is None and wait:
            found = Compared(unproved="the feeder is gone")
        if found is not None:
            self.close()
        return found

    def close(self) -> None:
        """Give it up."""
        if self._making is not None:
            self._making.close()

    def _found(self, *, wait: bool) -> Compared | None:
        theirs = self._connection.witness(self._number, self._left_s(wait), complete=False)
        if theirs is None:
            return None
        if theirs.why:
            return Compared(unproved=f"in the feeder, {theirs.why}")
        if theirs.made_s >= self._most_made_s:
            return Compared(unproved=f"make_loader took {theirs.made_s:.1f} s")
        if self._making is None:
            self._making = Making(self._leaves_of, theirs.ids)
        mine = self._making.result(self._left_s(wait))
        if mine is None:
            return None
        if isinstance(mine, str):
            return Compared(unproved=f"here, {mine}", cpu_s=self._making.cpu_s)
        theirs = self._connection.witness(self._number, self._left_s(wait), complete=True)
        return None if theirs is None else self._compared(mine, theirs, self._making)

    def _compared(self, mine: tuple[LeafDigest, ...], theirs: wire.Witness, making: Making) -> Compared:
        """Compare what both have made; what differs is made once more, in another child, if that can be."""
        if theirs.leaves is None:
            return Compared(unproved=f"in the feeder, {theirs.why}", cpu_s=making.cpu_s)
        here, there = ({leaf.name for leaf in each if leaf.repeats} for each in (mine, theirs.leaves))
        if not here & there - {STRUCTURE}:
            return Compared(unproved="its data set makes nothing twice alike", cpu_s=making.cpu_s)
        if difference(mine, theirs.leaves):
            self._making = Making(self._leaves_of, theirs.ids)
            again = self._making.result(LIMIT_S)
            if isinstance(again, tuple):
                mine = twice(mine, again)
        if found := difference(mine, theirs.leaves):
            return Compared(f"of sample {theirs.ids[found[1]]:,}, {found[0]} differs", cpu_s=making.cpu_s)
        random = sorted({leaf.name for leaf in mine} - (here & there))
        return Compared(cpu_s=making.cpu_s, random=", ".join(random)[:200])

    def _left_s(self, wait: bool) -> float:
        return max(0.0, self._began_s + LIMIT_S - time.monotonic()) if wait else 0.0
