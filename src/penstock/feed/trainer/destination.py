"""Where a trainer's batches go: into its own memory, or onto a GPU."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from penstock.basics.terminal import say
from penstock.contracts import ByteArray, DeviceBytes, Event, Gpu, Ids, Ring
from penstock.errors import BadSetting, DeviceUnavailable, PinningRefused
from penstock.feed import wire
from penstock.feed.trainer.holdings import Holdings
from penstock.memory.gpu_ring import DeviceRing
from penstock.memory.host_ring import HostRing, Recycler
from penstock.tree import Array, device_leaf, leaf_from_bytes


class Sealed(NamedTuple):
    """A batch, all of whose copies have been begun."""

    ready: Callable[[], None]  # makes it usable by this thread, where it may still be on its way
    again: Callable[[], None]  # does so once more, where another call hands it out
    arrives: Event | None = None  # what passes once no copy reads the ring any more; None if none does


class OnHost:
    """Private copies in this process's memory, which is reused once they are gone."""

    handed = "private copy"  # what batches are, as ``statistics()`` names it
    runs_ahead = False  # whether the next batch is worth taking before it is asked for
    lends = True  # whether batches can be views of the ring
    registers = False  # whether it may register a ring with a GPU

    def __init__(self) -> None:
        self._recycler = Recycler()

    def open_ring(self, welcome: wire.Welcome, fds: Sequence[int]) -> Ring:
        """Map one of a feed's rings, from which blocks come from now on; its descriptor may then be closed."""
        return HostRing.attach(fds[-1], welcome.settings.window_bytes)

    def copying(self) -> AbstractContextManager[object]:
        """Take memory and copy into it, until the end of the ``with`` block."""
        return _AT_ONCE

    def take(self, nbytes: int) -> ByteArray:
        """Return memory for a leaf, as an array of bytes."""
        return self._recycler.take(nbytes)

    def copy(self, to: ByteArray, origin: ByteArray) -> None:
        """Copy bytes of a block into such memory, now or later."""
        to[:] = origin

    def gather(self, to: ByteArray, origin: ByteArray, rows: Ids, row_bytes: int) -> None:
        """Copy some rows of a block's leaf into such memory, now or later."""
        # mode="clip": otherwise NumPy gathers into a buffer first.
        np.take(origin.reshape(-1, row_bytes), rows, 0, to.reshape(-1, row_bytes), mode="clip")

    def bring(self, origin: ByteArray) -> Any:
        """Copy bytes of this process into such memory, now or later, and return it."""
        memory = self.take(origin.nbytes)
        self.copy(memory, origin)
        return memory

    def room(self, nbytes: int, like: Any) -> Any:
        """Return such memory, beside ``like``, for what is computed of a batch that has arrived."""
        return self.take(nbytes)

    def bytes(self, origin: ByteArray) -> memoryview:
        """Return bytes of a block in host memory, now."""
        return origin.data

    def leaf(self, node: Array, memory: ByteArray, rows: int | None, *, writable: bool = True) -> Any:
        """Make the array or tensor over memory taken or lent, with ``rows`` as first axis unless None."""
        return leaf_from_bytes(node, memory, rows, writable=writable)

    def check(self) -> None:
        """Check that this thread may take a batch now."""

    def seal(self) -> Sealed:
        """End a batch, all of whose copies have been made or begun."""
        return _THERE

    def let_go(self, held: Holdings, index: int, after: Sealed | None = None) -> None:
        """Release the blocks before an index once they are copied: into that batch, or by all copies so far."""
        held.release_before(index)

    def settle(self, *, wait: bool) -> bool:
        """Release what has been copied, with ``wait`` everything let go; return whether nothing is left."""
        return True

    def synchronize(self) -> None:
        """Wait until all copies have arrived."""

    def leave(self) -> None:
        """Let go of the present ring, whose blocks are all unused."""


class OnPinnedHost(OnHost):
    """Private copies in pinned memory, from which a GPU copies while the program goes on."""

    handed = "pinned private copy"

    def __init__(self, allocate: Callable[[int], Any]) -> None:
        super().__init__()
        self._allocate = allocate
        """Makes a tensor of a number of bytes. Torch's own allocator reuses its memory only when the copies from
        it have ended, which ``Recycler`` could not know."""

    def take(self, nbytes: int) -> Any:
        return self._allocate(nbytes)

    def copy(self, to: Any, origin: ByteArray) -> None:
        to.numpy()[:] = origin

    def gather(self, to: Any, origin: ByteArray, rows: Ids, row_bytes: int) -> None:
        super().gather(to.numpy(), origin, rows, row_bytes)

    def leaf(self, node: Array, memory: Any, rows: int | None, *, writable: bool = True) -> Any:
        if isinstance(memory, np.ndarray):  # a view of the ring
            return super().leaf(node, cast("ByteArray", memory), rows, writable=writable)
        if node.library == "torch":
            return device_leaf(node, memory, rows)
        return super().leaf(node, memory.numpy(), rows, writable=writable)


