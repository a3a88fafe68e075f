"""Finds listeners by name: ours, and those that other packages bring."""

from __future__ import annotations

from importlib.metadata import entry_points
from pkgutil import resolve_name

from penstock.errors import BadSetting
from penstock.runs.listeners.contract import Listener

ENTRY_POINTS = "penstock.listeners"
"""Group of entry points of other packages: a name, and what makes the listener when called without arguments."""
_OURS = {
    "proc": "penstock.runs.listeners.proc:ProcListener",
    "host": "penstock.runs.listeners.host:HostListener",
    "disk": "penstock.runs.listeners.disk:DiskListener",
    "gpu": "penstock.runs.listeners.gpu:GpuListener",
    "gpm": "penstock.runs.listeners.gpm:GpmListener",
    "dcgm": "penstock.runs.listeners.dcgm:DcgmListener",
    "energy": "penstock.runs.listeners.energy:EnergyListener",
    "feed": "penstock.runs.listeners.feed:FeedListener",
}


def listener_names() -> list[str]:
    """List the listeners that there are."""
    return [*_OURS, *sorted(entry_points(group=ENTRY_POINTS).names - _OURS.keys())]


def make_listener(name: str) -> Listener:
    """Make a listener.

    Raises:
        BadSetting: none has this name.
        Exception: what another package's listener raises.
    """
    if name in _OURS:
        return resolve_name(_OURS[name])()
    for found in entry_points(group=ENTRY_POINTS, name=name):
        return found.load()()
    raise BadSetting(f"there is no listener {name!r}; there are: {', '.join(listener_names())}")
