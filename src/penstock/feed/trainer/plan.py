"""What decides the order of a feed's samples, as a trainer keeps and compares it."""

from __future__ import annotations

from typing import Any, cast

from penstock.feed.wire import Welcome
from penstock.fingerprint.comparison import fingerprint_difference


def plan_of(welcome: Welcome) -> dict[str, Any]:
    """Return what a state keeps; ``order`` is a digest of what decides the order in the source."""
    return {
        "samples": welcome.samples,
        "source_batch_size": welcome.block_rows,
        "segments": len(welcome.segment_starts),
        "seed": welcome.settings.seed,
        "order": welcome.order,
    }


def order_of(welcome: Welcome) -> dict[str, Any]:
    """Return, by name, what must not differ if a trainer is to go on with another feeder."""
    plan = plan_of(welcome)
    return {
        "batch size": plan.pop("source_batch_size"),
        **plan,
        "epochs": welcome.settings.epochs,
        "whole_batches": welcome.settings.whole_batches,
        "joints": welcome.joins,
    }


def difference_of_feeds(here: Welcome, there: Welcome, *, views: bool) -> str:
    """Say why a trainer of one feed cannot begin its next epoch on another; empty if it can.

    Args:
        here: What its feeder said of itself.
        there: What the other feeder says.
        views: Whether the trainer reads views, for which a smaller window may be too small.
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
