"""``attach``: a Loader on a feed that somebody else runs; and a run's settings of feeds in the environment."""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from typing import Unpack

from penstock.basics.sizes import whole_number
from penstock.errors import FeedNotFound
from penstock.feed import wire
from penstock.feed.endpoint import ANSWER_S, Endpoint
from penstock.feed.queries import most_read
from penstock.feed.settings import MOST_WORKERS, check_keywords, real_number
from penstock.feed.suffix import FeedOfRun
from penstock.feed.trainer.connection import FeedConnection, OpenRing
from penstock.feed.trainer.loader import Loader
from penstock.feed.trainer.options import TrainerOptions, loader_options

_WORKERS = "PENSTOCK_FEED_WORKERS"
_RETRY_S = 0.05
_MOST_WAIT_S = 1e6  # longest timeout that the system takes


def attach(
    name: str,
    batch_size: int | None = None,
    *,
    wait_s: float = 0.0,
    **options: Unpack[TrainerOptions],
) -> Loader:
    """Join a feed that runs, and return a ``Loader`` on it.

    Args:
        name: Name of the feed, as its feeder was given it. ``PENSTOCK_FEED_SUFFIX=x`` in the environment puts a
            run on the feed ``name-x`` instead, as a file with ``x`` does that ``PENSTOCK_FEED_FILE`` names.
        batch_size: Samples of a batch, whatever the source's; per rank under ``shard``. None for the source's.
        wait_s: Seconds to wait for a feed that does not run yet. A feeder that runs has at least 10 s to answer.
        options: What else this trainer asks: ``shard``, ``device``, ``select`` and the others of
            ``TrainerOptions``.

    Example:
        ``penstock.attach("imagenet", batch_size=256, device="cuda", wait_s=60)`` reads the feed "imagenet" in
        batches of 256 on the GPU.

    Returns:
        A loader whose batches have the tree (tuple, list, dict, ...) and types of the source's, and in each array
        one row per sample.

    Raises:
        FeedNotFound: no feed has this name; the message lists those that run.
        BadSetting: an argument makes no sense, or the feed cannot be split as asked.
        DeviceUnavailable: this machine has no such GPU, or it cannot map the ring that ``borrow`` asks for.
        FeederSilent: the feeder is stopped, or too busy to answer.
        ProtocolError: the feeder's messages make no sense.
        Refused: the feeder does not admit this trainer; ``VersionMismatch`` if it runs another protocol.

    Examples:
        >>> feeder = penstock.Feeder(penstock.ArraySource(np.arange(100)), "numbers", epochs=1)
        >>> threading.Thread(target=feeder.run).start()
        >>> with penstock.attach("numbers", batch_size=50) as loader:
        ...     len(loader), sum(len(batch) for batch in loader)
        (2, 100)
    """
    check_keywords("attach", options, TrainerOptions)
    real_number("wait_s", wait_s, 0, math.inf)
    of_run = FeedOfRun(name)
    feed_name = of_run.asked

    def connect(hello: wire.Hello, open_ring: OpenRing, left: wire.Welcome | None) -> FeedConnection:
        deadline = time.monotonic() + wait_s
        while True:
            endpoint = Endpoint(left.name if left else feed_name)
            left_s = max(ANSWER_S, min(deadline - time.monotonic(), _MOST_WAIT_S))
            try:
                return FeedConnection(endpoint, hello, open_ring, left_s)
            except FeedNotFound:
                endpoint.sweep()
                if not left and (parted := most_read(feed_name)):
                    with suppress(FeedNotFound):
                        return FeedConnection(Endpoint(parted), hello, open_ring, left_s)
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_RETRY_S)

    return Loader(connect, loader_options(batch_size, **options), of_run)


def workers() -> int | None:
    """Return how many workers a feeder that this run starts gives its torch loader; None for the loader's own."""
    given = os.environ.get(_WORKERS)
    if not given:
        return None
    return whole_number(_WORKERS, int(given) if given.isdecimal() else given, 0, MOST_WORKERS)  # type: ignore[arg-type]
