"""Whether a feed is what a trainer expects: its order, its settings and its data."""

from __future__ import annotations

import warnings
from typing import Any, cast

from penstock._version import __version__
from penstock.basics.tracebacks import users_stacklevel
from penstock.errors import BadSetting, SettingsDiffer
from penstock.feed import wire
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
