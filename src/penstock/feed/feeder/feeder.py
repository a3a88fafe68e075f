"""The feeder: runs a source and fills the ring that all its trainers read."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from io import FileIO
from typing import Any, Self, Unpack, cast

import msgspec

from penstock.basics.tracebacks import cause_of, users_traceback
from penstock.contracts import Cursor, CycleNotNeeded, Gpu, Joints, SourceBlock, Tree, WritableRing
from penstock.errors import PenstockError, SourceError
from penstock.feed import wire
from penstock.feed.endpoint import Endpoint
from penstock.feed.feeder.cycles import StreamCycles
from penstock.feed.feeder.family import Family, why_together
from penstock.feed.feeder.feed_state import FeedState
from penstock.feed.feeder.from_loader import source_of
from penstock.feed.feeder.joints import joints_of, newcomer_waits_samples
from penstock.feed.feeder.pace import Throughput
from penstock.feed.feeder.publisher import NotNeeded, Publisher
from penstock.feed.feeder.server import Server
from penstock.feed.feeder.slot_pool import SlotPool
from penstock.feed.feeder.writer import BlockWriter, DeviceTransform, check_fits
from penstock.feed.settings import (
    MOST_BLOCKS,
    MOST_SEGMENTS,
    FeedSettings,
    Settings,
    check_keywords,
    check_memory,
    checked,
)
from penstock.feed.statistics import FeederStatistics
from penstock.feed.witness import Witnesses
from penstock.fingerprint.comparison import Fingerprint
from penstock.memory.gpu_ring import MakeRing, ring_in
from penstock.memory.host_ring import UnusedPages
from penstock.memory.room import Room
from penstock.memory.slots import SizedSlotSource, Slots, SlotSource
from penstock.sources.adapt import with_workers
from penstock.sources.seeds import own_random_numbers, rows_seed
from penstock.sources.streams.bounds import StreamBounds


class Feeder:
    """Feeds trainers from one loader, under one name, in the process that calls ``run()``.

    Trainers find the feed by its name as soon as the feeder is made. It produces
    while somebody reads, holds no more than its window, and waits for its slowest
    trainer. ``share`` starts one in a separate process; make one yourself to run
    it where you like.

    Args:
        loader: A torch ``DataLoader``; a tree of arrays (tuple, dict, array or tensor, with one row per sample); a
            ``Source``; or any iterable of batches that starts afresh each time.
        name: Name of the feed, any text of 1 to 1,000 characters.
        transform: Function that takes a block of the loader and returns one with as many rows (normalised, or
            embedded by a frozen encoder); called here, once for all trainers. With the ring on a GPU it is given
            tensors there, and may return such.
        lock: Lock of the feed, where another process took it for this one.
        fingerprint: Fingerprint of the function that made the loader, which ``share`` compares.
        witnesses: What the loader makes of a few samples, with which trainers compare their own.
        make_ring: Makes its ring in the memory that is asked for, or elsewhere.
        settings: Settings of the feed; see ``FeedSettings``.

    Example:
        ``with penstock.Feeder(loader, "imagenet", window="4GiB", epochs=90) as feeder: feeder.run()`` feeds each
        trainer 90 epochs.

    Raises:
        FeedExists: another feeder serves this name.
        BadSetting: a setting is out of range, the window is larger than the memory of the machine or container, or
            the loader cannot be fed.
        BlockTooLarge: the window cannot hold a block, where its size is known before it is read.
        InsecureDirectory: others could enter the directory of the sockets.
        DirectoryUnusable: that directory cannot be made or written to.
        DeviceUnavailable: this machine has no such GPU, or no room for the window on it.

    Examples:
        >>> feeder = penstock.Feeder(penstock.ArraySource(np.arange(100)), "numbers", epochs=1)
        >>> threading.Thread(target=feeder.run).start()
        >>> with penstock.attach("numbers", batch_size=30, framework="numpy") as loader:
        ...     [len(batch) for batch in loader]
        [30, 30, 30, 10]
    """

    def __init__(
        self,
        loader: Any,
        name: str,
        *,
        transform: Callable[[Tree], Tree] | None = None,
        lock: FileIO | None = None,
        fingerprint: Fingerprint | None = None,
        witnesses: Witnesses | None = None,
        make_ring: MakeRing = ring_in,
        **settings: Unpack[FeedSettings],
    ) -> None:
        check_keywords("Feeder", settings, FeedSettings)
        memory = settings.get("memory")
        memory = "host" if memory is None else memory
        named = {**settings, "memory": getattr(memory, "name", memory)}
        self.settings = Settings(**checked(**cast("FeedSettings", named)))
        check_memory(self.settings.window_bytes)
        self.name = name
        self._source = source_of(with_workers(loader, self.settings.own_workers), name, self.settings)
        if isinstance(self._source, SizedSlotSource) and transform is None:
            rows = min(self._source.batch_size or 1, self._source.samples or 1)
            check_fits(self._source.block_bytes, rows, self.settings.window_bytes)
        if self.settings.segments is None:
            chosen = min(len(self._source.segment_starts), MOST_SEGMENTS)
            self.settings = msgspec.structs.replace(self.settings, segments=chosen)
        self._endpoint, self._pid = Endpoint(name), os.getpid()
        undo = ExitStack()
        try:
            self._open(memory, make_ring, lock, transform, fingerprint, witnesses or Witnesses(), undo)
        except BaseException:
            undo.close()
            raise

    def _open(
        self,
        memory: str | Gpu,
        make_ring: MakeRing,
        lock: FileIO | None,
        transform: Callable[[Tree], Tree] | None,
        fingerprint: Fingerprint | None,
        witnesses: Witnesses,
        undo: ExitStack,
    ) -> None:
        """Take the name, open the ring and serve; ``undo`` takes back what has been done so far."""
        self._lock = lock or self._endpoint.await_lock()
        undo.callback(self._endpoint.remove, self._lock)
        self._ring, gpu = make_ring(memory, self.settings.window_bytes)
        undo.callback(self._ring.close)
        rings: dict[str, WritableRing] = {self._ring.kind: self._ring}
        if self._ring.twin is not self._ring:
            rings[f"host twin of the {self._ring.kind}"] = self._ring.twin
        self._slots = Slots(self._ring.twin)
        undo.callback(self._slots.close)
        undo.callback(self._source.close)
        self._writer = BlockWriter(self._ring, whole_batches=self.settings.whole_batches, gpu=gpu)
        whole = self.settings.whole_batches
        self._transform = DeviceTransform(gpu, transform, whole=whole) if gpu and transform else transform
        source = cast("Any", self._source)
        fills = isinstance(self._source, SlotSource) and source.batch_size and not whole and transform is None
        slots_of_use = source.fill(self._slots) if fills else 0
        anywhere, streams = getattr(source, "anywhere", False), getattr(source, "streams", False)
        bounds = StreamBounds() if streams else None
        self._state = FeedState(
            Room(self.settings.window_bytes),
            source.samples,
            source.segment_starts,
            self.settings.epochs,
            batches=source.batches,
            prefetch=self.settings.prefetch,
            anywhere=anywhere or (source.samples is None and source.batches is None and not streams),
            expect=self.settings.expect,
            joints=joints_of(source),
            bounds=bounds,
            block_rows=source.batch_size or 1,
            across=self.settings.across,
        )
        self._state.position = getattr(source, "begins_at", self._state.position)
        self._published, self._reopened, self._source_s, self._waits_for = Throughput(), 0, 0.0, ""
        self._selects = getattr(source, "selects", False)
        self._running, self._closing, self._closed = threading.RLock(), threading.Lock(), False
        welcome = wire.Welcome(
            name=self.name,
            pid=self._pid,
            settings=self.settings,
            rings=tuple(rings),
            samples=source.samples,
            batches=source.batches,
            batch_size=None if whole else source.batch_size,
            segment_starts=source.segment_starts,
            block_rows=source.batch_size,
            drop_last=getattr(source, "drop_last", False),
            order=getattr(source, "order", ""),
            anywhere=anywhere,
            joins=self._state.joints is not None,
            at_joints=self._state.joints is not None and hasattr(source, "starts"),
            fingerprint=fingerprint,
        )
        unused_pages = UnusedPages(self._state.room, self._ring.twin)
        self._server = Server(
            self._endpoint,
            self._state,
            welcome,
            list(rings.values()),
            unused_pages,
            self.statistics,
            selects=self._selects,
            witnesses=witnesses,
        )
        undo.callback(self._server.close, "was not begun")
        together = why_together(self.name, self._source, self.settings, by_share=fingerprint is not None)
        self._family = Family(self._server, self._state, self._published, together, witnesses.made_s)
        undo.callback(self._family.close)
        self._server.start()
        self._family.start()
        self._publisher = Publisher(self._server, self._state, self.name, self.settings.stall_timeout)
        self._cycles = bounds and StreamCycles(self._server, self._state, self._publisher, bounds)
        self._pool = SlotPool(
            self._slots,
            self._publisher,
            most=slots_of_use,
            window_bytes=self.settings.window_bytes,
            batch_size=welcome.batch_size or 0,
            slot_bytes=self._source.slot_bytes if isinstance(self._source, SizedSlotSource) else None,
        )

    def run(self) -> None:
        """Feed until every trainer has had its epochs, the feed is stopped, or the source fails.

        Raises:
            SourceError: the source failed; the trainers have got the error.
        """
        reason = "was interrupted"
        try:
            with self._running:
                while (at := self._publisher.await_need()) is not None:
                    self._play(at)
            reason = ""
        except Exception as error:
            if isinstance(error.__context__, KeyboardInterrupt):  # amid a lock's own code, which then failed
                raise KeyboardInterrupt from None
            reason = ""
            raise self._failure(error) from error
        finally:
            self.close(reason)

    def close(self, reason: str = "was closed by its own process") -> None:
        """End the feed; trainers that still need it get ``FeedStopped`` with this reason.

        If Ctrl-C breaks it off, a second call does what is left.

        Args:
            reason: What happened, in words that follow "the feeder".
        """
        if os.getpid() != self._pid:
            return
        with self._closing:
            if not self._closed:
                self._end(reason)
                self._closed = True

    def _end(self, reason: str) -> None:
        self._family.end()
        self._server.close(reason)
        self._family.close()
        with self._running:  # in another thread, which may be writing a block
            pass
        self._endpoint.remove(self._lock)
        self._source.close()
        self._slots.close()
        with self._server.lock:  # statistics() looks at the ring
            self._ring.close()

    def prepare(self, ahead: wire.Prepare) -> None:
        """Prepare from a place on, for trainers of another feed that are to come."""
        self._server.prepare(ahead)

    def wait_until_ending(self) -> None:
        """Wait until the feed is stopped or has no trainer left, even while its source is busy."""
        self._server.wait_until_ending()

    def end_without_trainers(self) -> None:
        """End the feed once no trainer is left, without lingering; a handler of signals may call this."""
        self._server.end_without_trainers()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def statistics(self) -> FeederStatistics:
        """Return the state of the feed and of its trainers now."""
        server, usage, stream = self._server, self._family.usage.read(), getattr(self._source, "report", None)
        with server.lock:
            now = time.monotonic()
            return FeederStatistics(
                name=self.name,
                pid=self._pid,
                source=self._source.description,
                sharing=self._ring.path,
                cycle=self._state.position.cycle,
                sample=self._state.position.sample,
                samples_per_cycle=self._source.samples,
                segments=len(self._source.segment_starts),
                seed=self.settings.seed,
                window_bytes=self.settings.window_bytes,
                used_bytes=self._state.room.used_bytes,
                resident_bytes=self._ring.twin.resident_bytes,
                blocks_held=len(self._state.blocks),
                most_blocks=MOST_BLOCKS,
                blocks=self._published.blocks,
                blocks_in_place=self._published.in_place,
                samples=self._published.samples,
                bytes=self._published.bytes,
                samples_per_s=self._published.samples_per_s(now),
                copy_s=self._writer.copy_s,
                source_s=self._source_s,
                waits_for=self._state.idle or (self._cycles and self._cycles.waits_for) or self._waits_for,
                held_back_by=server.culprit_pid(),
                held_back_s=server.pace.current_s(now),
                reopened=self._reopened,
                trainers=server.trainers(),
                taken=self._state.taken,
                newcomer_waits_samples=newcomer_waits_samples(self._state),
                cluster=getattr(self._source, "cluster", None),
                stream=stream,
                family=self._family.statistics(),
                usage=usage,
            )

    def _play(self, at: Cursor) -> None:
        """Publish one cycle from ``at`` on, until a trainer needs another position."""
        self._reopened += self._state.position != at
        joints = self._publisher.open(at.cycle)
        samples = at.sample
        self._pool.refill()
        try:
            with closing(self._opened(at, joints)) as blocks:
                while (block := self._next(blocks)) is not None:
                    if not self._put(at.cycle, block):
                        return
                    samples = block.sample + block.rows
        except CycleNotNeeded:
            return
        finally:
            self._pool.recall()
        if self._source.samples is None:
            self._publisher.end_cycle(at.cycle, samples)

    def _opened(self, at: Cursor, joints: Joints) -> Any:
        source = cast("Any", self._source)
        if self._cycles is not None:
            return source.open(at, self._cycles)
        wanted = partial(self._publisher.wanted, at.cycle) if self._selects else None
        if self._state.joints is not None:
            return source.open(at, wanted, joints)
        return source.open(at) if wanted is None else source.open(at, wanted)

    def _next(self, blocks: Any) -> SourceBlock | None:
        self._waits_for = "source"
        began = time.monotonic()
        block = next(blocks, None)
        took_s = time.monotonic() - began
        self._source_s += took_s
        if block is not None:
            self._state.block_s = self._published.took(took_s)
        self._waits_for = ""
        return block

    def _put(self, cycle: int, block: SourceBlock) -> bool:
        """Write a block into the ring and announce it. False if the source must be opened at another position."""
        if self._transform is not None and block.stored:
            seed = rows_seed(self.settings.seed, Cursor(cycle, block.sample), block.kept, transform=True)
            with own_random_numbers(seed):  # the source's draws, which may decide its order, are its own
                block = block._replace(tree=self._transform(block.tree))
        placement, leaves = self._writer.place(block)
        self._waits_for = "trainers"
        reserved = self._pool.reserve(cycle, block, placement.nbytes)
        self._waits_for = ""
        if isinstance(reserved, NotNeeded):
            return reserved is NotNeeded.SKIP and not self._source.seekable
        try:
            self._writer.write(placement, leaves, reserved.offset)
        except BaseException:
            self._pool.cancel(reserved)
            raise
        self._published.count(
            block.rows, block.stored, sum(placement.leaf_bytes), time.monotonic(), in_place=leaves is None
        )
        self._pool.publish(reserved, placement)
        if block.stored:
            self._server.see(block.ids)
        return True

    def _failure(self, error: Exception) -> SourceError:
        """Send the trainers an error, and return it as ``run`` raises it."""
        text = users_traceback(error)
        if isinstance(error, SourceError):
            sent = error
        elif isinstance(error, PenstockError):
            sent = SourceError(str(error), text)
        else:
            sent = SourceError(f"the source of feed {self.name!r} raised {cause_of(error)}", text)
        raised = type(error).__name__ if type(error).__module__ == "builtins" else ""
        self._server.fail(type(sent).__name__, str(sent), text, raised)
        return sent