def on_host(*, pinned: bool) -> OnHost:
    """Return where a trainer's batches go in this process, ``pinned`` if there is a GPU to pin them for."""
    torch = sys.modules.get("torch")
    if not pinned or torch is None or not torch.cuda.is_available():
        return OnHost()
    return OnPinnedHost(lambda nbytes: torch.empty(nbytes, dtype=torch.uint8, pin_memory=True))


class OnGpu:
    """Tensors on a GPU, copied from the ring by the GPU itself.

    A ring on a GPU is mapped once; where this GPU cannot reach it, blocks
    come from its twin on the host. A ring on the host is registered with the
    GPU once. Where the system refuses that, bytes go by way of a registered
    buffer, which costs the process a copy.

    From a ring on the GPU a batch is copied *here*, on the trainer's current stream: such a copy is too short to
    hide. What crosses from the host or another GPU, and what this process waits for, is copied *beside* what the
    trainer computes (docs/decisions/0036-a-trainers-stream.md). A call that was broken off may be repeated on
    another stream.
    """

    registers = True

    def __init__(self, gpu: Gpu, *, views: bool = False) -> None:
        self._gpu = gpu  # where batches end
        self._views = views  # whether batches are to be views, which only a ring on a GPU can give
        self._on_device = False
        self._beside = True  # whether batches are copied beside what the trainer computes
        self._pinned: ByteArray | None = None
        self._unpinned = ""  # why the host ring is not registered
        self._unmapped = ""  # why the feed's ring on a GPU is not read
        self._taken: list[DeviceBytes] = []  # for the batch at hand
        self._begun = False  # whether a copy was begun after ``_newest``
        self._stream: object = None  # where that was
        self._newest: Event | None = None  # the point after the copies of the batch that was sealed last
        self._to_release: deque[tuple[Event, Holdings, int]] = deque()

    @property
    def runs_ahead(self) -> bool:
        return self._beside

    @property
    def lends(self) -> bool:
        return self._on_device

    @property
    def handed(self) -> str:
        if self._on_device:
            return f"copy on {self._gpu.name}" + ("" if self._beside else ", on the trainer's stream")
        why = "; ".join(filter(None, (self._unpinned, self._unmapped)))
        how = "by way of a buffer" if self._unpinned else "from the pinned ring"
        return f"copy on {self._gpu.name} {how}" + (f" ({why})" if why else "")

    def open_ring(self, welcome: wire.Welcome, fds: Sequence[int]) -> Ring:
        """Map one of a feed's rings."""
        was_on_device, was_beside = self._on_device, self._beside
        ring = self._mapped(welcome, fds)
        if self._taken and self._beside and not was_beside:  # amid a batch
            self._gpu.wait_for_compute(self._taken)
        elif self._taken and was_beside and not self._beside:
            self._gpu.wait_for_copies(self._taken, self._gpu.mark())
        if was_on_device and not self._on_device:
            instead = ", and are no views any more" if self._views else ""
            say(f"batches on {self._gpu.name} come from the feed's ring on the host from now on{instead}")
        return ring

    def _mapped(self, welcome: wire.Welcome, fds: Sequence[int]) -> Ring:
        window_bytes = welcome.settings.window_bytes
        self._on_device, self._unpinned, self._unmapped = len(fds) > 1, "", ""
        self._newest, self._begun = None, False  # the ring before has been left, once all of it was copied
        if self._on_device:
            try:
                ring = DeviceRing.attach(self._gpu, fds[0], window_bytes)
                # Where a feed evicts, the process waits for each batch's copies.
                evicts, is_here = welcome.settings.stall_timeout is not None, welcome.rings[0] == ring.kind
                self._beside = self._views or evicts or not is_here
                return ring
            except DeviceUnavailable as refused:
                self._on_device = False
                self._unmapped = f"the feed's {welcome.rings[0]} cannot be mapped: {refused}"
                if self._views:
                    raise DeviceUnavailable(
                        f"borrow=True on {self._gpu.name} ({self._gpu.uuid}): {self._unmapped}. Leave borrow out, "
                        "and batches are copied from the feed's host twin of it; or train on the feed's GPU"
                    ) from None
        self._beside = True
        try:
            ring = HostRing.attach_pinned(fds[-1], window_bytes, self._gpu)
        except PinningRefused as refused:
            self._unpinned = str(refused)
            return HostRing.attach(fds[-1], window_bytes)
        self._pinned = ring.readable(0, window_bytes)
        return ring

    def copying(self) -> AbstractContextManager[object]:
        if self._beside:
            self._begun = True
            return self._gpu.beside()
        stream = self._gpu.current()
        if self._begun and stream != self._stream:
            self._gpu.follow(self._stream, self._taken)
        self._stream = stream
        self._begun = True
        return _AT_ONCE

    def take(self, nbytes: int) -> DeviceBytes:
        memory = self._gpu.empty(nbytes)
        self._taken.append(memory)
        return memory

    def copy(self, to: DeviceBytes, origin: Any) -> None:
        if origin.nbytes == 0:
            return
        if self._on_device:
            self._gpu.copy_within(to, origin)
        else:
            self._gpu.copy(to, origin, pinned=self._pinned is not None)

    def gather(self, to: DeviceBytes, origin: Any, rows: Ids, row_bytes: int) -> None:
        self._gpu.gather(to, origin, rows, row_bytes, pinned=self._pinned is not None)

    def bring(self, origin: ByteArray) -> DeviceBytes:
        with self.copying():
            memory = self.take(origin.nbytes)
            self._gpu.copy(memory, origin, pinned=False)
        return memory

    def room(self, nbytes: int, like: DeviceBytes) -> DeviceBytes:
        return like.new_empty(nbytes)  # not take(): this thread's own stream writes there at once

    def bytes(self, origin: Any) -> memoryview:
        if not self._on_device:
            return origin.data
        there = np.empty(origin.nbytes, np.uint8)
        with self._gpu.beside():  # elsewhere the process would wait for what it has launched
            self._gpu.copy_out(there, origin)
        self._gpu.synchronize()
        return there.data

    def leaf(self, node: Array, memory: DeviceBytes, rows: int | None, *, writable: bool = True) -> Any:
        return device_leaf(node, memory, rows)

    def check(self) -> None:
        if self._gpu.captures():
            raise BadSetting(
                f"next() on {self._gpu.name} while this thread's CUDA stream captures a graph: whenever that is "
                "replayed, it would copy from the same place of the feed's window. Take batches outside of "
                "torch.cuda.graph(), and copy each into the tensor that the graph reads"
            )

    def seal(self) -> Sealed:
        mark, taken = self._mark(), self._taken
        self._taken = []
        if not self._beside:
            return Sealed(_nothing, partial(self._follow, mark.stream, taken), mark)
        ready = partial(self._gpu.wait_for_copies, taken, mark)
        return Sealed(ready, ready, mark)

    def _follow(self, stream: object, memory: Sequence[DeviceBytes]) -> None:
        if self._gpu.current() != stream:
            self._gpu.follow(stream, memory)

    def let_go(self, held: Holdings, index: int, after: Sealed | None = None) -> None:
        if self._views:
            self._gpu.collect()
        while self._to_release and self._to_release[0][0].passed():
            self._release_oldest()
        mark = self._mark() if after is None or after.arrives is None else after.arrives
        self._to_release.append((mark, held, index))

    def settle(self, *, wait: bool) -> bool:
        while self._to_release:
            mark = self._to_release[0][0]
            if wait:
                mark.wait()
            elif not mark.passed():
                break
            self._release_oldest()
        is_over = not (self._views or wait) or self._gpu.collect(wait=wait)  # of views, too, that lived until then
        return is_over and not self._to_release

    def synchronize(self) -> None:
        if self._beside:
            self._gpu.synchronize()
        else:
            self._mark().wait()

    def leave(self) -> None:
        self.synchronize()
        self.settle(wait=True)
        self._gpu.collect_all()
        if self._pinned is not None:
            self._gpu.unpin(self._pinned)
            self._pinned = None

    def _mark(self) -> Event:
        """Return the point after all copies so far, and after little else that the trainer has launched."""
        if self._newest is None or self._begun:
            mark = self._gpu.mark() if self._beside else self._gpu.here()
            if self._begun and not self._beside and mark.stream != self._stream:
                self._gpu.follow(self._stream, self._taken)
                mark = self._gpu.here()
            self._newest, self._begun = mark, False
        return self._newest

    def _release_oldest(self) -> None:
        _, held, index = self._to_release[0]
        held.release_before(index)
        self._to_release.popleft()


Destination = OnHost | OnGpu
"""Takes rows out of blocks, and lets each block go when it has them."""


_AT_ONCE = nullcontext()


def _nothing() -> None:
    """Do nothing: the batch is there already, or in order with what uses it."""


_THERE = Sealed(_nothing, _nothing)
