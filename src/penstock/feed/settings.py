"""The settings of a feed, read and checked once, compared with those that a later caller asks for."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable
from functools import partial
from numbers import Real
from typing import Any, NamedTuple, TypedDict, Unpack

import msgspec

from penstock.basics.sizes import size_from, whole_number
from penstock.contracts import Gpu
from penstock.errors import BadSetting
from penstock.linux.cgroups import memory_limit_bytes

DEFAULT_WINDOW = "512MiB"
DEFAULT_LINGER_S = 30.0
GATHER_S = 9.0
"""A trainer waits at most this long for those that its feed expects: less than 10 s, as they may wait for it."""
MOST_SEGMENTS = 4096
MOST_WORKERS = 4096
SEGMENTS_ACROSS = 16
"""Of feeds that span machines, where late runs begin."""
MOST_BLOCKS = 1024
"""Most blocks on their way at once, however small: each also waits as a message."""


class FeedSettings(TypedDict, total=False):
    """Settings of a feed: keyword arguments of ``share`` and ``Feeder``. One that is None is as if left out.

    Attributes:
        segments: Parts of a cycle (one pass over the data) that are shuffled each by itself, 1 to 4096; with 1,
            and unless set, all of it is, in the ``DataLoader``'s own order. Whoever joins late needs none.
        seed: Random seed of the order, and of the loader's workers; 0 unless set.
        window: Size of the ring: bytes, or text such as ``"2GiB"``; 512 MiB unless set. The fastest trainer can be
            this far ahead of the slowest.
        prefetch: Batches that are made ready for the fastest trainer; unless set two, or 8 MiB of smaller ones, at
            most a cycle.
        epochs: Epochs that each trainer gets; endless unless set.
        linger: Seconds from the last trainer's end to the feed's. Unless set, a feed that ``share`` starts ends
            after 30, and a ``Feeder`` stays.
        stall_timeout: Seconds for which a trainer may hold the feed back before it is evicted; no limit unless
            set.
        whole_batches: Give trainers the source's batches as they are; their shapes may then vary (dynamic padding,
            detection).
        memory: Where the ring lies: ``"host"`` (unless set), or the GPU on which trainers train (``"cuda:0"``, or
            a UUID), to which each block is copied once. Trainers that cannot map that GPU, or want batches on the
            host, read a twin of the ring in pinned host memory of the window's size.
        expect: Trainers for which the feed's first cycle waits, so that none of them joins it late: until they
            read, one of them has ended, or the first has waited for 9 s. The ranks of one run count as one. 1
            unless set; without effect on a feed that runs.
        workers: Workers of a torch ``DataLoader``, whatever it sets and ``PENSTOCK_FEED_WORKERS`` says; or
            ``"ray"`` to have blocks made by all cores of a Ray cluster (``RAY_ADDRESS``, or this machine's), and
            ``"ray:16"`` by 16 of them. What a ``DataLoader`` draws at random is then drawn anew for each block.
            Another number is without effect on a feed that runs.
        across: Whether feeds of this name on several machines give one order: it is fixed beforehand, in 16
            segments unless ``segments`` is set; a late run begins at the next one, and epoch e of data-parallel
            ranks is cycle e. With ``workers="ray"`` each block is decoded once for all of these feeds.
        pace: ``"together"`` keeps all trainers on one feed, at the rate of the slowest. Unless set, those whom
            that one would hold back read on from their places on another, in feeds that ``share`` starts, where
            cores and memory are there for it. Without effect on a feed that runs.
    """

    segments: int | None
    seed: int | None
    window: int | str | None
    prefetch: int | None
    epochs: int | None
    linger: float | None
    stall_timeout: float | None
    whole_batches: bool | None
    memory: str | Gpu | None
    expect: int | None
    workers: int | str | None
    across: bool | None
    pace: str | None


class Settings(msgspec.Struct, frozen=True):
    """What decides how a feed runs and what its trainers receive: ``FeedSettings``, checked and complete."""

    segments: int | None = None  # as given; None until the source has chosen
    seed: int = 0
    window_bytes: int = 512 << 20  # size of the ring, a multiple of the page size
    prefetch: int | None = None
    epochs: int | None = None
    linger: float | None = None  # as given; None for ever
    stall_timeout: float | None = None
    whole_batches: bool = False
    memory: str = "host"
    expect: int = 1
    workers: int | str | None = None
    across: bool = False
    pace: str | None = None

    @property
    def own_workers(self) -> int | None:
        """Workers of a torch loader on this machine; None for its own number."""
        return self.workers if isinstance(self.workers, int) else None

    @property
    def remote(self) -> RemoteWorkers | None:
        """Who makes the blocks on a cluster; None if nobody does."""
        return remote_workers(self.workers) if isinstance(self.workers, str) else None

    def difference(self, asked: dict[str, Any]) -> str:
        """Return which of the asked values differ, and what to do; empty if none does.

        ``expect`` and ``pace`` are left out: they change nothing that trainers get. Nor does how many workers
        there are, here or in a cluster.
        """
        keywords = {field: keyword for keyword, field in _FIELDS.items()}
        differs = {
            keywords.get(field, field): f"{getattr(self, field)!r} where you asked for {value!r}"
            for field, value in asked.items()
            if _comparable(field, getattr(self, field)) != _comparable(field, value)
        }
        text = ", ".join(f"{name}={values}" for name, values in differs.items())
        return text and f"{text}. Leave {' and '.join(differs)} out, or share under another name"


class RemoteWorkers(NamedTuple):
    """Workers on a cluster."""

    most: int | None  # most of them; None for one on each core


def remote_workers(text: str) -> RemoteWorkers:
    """Return what ``"ray"`` or ``"ray:16"`` asks for."""
    engine, colon, most = text.partition(":")
    if engine != "ray" or (colon and not (most.isdecimal() and int(most))):
        raise BadSetting(
            f'workers={text!r}: it must be a whole number, or "ray" for all cores of a Ray cluster, or "ray:16"'
        )
    return RemoteWorkers(int(most) if most else None)


def check_keywords(function: str, given: Iterable[str], *kinds: type) -> None:
    """Raise Python's TypeError for an argument that no TypedDict of these kinds has."""
    for name in given:
        if not any(name in kind.__annotations__ for kind in kinds):
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


def checked(**given: Unpack[FeedSettings]) -> dict[str, Any]:
    """Check the given settings (those that are not None), and name them as ``Settings`` does."""
    return {_FIELDS.get(name, name): _CHECKS[name](value) for name, value in given.items() if value is not None}


def bytes_from(window: int | str) -> int:
    """Return the bytes of a window such as ``2048``, ``"512MiB"`` or ``"2 GB"``, rounded up to whole pages."""
    return -(-size_from("window", window) // mmap.PAGESIZE) * mmap.PAGESIZE


def check_memory(window_bytes: int) -> None:
    """Raise BadSetting if a window cannot fit the memory of this machine or container."""
    limit_bytes = memory_limit_bytes()
    if window_bytes > limit_bytes:
        raise BadSetting(
            f"a window of {window_bytes / 2**30:,.1f} GiB: this process may use {limit_bytes / 2**30:,.1f} GiB of "
            "memory (the machine's, or what its container or batch job allows). Choose a smaller window"
        )


def real_number(name: str, value: Any, least: float, most: float) -> float:
    """Check that a setting is a real number, of Python's or NumPy's, within a range."""
    given: object = value
    is_number = not isinstance(given, bool) and isinstance(given, Real)
    if not is_number or not least <= value <= most:
        raise BadSetting(f"{name}={value!r}: it must be a number between {least} and {most}")
    return float(value)


def flag(name: str, value: Any) -> bool:
    """Check that a setting is True or False."""
    if not isinstance(value, bool):
        raise BadSetting(f"{name}={value!r}: it must be True or False")
    return value


def _comparable(field: str, value: Any) -> Any:
    """Return that part of a setting which two trainers of a feed must have in common."""
    if field in ("expect", "pace"):
        return None
    return isinstance(value, str) if field == "workers" else value


def _workers(workers: Any) -> int | str:
    if not isinstance(workers, str):
        return whole_number("workers", workers, 0, MOST_WORKERS)
    remote_workers(workers)
    return workers


def _memory(memory: Any) -> str:
    if not isinstance(memory, str):
        raise BadSetting(f'memory={memory!r}: it must be "host", or a GPU, such as "cuda:0"')
    return memory


def _pace(pace: Any) -> str:
    if pace != "together":
        raise BadSetting(f'pace={pace!r}: it must be "together", or left out')
    return pace


_FIELDS = {"window": "window_bytes"}
_CHECKS: dict[str, Callable[[Any], Any]] = {
    "segments": partial(whole_number, "segments", least=1, most=MOST_SEGMENTS),
    "seed": partial(whole_number, "seed", least=-(2**63), most=2**64 - 1),
    "window": bytes_from,
    "prefetch": partial(whole_number, "prefetch", least=1, most=10**6),
    "epochs": partial(whole_number, "epochs", least=1, most=10**6),
    "linger": partial(real_number, "linger", least=0, most=10**9),
    "stall_timeout": partial(real_number, "stall_timeout", least=0.001, most=10**9),
    "whole_batches": partial(flag, "whole_batches"),
    "memory": _memory,
    "expect": partial(whole_number, "expect", least=1, most=10**6),
    "workers": _workers,
    "across": partial(flag, "across"),
    "pace": _pace,
}
