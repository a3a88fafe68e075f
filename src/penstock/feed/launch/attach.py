"""``attach``: a Loader on a feed that somebody else runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, cast

from penstock.contracts import Gpu, Tree
from penstock.errors import BadSetting, FeedNotFound
from penstock.feed import wire
from penstock.feed.endpoint import ANSWER_S, Endpoint
from penstock.feed.settings import Settings, flag, real_number
from penstock.feed.trainer.batcher import LoaderOptions
from penstock.feed.trainer.connection import Connection, OpenRing
from penstock.feed.trainer.framework import Framework, check_framework
from penstock.feed.trainer.loader import Loader
from penstock.sizes import whole_number

_RETRY_S = 0.05
_MOST_WAIT_S = 1e6  # that the system takes for a time


def attach(
    name: str,
    batch_size: int | None = None,
    *,
    drop_last: bool | None = None,
    shard: tuple[int, int] | None = None,
    transform: Callable[[Tree], Tree] | None = None,
    borrow: bool = False,
    device: str | Gpu | None = None,
    framework: Framework | None = None,
    wait_s: float = 0.0,
) -> Loader:
    """A Loader on the feed of this name.

    Args:
        name: As the feeder was given it.
        batch_size: Rows of a batch, whatever the source's; None for the source's.
        drop_last: Leave out of each epoch the rows that fill no batch: the last ones where the
            feed has one segment, else some of all, drawn afresh. None for what the source says.
        shard: (rank, world) of a trainer that is itself data-parallel. All
            ranks attach; each gets equally many batches of the same epoch,
            of ``batch_size`` rows per rank.
        transform: Called on each batch, in this process.
        borrow: Hand out views into the ring instead of private copies. They
            cannot be written to: NumPy refuses, a torch tensor that is
            written to kills the process. A view that is kept holds the feed's room.
            On a GPU, keep a view until what reads it has run: when its last reference dies, only the
            work of the stream that is current there is waited for. ``record_stream`` has no effect on a
            view; have the current stream wait for a side stream that read it, then let the view go.
            A write to a view on a GPU is a fault of the device; under MPS it may end the other
            processes on that GPU too. Take no batch while a CUDA graph is captured.
        device: Where batches end: ``"cuda"``, ``"cuda:1"``, the UUID of a GPU or
            MIG instance; None for this process's memory. Arrays come as torch
            tensors then, copied by the GPU beside what it computes.
        framework: ``"torch"``, ``"numpy"``, ``"jax"`` or ``"cupy"``: whose arrays
            batches hold, whatever the source's, on the same memory (DLPack).
        wait_s: How long to wait, in seconds, for a feed that does not run yet. For the answer of a feeder that
            runs it is waited for 10 s at least.

    Raises:
        FeedNotFound: no such feed; the message lists those that run.
        BadSetting: the feed cannot be cut or dealt as asked.
        DeviceUnavailable: there is no such GPU here, or views were asked of a ring that it cannot map.
        FeederSilent: its feeder is stopped, or too busy to answer.
        ProtocolError: what its feeder says makes no validator.
        Refused: the feeder does not admit this trainer.
    """

    real_number("wait_s", wait_s, 0, math.inf)

    def connect(hello: wire.Hello, open_ring: OpenRing, _: Settings | None) -> Connection:
        deadline = time.monotonic() + wait_s
        while True:
            endpoint = Endpoint(name)
            try:
                left_s = min(deadline - time.monotonic(), _MOST_WAIT_S)
                return Connection(endpoint, hello, open_ring, max(ANSWER_S, left_s))
            except FeedNotFound:
                endpoint.sweep()
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_RETRY_S)

    return Loader(connect, options(batch_size, drop_last, shard, transform, borrow, device, framework))


def options(
    batch_size: int | None,
    drop_last: bool | None,
    shard: tuple[int, int] | None,
    transform: Callable[[Tree], Tree] | None,
    borrow: bool,
    device: str | Gpu | None,
    framework: Framework | None,
) -> LoaderOptions:
    """What a trainer asks, checked.

    Raises:
        BadSetting: a value makes no validator.
    """
    if batch_size is not None:
        batch_size = whole_number("batch_size", batch_size, 1, 2**31 - 1)
    shard = None if shard is None else _rank(shard)
    if transform is not None and not callable(cast("object", transform)):
        raise BadSetting(f"transform={transform!r}: it is a function, which is called on each batch")
    if drop_last is not None:
        flag("drop_last", drop_last)
    flag("borrow", borrow)
    check_framework(framework)
    if borrow and device not in {None, "cpu", "host"} and framework in {"jax", "cupy"}:
        raise BadSetting(
            f"borrow=True with framework={framework!r} on a GPU: on which streams {framework} reads a view is not "
            "known here, so its bytes could be reused too early. Leave borrow out, and batches are copies"
        )
    return LoaderOptions(batch_size, drop_last, shard, transform, borrow, device, framework)


def _rank(shard: Any) -> tuple[int, int]:
    try:
        rank, world = shard
    except (TypeError, ValueError):
        raise BadSetting(f"shard={shard!r}: it is (rank, world), such as (0, 4)") from None
    world = whole_number(f"shard={shard!r}: world", world, 1, 2**31 - 1)
    return whole_number(f"shard={shard!r}: rank", rank, 0, world - 1), world
