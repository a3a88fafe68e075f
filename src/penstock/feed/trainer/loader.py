"""The Loader: stands in a trainer where its DataLoader stood."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from penstock._version import __version__
from penstock.contracts import Ids, Tree
from penstock.errors import BadSetting, ForkedLoader, LoaderClosed
from penstock.feed import wire
from penstock.feed.named_rows import decode_ids
from penstock.feed.statistics import LoaderStatistics
from penstock.feed.suffix import FeedOfRun
from penstock.feed.trainer.batcher import Batcher
from penstock.feed.trainer.comparison import STATE_VERSION, check_state, plan_of
from penstock.feed.trainer.connection import FeedConnection
from penstock.feed.trainer.elsewhere import Connect, Prepare
from penstock.feed.trainer.epoch import EpochRules
from penstock.feed.trainer.options import LoaderOptions, SelectedSamples, group_of_ranks, warn_of_ranks
from penstock.feed.trainer.reading import EpochReader, LoaderLoop
from penstock.feed.trainer.rows import RowStream
from penstock.feed.witness import SampleComparison
from penstock.fingerprint.batch import LeavesOf
from penstock.linux.when_gone import in_python, when_gone
from penstock.sources.sharding import batches
from penstock.subsets.policy import selected_at


class Loader:
    """Stands in a training script where its ``DataLoader`` stood: one epoch for each ``for`` loop.

    ``share`` and ``attach`` make it. An epoch is every sample once, from where this
    trainer happens to join. A loop that is broken off gives its epoch up: the next
    one begins a new epoch.

    A batch counts as delivered when ``next()`` returns it. If the transform
    raises, or Ctrl-C comes first, the next ``next()`` gives the batch's samples
    again, and a state saved meanwhile stands before them.

    A Loader belongs to one thread of one process.

    Iterating raises ``FeederLost`` or ``FeedStopped`` when the feed is gone,
    ``SourceError`` when the source failed, ``TrainerEvicted`` when this trainer held
    the feed back for too long, ``WindowHeld`` when its own views leave no room, and
    ``FeedEnded`` after the last epoch.

    Examples:
        >>> feeder = penstock.Feeder(penstock.ArraySource(np.arange(100)), "numbers")
        >>> threading.Thread(target=feeder.run).start()
        >>> with penstock.attach("numbers", batch_size=25) as loader:
        ...     batches = iter(loader)
        ...     first, state = next(batches), loader.state_dict()
        ...     second = next(batches)
        ...     loader.load_state_dict(state)
        ...     bool((next(iter(loader)) == second).all())
        True
        >>> feeder.close()
    """

    def __init__(
        self,
        connect: Connect,
        options: LoaderOptions,
        of_run: FeedOfRun,
        *,
        prepare: Prepare | None = None,
        check: Callable[[FeedConnection], None] | None = None,
    ) -> None:
        self._connect = connect
        self._options = options
        self._of_run = of_run
        self._prepare = prepare
        self._is_closed = False
        self._pid = os.getpid()
        self._streams = _Streams()
        when_gone(self, in_python(self._streams.close))
        self._rows = self._opened(options, None)
        try:
            self._reading = _reading_of(self._rows, options)
        except BadSetting:
            self.close()
            raise
        self._reading.check = check

    def _opened(self, options: LoaderOptions, after: RowStream | None) -> RowStream:
        """Connect to the feed, as the first stream of rows or after another."""
        destination = options.destination()
        selected = None if options.select is None else SelectedSamples(options.select)
        hello = wire.Hello(
            wire.PROTOCOL,
            __version__,
            self._pid,
            options.batch_size,
            options.borrow,
            options.rank,
            options.world,
            group_of_ranks() if options.world > 1 else "",
            destination.registers,
            None if selected is None else selected.message,
            self._prepare is not None,
            self._of_run.follows,
        )
        try:
            rows = RowStream(
                self._connect,
                hello,
                destination,
                self._of_run,
                prepare=self._prepare,
                selected=selected,
                after=after,
            )
            self._streams.add(rows)
            return rows
        except BaseException:
            if selected is not None:
                selected.close()
            raise

    def __iter__(self) -> Iterator[Tree]:
        self._check_usable()
        if self._options.shard is None:
            warn_of_ranks(self.name)
        self._follow_policy()
        return LoaderLoop(self._reading, self, self._check_usable)

    def __len__(self) -> int:
        """Count the batches of a full epoch, also while the rest of a resumed one is read.

        Raises:
            TypeError: the source does not know its length.
        """
        welcome, options, size = self._rows.connection.welcome, self._options, self.batch_size
        if self.samples is not None and size is not None:
            return batches(self.samples, size, options.world, drop_last=self.drop_last, pad=options.pad)
        if welcome.batches is not None and size == welcome.batch_size:
            short = welcome.samples is not None and welcome.samples % (welcome.block_rows or 1) > 0
            return (welcome.batches - (short and self.drop_last)) // options.world
        raise TypeError(f"the length of feed {self.name!r} is known only when a pass of its source ends")

    def __repr__(self) -> str:
        samples, size, epoch = self.samples, self.batch_size, self._reading.epoch
        passed = 0 if self._reading.rules.is_over(epoch) else epoch.passed
        of = "" if samples is None else f" of {samples:,}"
        batches = "batches as the source makes them" if size is None else f"batch_size={size}"
        return f"<penstock.Loader of feed {self.name!r}: epoch {self.epoch}, {passed:,}{of} samples, {batches}>"

    @property
    def name(self) -> str:
        """Name of the feed that it reads; another once this trainer has been moved."""
        return self._rows.connection.welcome.name

    @property
    def samples(self) -> int | None:
        """Samples in an epoch; None if only a pass of the source shows it."""
        return self._reading.rules.samples

    @property
    def anywhere(self) -> bool:
        """Whether an epoch begins at any block: it is as many draws of a sampler as that has, from there on."""
        return self._reading.rules.anywhere

    @property
    def batch_size(self) -> int | None:
        """Samples in a full batch; None if batches vary in length."""
        return self._options.batch_size or self._rows.connection.welcome.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether samples that fill no batch are left out of each epoch."""
        return self._options.drops_last(self._rows.connection.welcome)

    @property
    def epoch(self) -> int:
        """Number of the epoch that this trainer is in, or that its next loop begins, from 0."""
        epoch = self._reading.epoch
        return epoch.number + self._reading.rules.is_over(epoch)

    @property
    def ids(self) -> Ids | None:
        """Which samples the batch holds that was handed out last: ``dataset[id]`` is one; shape ``(rows,)``.

        None before the first batch of a selection, and where nobody knows: of a stream, of batches of more than
        8,192 rows in the loader itself, and of what a batch sampler of the script's own gives that is no number.
        """
        named = self._reading.named.values()
        if not named or not all(ids for ids, *_ in named):
            return None
        return np.concatenate([decode_ids(ids, rows)[picked] for ids, rows, picked in named])

    @property
    def weights(self) -> npt.NDArray[np.float32] | None:
        """The weights that ``select=`` gave the samples of that batch, 1 where it gave none; shape ``(rows,)``.

        None where ``ids`` is.
        """
        ids, selection = self.ids, self._options.select
        if ids is None:
            return None
        return np.ones(len(ids), np.float32) if selection is None else selection.weights_of(ids)

    @property
    def selected(self) -> Any:
        """What ``select=`` has asked for; None for all samples."""
        return self._options.policy or self._options.select

    def select(self, select: Any) -> None:
        """Take these samples from the next loop on, which begins a new epoch at the first block that has them.

        An epoch that has begun is given up. Where this trainer is one of several ranks, all of them select the
        same. After any error the Loader is as it was.

        Args:
            select: As in ``attach``; None for all samples. A policy is asked again at the beginning of each epoch.

        Raises:
            BadSetting: it makes no sense, or the feed does not have these samples.
            Refused: the feed cannot leave samples out.
            WindowHeld: views that this trainer holds take more than half of the window.
            FeedNotFound: nobody serves the feed any more; and what else ``attach`` and ``share`` raise.
        """
        self._check_usable()
        chosen, policy = selected_at(select, self._reading.coming().number)
        self._take(self._options._replace(select=chosen, policy=policy))

    def _follow_policy(self) -> None:
        """Select what the policy, if there is one, wants of an epoch that has yet to begin."""
        policy, coming = self._options.policy, self._reading.coming()
        if policy is not None and not coming.passed:
            policy.check_ranks(self._options.world)
            options = self._options._replace(select=policy.selection(coming.number))
            if options.digest != self._options.digest:
                self._take(options)

    def _take(self, options: LoaderOptions) -> None:
        old, same = self._reading, options.digest == self._options.digest
        if same and old.epoch.start is None:
            self._options = options
            return
        self._rows.destination.settle(wait=True)  # of views that have died
        self._rows.connection.held.check_views(self.name)
        goes_on = same and not self._rows.has_asked  # a state was loaded, and nothing read: a rank is here already
        rows = self._rows if goes_on else self._opened(options, self._rows)
        try:
            reading = _reading_of(rows, options)
            coming = old.coming()
            reading.epoch = reading.rules.begin(coming.number, None)
            reading.not_before = old.soonest()
            reading.counts = old.counts
            reading.check = old.check
        except BaseException:
            self._streams.close(but=self._rows)
            raise
        # No call until all is changed, so that an exception (see Holdings) finds the one or the other.
        old.newest = None
        self._options = options
        self._rows = rows
        self._reading = reading
        self._streams.close(but=rows)

    def state_dict(self) -> dict[str, Any]:
        """Return the place of the next sample, in plain numbers, to be saved beside the model's state."""
        self._check_usable()
        plan, place = plan_of(self._rows.connection.welcome), self._reading.saved()
        digest = self._options.digest
        chosen: dict[str, Any] = {} if digest is None else {"selection": digest}
        if self._options.policy is not None and (policy := self._options.policy.state_dict()):
            chosen["policy"] = policy
        return {"version": STATE_VERSION, "feed": self.name, "plan": plan, **place, **chosen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to the place that a state holds; the next loop yields the rest of its epoch.

        Args:
            state: What ``state_dict()`` gave, in this process or another, under any batch size.

        Raises:
            BadSetting: the state comes from a feed with another order of samples, or it is no state.
        """
        self._check_usable()
        check_state(state, self._rows.connection.welcome)
        if (policy := self._options.policy) is not None:
            policy.load_state_dict(state.get("policy", {}))
            if state.get("delivered"):
                self._take(self._options._replace(select=policy.selection(state["epoch"])))
        if (saved := state.get("selection")) != self._options.digest:
            selection = self._options.select
            if state.get("delivered"):
                now = "without select=" if selection is None else f"with {selection!r}"
                raise BadSetting(
                    f"this state was saved in an epoch of {f'selection {saved}' if saved else 'all samples'}, and "
                    f"this Loader reads {now}: select the same to go on, or begin the epoch anew"
                )
            state = {**state, "left_out": []}  # its epoch has yet to begin
        self._reading.load(state)

    def compare(self, number: int, leaves_of: LeavesOf) -> SampleComparison:
        """Begin to compare what this process makes of a few samples with what the feeder does."""
        return SampleComparison(self._rows.connection, number, leaves_of)

    def statistics(self) -> LoaderStatistics:
        """Return what this Loader has received so far, and by which path."""
        connection, counts = self._rows.connection, self._reading.counts
        return LoaderStatistics(
            name=self.name,
            feeder_pid=connection.welcome.pid,
            sharing=connection.sharing,
            handed="view" if connection.held.borrow else self._rows.destination.handed,
            epoch=self.epoch,
            **counts._asdict(),
            wait_s=self._rows.wait_s,
            latency_s=connection.latency_s,
            failovers=self._rows.failovers,
            left_out=self._reading.left_out,
        )

    def close(self) -> None:
        """Leave the feed. Batches that were handed out stay valid, views included."""
        self._is_closed = True
        self._streams.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedLoader(
                f"this Loader belongs to process {self._pid}, and this is its forked child {os.getpid()}: "
                "a connection cannot be shared. Call attach() or share() in the child"
            )
        if self._is_closed:
            raise LoaderClosed(f"this Loader of feed {self.name!r} has been closed")
        if len(self._streams.open) > 1:
            self._streams.close(but=self._rows)


def _reading_of(rows: RowStream, options: LoaderOptions) -> EpochReader:
    welcome = rows.connection.welcome
    drop_last = options.drops_last(welcome)
    size = None if welcome.settings.whole_batches else options.batch_size or welcome.batch_size
    if drop_last and size is not None:
        options.check_fills(size)
    rules = EpochRules(
        welcome.samples,
        size,
        options.rank,
        options.world,
        drop_last=drop_last,
        pad=options.pad,
        full=options.full,
        segment_starts=welcome.segment_starts,
        seed=welcome.settings.seed,
        selected=None if options.select is None else len(options.select),
        anywhere=welcome.anywhere,
        joins=welcome.joins,
        at_joints=welcome.at_joints,
    )
    batcher = Batcher(rows, rules, options, drop_last=drop_last)
    return EpochReader(rows, rules, batcher, options)


class _Streams:
    """The streams that a Loader has opened; what of them is open is closed when Python ends."""

    def __init__(self) -> None:
        self.open: list[RowStream] = []
        self.add = self.open.append
        self._close = partial(_close, self.open, os.getpid())
        self._at_exit = weakref.finalize(self, self._close)

    def close(self, but: RowStream | None = None) -> None:
        """Close them, but for one that goes on; a call that is broken off can be repeated."""
        self._close(but)
        if but is None:
            self._at_exit.detach()


def _close(streams: list[RowStream], pid: int, but: RowStream | None = None) -> None:
    for rows in list(streams):
        if rows is not but:
            if os.getpid() == pid:
                rows.close()
            streams.remove(rows)
