"""``attach``: a Loader on a feed that somebody else runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, cast

from penstock.basics.sizes import whole_number
from penstock.contracts import Gpu, Tree
from penstock.errors import BadSetting, FeedNotFound
from penstock.feed import wire
from penstock.feed.endpoint import ANSWER_S, Endpoint
from penstock.feed.launch.variables import with_suffix
from penstock.feed.settings import flag, real_number
from penstock.feed.trainer.batch_builder import Framework, check_framework
from penstock.feed.trainer.batcher import LoaderOptions
from penstock.feed.trainer.connection import FeedConnection, OpenRing
from penstock.feed.trainer.loader import Loader
from penstock.memory.cuda import is_host
from penstock.sources.sharding import rank_of
from penstock.subsets.policy import selected_at

_RETRY_S = 0.05
_MOST_WAIT_S = 1e6  # longest timeout that the system takes


def attach(
    name: str,
    batch_size: int | None = None,
    *,
    drop_last: bool | None = None,
    shard: tuple[int, int] | None = None,
    pad: bool = False,
    transform: Callable[[Tree], Tree] | None = None,
    borrow: bool = False,
    device: str | Gpu | None = None,
    framework: Framework | None = None,
    pin_memory: bool = False,
    select: Any = None,
    wait_s: float = 0.0,
) -> Loader:
    """Join a feed that runs, and return a ``Loader`` on it.

    Args:
        name: Name of the feed, as its feeder was given it. ``PENSTOCK_FEED_SUFFIX=x`` in the environment puts a
            run on the feed ``name-x`` instead.
        batch_size: Samples of a batch, whatever the source's; per rank under ``shard``. None for the source's.
        drop_last: Leave out of each epoch the samples that fill no batch: the last ones of an epoch that
            begins with a pass of the feed, else some drawn afresh from all of it. None for what the source says.
        shard: ``(rank, world)`` of a data-parallel run. All ranks attach; each gets the same number of batches of
            one epoch.
        pad: Give each rank of ``shard`` as many rows as torch's ``DistributedSampler`` does, the number of samples
            divided by the ranks and rounded up: a few samples of the last step come twice, and all batches of a
            step are equally long. Of whole batches, the last one goes to every rank that would have none.
        transform: Function that takes and returns a batch; called in this process, on each batch.
        borrow: Hand out read-only views into the ring instead of private copies. NumPy refuses to write to one;
            writing to a torch view kills the process. A view that is kept holds its block's room.
            On a GPU, keep a view until what reads it has run: when its last reference dies, only the
            work of the current stream is waited for. ``record_stream`` has no effect on a view; have the
            current stream wait for a side stream that read it, then let the view go. Writing to a view on a
            GPU is a fault of the device; under MPS it may end the other processes on that GPU too. Take no
            batch while a CUDA graph is captured.
        device: Where batches end: ``"cuda"``, ``"cuda:1"``, or the UUID of a GPU or MIG instance. Arrays then come
            as torch tensors, copied while the GPU computes. None for host memory.
        framework: Whose arrays batches hold: ``"torch"``, ``"numpy"``, ``"jax"`` or ``"cupy"``, without a copy
            where DLPack allows. None for the source's.
        pin_memory: Put private copies into pinned memory, from which ``tensor.to("cuda", non_blocking=True)`` does
            not wait. Without a GPU, and with ``borrow`` or ``device``, it has no effect.
        select: Take some samples only, each once an epoch: ids, a mask with a bool for each sample of the data
            set, the path of a ``.npy`` file with either, or a ``Selection``. The feed loads what its trainers take
            together, each sample once. What is loaded already lacks other samples: a trainer that comes late
            begins at the first block loaded with its own. None for all samples.
        wait_s: Seconds to wait for a feed that does not run yet. A feeder that runs has at least 10 s to answer.

    Returns:
        A loader whose batches have the tree (tuple, list, dict, ...) and types of the source's, and in each array
        one row per sample.

    Raises:
        FeedNotFound: no feed has this name; the message lists those that run.
        BadSetting: an argument makes no sense, or the feed cannot be split as asked.
        DeviceUnavailable: this machine has no such GPU, or it cannot map the ring that ``borrow`` asks for.
        FeederSilent: the feeder is stopped, or too busy to answer.
        ProtocolError: what the feeder says makes no sense.
        Refused: the feeder does not admit this trainer; ``VersionMismatch`` if it runs another protocol.
    """

    real_number("wait_s", wait_s, 0, math.inf)
    feed_name = with_suffix(name)

    def connect(hello: wire.Hello, open_ring: OpenRing, left: wire.Welcome | None) -> FeedConnection:
        deadline = time.monotonic() + wait_s
        while True:
            endpoint = Endpoint(left.name if left else feed_name)
            try:
                left_s = min(deadline - time.monotonic(), _MOST_WAIT_S)
                return FeedConnection(endpoint, hello, open_ring, max(ANSWER_S, left_s))
            except FeedNotFound:
                endpoint.sweep()
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_RETRY_S)

    return Loader(
        connect,
        options(batch_size, drop_last, shard, transform, borrow, device, framework, pad, pin_memory, select),
    )


def options(
    batch_size: int | None,
    drop_last: bool | None,
    shard: tuple[int, int] | None,
    transform: Callable[[Tree], Tree] | None,
    borrow: bool,
    device: str | Gpu | None,
    framework: Framework | None,
    pad: bool,
    pin_memory: bool,
    select: Any,
) -> LoaderOptions:
    """Check what a trainer asks.

    Raises:
        BadSetting: a value makes no sense.
    """
    if batch_size is not None:
        batch_size = whole_number("batch_size", batch_size, 1, 2**31 - 1)
    shard = rank_of(shard)
    if transform is not None and not callable(cast("object", transform)):
        raise BadSetting(f"transform={transform!r}: it must be a function that takes a batch")
    if drop_last is not None:
        flag("drop_last", drop_last)
    flag("borrow", borrow)
    flag("pad", pad)
    flag("pin_memory", pin_memory)
    check_framework(framework)
    if borrow and not is_host(device) and framework in {"jax", "cupy"}:
        raise BadSetting(
            f"borrow=True with framework={framework!r} on a GPU: on which streams {framework} reads a view is not "
            "known here, so its bytes could be reused too early. Leave borrow out, and batches are copies"
        )
    chosen, policy = selected_at(select, 0)
    return LoaderOptions(
        batch_size, drop_last, shard, transform, borrow, device, framework, pad, pin_memory, chosen, policy
    )
