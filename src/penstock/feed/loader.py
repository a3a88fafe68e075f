"""The Loader: stands in a trainer where its DataLoader stood."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from typing import Any, Self, cast

import penstock
from penstock.contracts import Cursor, Tree
from penstock.errors import BadSetting, FeedEnded, ForkedLoader, LoaderClosed
from penstock.feed import wire
from penstock.feed.batcher import Batcher, Given, Options
from penstock.feed.deal import batches
from penstock.feed.destination import Destination, OnGpu, OnHost
from penstock.feed.framework import converted
from penstock.feed.statistics import LoaderStatistics
from penstock.feed.stream import Connect, RowStream
from penstock.memory.cuda import gpu_of


class Loader:
    """The batches of a feed, one epoch for each ``for`` loop over it.

    An epoch is every sample once, from where this trainer happens to join. A
    loop that is broken off gives its epoch up: the next begins afresh, at the
    next segment. Made by ``share`` and ``attach``.

    It belongs to one thread of one process.
    """

    def __init__(self, connect: Connect, options: Options, *, failover: bool = False) -> None:
        self._options = options
        self._pid = os.getpid()
        hello = wire.Hello(
            wire.PROTOCOL,
            penstock.__version__,
            self._pid,
            options.batch_size,
            options.borrow,
            options.rank,
            options.world,
            _group() if options.world > 1 else "",
        )
        self._rows = RowStream(connect, hello, _destination(options), failover=failover)
        self._finalizer = weakref.finalize(self, _close, self._rows, self._pid)
        self.name = self._rows.link.welcome.name
        try:
            self._batcher = Batcher(self._rows, self.batch_size, options)
        except BadSetting:
            self.close()
            raise
        self._epoch = 0
        self._start: Cursor | None = None  # of the present epoch, once it is known
        self._delivered = 0  # rows of the epoch that have been given, to all ranks together
        self._resumed = False
        self._iteration = 0

    def __iter__(self) -> Iterator[Tree]:
        self._check_usable()
        self._iteration += 1
        return self._batches(self._iteration)

    def __len__(self) -> int:
        """Batches in a whole epoch, also while the rest of a resumed one is read.

        Raises:
            TypeError: the source does not know its length.
        """
        welcome, options, size = self._rows.link.welcome, self._options, self.batch_size
        if welcome.samples is not None and size is not None:
            return batches(welcome.samples, size, options.world, drop_last=options.drop_last)
        if welcome.batches is not None and size == welcome.batch_size:
            return welcome.batches // options.world
        raise TypeError(f"the length of feed {self.name!r} is known only when a pass of its source ends")

    @property
    def samples(self) -> int | None:
        """Samples in an epoch; None where only a pass of the source can tell."""
        return self._rows.samples

    @property
    def batch_size(self) -> int | None:
        """Samples in a full batch; None where batches vary in length."""
        return self._options.batch_size or self._rows.link.welcome.batch_size

    @property
    def drop_last(self) -> bool:
        return self._options.drop_last

    @property
    def epoch(self) -> int:
        """Number of the epoch that this trainer is in, or that its next loop begins."""
        return self._epoch + self._over

    def state_dict(self) -> dict[str, Any]:
        """Where this trainer stands, in plain numbers: what comes next is the next sample."""
        self._check_usable()
        start = self._next_start() if self._over else self._start
        return {
            "version": 1,
            "feed": self.name,
            "plan": self._plan(),
            "epoch": self.epoch,
            "start": None if start is None else list(start),
            "delivered": 0 if self._over else self._delivered,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the Loader of this state stood; the rest of its epoch comes in the next loop.

        Raises:
            BadSetting: the state belongs to a feed with another order.
        """
        self._check_usable()
        given = cast("object", state)  # of any type: it comes from a file
        if not isinstance(given, dict) or state.get("version") != 1:
            raise BadSetting("this is no state that a Loader's state_dict() has given")
        if state.get("plan") != self._plan():
            raise BadSetting(
                f"this state belongs to another order of samples: it was saved with {state.get('plan')}, "
                f"feed {self.name!r} has {self._plan()}. Start the feed with the same loader, segments and seed"
            )
        self._iteration += 1
        self._epoch, self._delivered = int(state["epoch"]), int(state["delivered"])
        self._start = None if state["start"] is None else Cursor(*state["start"])
        self._resumed = True

    def statistics(self) -> LoaderStatistics:
        """This Loader as it is now."""
        link, counts = self._rows.link, self._batcher.counts
        return LoaderStatistics(
            name=self.name,
            feeder_pid=link.welcome.pid,
            sharing=link.sharing,
            handed="view" if self._options.borrow else self._rows.destination.handed,
            epoch=self.epoch,
            batches=counts.batches,
            samples=counts.samples,
            copied_bytes=counts.copied_bytes,
            viewed_bytes=counts.viewed_bytes,
            wait_s=self._rows.wait_s,
            latency_s=link.latency_s,
            failovers=self._rows.failovers,
        )

    def close(self) -> None:
        """Leave the feed. Batches that were handed out stay valid, views too."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _batches(self, iteration: int) -> Iterator[Tree]:
        self._check_current(iteration)
        rest_of_resumed = self._begin_epoch()
        ahead: Given | None = None
        while True:
            assert self._start is not None
            given = ahead or self._batcher.next(self._start, self._delivered)
            if given is None:
                break
            self._delivered += given.taken
            ahead = self._batcher.ahead(self._start, self._delivered)
            given.ready()
            tree = given.tree
            del given
            rest_of_resumed = False
            if self._options.framework is not None:
                tree = converted(tree, self._options.framework)
            if self._options.transform is not None:
                tree = self._options.transform(tree)
            yield tree
            del tree  # its memory serves the next batch, if the caller has let it go too
            self._check_current(iteration)
        self._end_epoch()
        if rest_of_resumed:  # it was saved behind its epoch's last batch
            yield from self._batches(iteration)

    def _begin_epoch(self) -> bool:
        """Begin or go on with an epoch; whether it is one that a loaded state left unfinished."""
        if self._over:
            self._end_epoch()
        resumed, self._resumed = self._resumed, False
        given_up = self._delivered > 0 and not resumed
        if given_up:
            self._epoch += 1
            self._delivered = 0
            self._start = self._rows.at.next_segment(self._rows.link.welcome.segment_starts)
        epochs = self._rows.link.welcome.settings.epochs
        if epochs is not None and self._epoch >= epochs:
            raise FeedEnded(f"feed {self.name!r} gives each trainer epochs={epochs}, and this one has had them")
        if self._start is None:
            self._rows.start(None, self._epoch, Cursor(0, 0))
            self._start = self._rows.at
        elif resumed or not self._rows.reading or self._rows.at > self._start:  # a first batch was interrupted
            at = self._start.after(self._delivered, self._rows.samples)
            self._rows.start(at, self._epoch, self._start)
        else:
            self._rows.epoch(self._epoch, self._start)
        return resumed and self._delivered > 0

    def _end_epoch(self) -> None:
        self._rows.destination.settle(wait=True)
        self._rows.link.flush()  # what follows may be a long validation
        self._start = self._next_start()
        self._epoch += 1
        self._delivered = 0

    def _next_start(self) -> Cursor | None:
        """Where the next epoch begins: a cycle on."""
        return None if self._start is None else Cursor(self._start.cycle + 1, self._start.sample)

    @property
    def _over(self) -> bool:
        """Whether all rows of the epoch have been given, and the next has not begun."""
        return self._delivered > 0 and self._delivered == self._rows.samples

    def _plan(self) -> dict[str, Any]:
        """What decides the order of samples."""
        welcome = self._rows.link.welcome
        return {
            "samples": welcome.samples,
            "source_batch_size": welcome.batch_size,
            "segments": len(welcome.segment_starts),
            "seed": welcome.settings.seed,
        }

    def _check_current(self, iteration: int) -> None:
        self._check_usable()
        if iteration != self._iteration:
            raise LoaderClosed("a newer loop over this Loader, or load_state_dict(), has replaced this iterator")

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedLoader(
                f"this Loader belongs to process {self._pid}, and this is its forked child {os.getpid()}: "
                "a connection cannot be shared. Call attach() or share() in the child"
            )
        if not self._finalizer.alive:
            raise LoaderClosed(f"this Loader of feed {self.name!r} has been closed")


def _destination(options: Options) -> Destination:
    gpu = gpu_of(options.device)
    return OnHost() if gpu is None else OnGpu(gpu, views=options.borrow)


def _group() -> str:
    """What the ranks of one training have in common, and those of another have not."""
    return ":".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"))


def _close(rows: RowStream, pid: int) -> None:
    if os.getpid() == pid:
        rows.close()
