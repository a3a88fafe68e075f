"""The seam of what is sampled: what a listener returns at each tick, and how listeners are found."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import NamedTuple, Protocol

import msgspec

from penstock.errors import BadSetting


class WatchedRun(msgspec.Struct, frozen=True):
    """A run that is sampled.

    Attributes:
        id: Its key in the store.
        index: Its place in its group, from 0.
        keeper: Its keeper's process, the root of its tree, and when that started in clock ticks since boot.
        pid: Process of its command, a child of the keeper.
    """

    id: str
    index: int
    keeper: tuple[int, int]
    pid: int


class Tree(NamedTuple):
    """The processes of a run at one tick: all descendants of its keeper, and what those that have ended used.

    Feeders that ``share`` started, and their workers, are none of them.

    Attributes:
        pids: Living processes, zombies left out; each stands behind its parent.
        cpu_s: CPU time that they and their ended descendants have used since the run began; never falls.
        read_bytes: Bytes that they had read from storage by then; never falls.
        write_bytes: Bytes that they had sent towards storage by then; never falls.
        rss_bytes: Memory that they hold; a page that n of them map counts n times.
        threads: Threads that they have.
        ready_s: Time for which their first threads, and those of feeders and workers that it started, ran or were
            ready to; None where the kernel does not say it.
        delayed_s: The part of that in which no CPU was free.
    """

    pids: tuple[int, ...]
    cpu_s: float
    read_bytes: float
    write_bytes: float
    rss_bytes: int
    threads: int
    ready_s: float | None = None
    delayed_s: float = 0.0


class FeedPart(NamedTuple):
    """A run's part of the feeds that it reads: what one uses is divided evenly among its trainers.

    Attributes:
        cpu_s: CPU time of feeders and their workers since the run began; never falls.
        read_bytes: Bytes that they have read from storage; never falls.
        write_bytes: Bytes that they have sent towards storage; never falls.
        memory_bytes: Memory that they hold; None where the run reads none now.
        held_back_s: Time for which its trainers have held back others; never falls.
        lag_samples: Samples that were published to its trainer and not released, the most of several.
        held_back_by: Place in its group of the run that holds a feed back, -1 for another program.
    """

    cpu_s: float = 0.0
    read_bytes: float = 0.0
    write_bytes: float = 0.0
    memory_bytes: float | None = None
    held_back_s: float = 0.0
    lag_samples: int | None = None
    held_back_by: int | None = None


class Tick(NamedTuple):
    """A moment at which listeners are asked.

    Attributes:
        time_s: Seconds since 1970.
        runs: Runs that go on; each has a tree.
        trees: Their processes, by the run's id; feeders are in none.
        host_cpu_s: CPU time that the whole machine has used since it started.
        feeds: Their parts of feeds, of those that have read one.
    """

    time_s: float
    runs: tuple[WatchedRun, ...]
    trees: Mapping[str, Tree]
    host_cpu_s: float
    feeds: Mapping[str, FeedPart] = {}


class Values(NamedTuple):
    """Values of one run, or of the host, at one tick, by the names of their series.

    Attributes:
        counters: Sums that never fall: those of a run from its beginning, those of the host from any moment.
        gauges: What is true of this moment only.
    """

    counters: Mapping[str, float] = {}
    gauges: Mapping[str, float] = {}


class Sample(NamedTuple):
    """What a listener returns at one tick; what is not known is left out, never zero.

    Attributes:
        host: Values of the host; they are written to each run.
        runs: Values of the runs, by their ids.
        notes: Sentences on what is left out, and why; each is shown once.
    """

    host: Values = Values()
    runs: Mapping[str, Values] = {}
    notes: tuple[str, ...] = ()


class Listener(Protocol):
    """Samples one kind of values. Made and used by one thread of the sampling process.

    By default, a class that inherits it can run anywhere and holds nothing.

    Attributes:
        name: What people call it, and how the names of its series begin, with a dot behind it.
    """

    name: str

    def unavailable(self) -> str | None:
        """Return why it cannot run here, and what helps; None if it can. Asked once, before the first tick."""
        return None

    def sample(self, tick: Tick) -> Sample:
        """Return what is known now. It must not wait: the runs' other values wait for it.

        Runs come and go between ticks, and their processes at any moment: a process that is gone is no error.
        An exception is reported once, and the next tick asks again.
        """
        ...

    def close(self) -> None:
        """Free what it holds; it is not asked any more."""


ENTRY_POINTS = "penstock.listeners"
"""Group of entry points of other packages: a name, and what makes the listener when called without arguments."""
_OURS = {
    "proc": "penstock.runs.listeners.host:ProcListener",
    "host": "penstock.runs.listeners.host:HostListener",
    "disk": "penstock.runs.listeners.host:DiskListener",
    "gpu": "penstock.runs.listeners.gpu:GpuListener",
    "gpm": "penstock.runs.listeners.gpu:GpmListener",
    "dcgm": "penstock.runs.listeners.gpu:DcgmListener",
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
