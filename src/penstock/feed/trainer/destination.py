"""Where a trainer's batches go: into its own memory, or onto a GPU."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from penstock.contracts import ByteArray, DeviceBytes, Event, Gpu, Ids, Ring
from penstock.errors import DeviceUnavailable, PinningRefused
from penstock.feed import wire
from penstock.feed.trainer.holdings import Holdings
from penstock.memory.gpu_ring import DeviceRing
from penstock.memory.host_ring import HostRing, Recycler
from penstock.tree import Array, device_leaf, leaf_from_bytes

Ready = Callable[[], None]
"""Makes a batch that may still be on its way usable by this thread."""


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

    def seal(self) -> Ready:
        """End a batch, all of whose copies have been made or queued; return what makes it ready."""
        return _at_once

    def let_go(self, held: Holdings, index: int) -> None:
        """Release the blocks before an index, as soon as what was copied of them has arrived."""
        held.release_before(index)

    def settle(self, *, wait: bool) -> None:
        """Release what can be released; with ``wait``, everything."""

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
    """Tensors on a GPU, copied from the ring by the GPU itself, beside what it computes.

    A ring on a GPU is mapped once; where this GPU cannot reach it, blocks
    come from its twin on the host. A ring on the host is registered with the
    GPU once. Where the system refuses that, bytes go by way of a registered
    buffer, which costs the process a copy.
    """

    runs_ahead = True
    registers = True

    def __init__(self, gpu: Gpu, *, views: bool = False) -> None:
        self._gpu = gpu  # where batches end
        self._views = views  # whether batches are to be views, which only a ring on a GPU can give
        self._on_device = False
        self._pinned: ByteArray | None = None
        self._unpinned = ""  # why the host ring is not registered
        self._unmapped = ""  # why the feed's ring on a GPU is not read
        self._taken: list[DeviceBytes] = []  # for the batch at hand
        self._to_release: deque[tuple[Event, Holdings, int]] = deque()

    @property
    def lends(self) -> bool:
        return self._on_device

    @property
    def handed(self) -> str:
        if self._on_device:
            return f"copy on {self._gpu.name}"
        why = "; ".join(filter(None, (self._unpinned, self._unmapped)))
        how = "by way of a buffer" if self._unpinned else "from the pinned ring"
        return f"copy on {self._gpu.name} {how}" + (f" ({why})" if why else "")

    def open_ring(self, welcome: wire.Welcome, fds: Sequence[int]) -> Ring:
        """Map one of a feed's rings."""
        window_bytes = welcome.settings.window_bytes
        self._on_device, self._unpinned, self._unmapped = len(fds) > 1, "", ""
        if self._on_device:
            try:
                return DeviceRing.attach(self._gpu, fds[0], window_bytes)
            except DeviceUnavailable as refused:
                self._on_device = False
                self._unmapped = f"the feed's {welcome.rings[0]} cannot be mapped: {refused}"
                if self._views:
                    raise DeviceUnavailable(
                        f"borrow=True on {self._gpu.name} ({self._gpu.uuid}): {self._unmapped}. Leave borrow out, "
                        "and batches are copied from the feed's host twin of it; or train on the feed's GPU"
                    ) from None
        try:
            ring = HostRing.attach_pinned(fds[-1], window_bytes, self._gpu)
        except PinningRefused as refused:
            self._unpinned = str(refused)
            return HostRing.attach(fds[-1], window_bytes)
        self._pinned = ring.readable(0, window_bytes)
        return ring

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
        began = 0
        for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
            start, nbytes = int(run[0]) * row_bytes, len(run) * row_bytes
            self.copy(to[began : began + nbytes], origin[start : start + nbytes])
            began += nbytes

    def bring(self, origin: ByteArray) -> DeviceBytes:
        memory = self.take(origin.nbytes)
        self._gpu.copy(memory, origin, pinned=False)
        return memory

    def room(self, nbytes: int, like: DeviceBytes) -> DeviceBytes:
        return like.new_empty(nbytes)  # not take(): this thread's own stream writes there at once

    def bytes(self, origin: Any) -> memoryview:
        if not self._on_device:
            return origin.data
        there = np.empty(origin.nbytes, np.uint8)
        self._gpu.copy_out(there, origin)
        self.synchronize()
        return there.data

    def leaf(self, node: Array, memory: DeviceBytes, rows: int | None, *, writable: bool = True) -> Any:
        return device_leaf(node, memory, rows)

    def seal(self) -> Ready:
        taken, self._taken = self._taken, []
        mark = self._gpu.mark()
        return lambda: self._gpu.wait_for_copies(taken, mark)

    def let_go(self, held: Holdings, index: int) -> None:
        self._to_release.append((self._gpu.mark(), held, index))
        self.settle(wait=False)

    def settle(self, *, wait: bool) -> None:
        self._gpu.collect()
        while self._to_release:
            mark, held, index = self._to_release[0]
            if wait:
                mark.wait()
            elif not mark.passed():
                return
            held.release_before(index)
            self._to_release.popleft()

    def synchronize(self) -> None:
        self._gpu.synchronize()

    def leave(self) -> None:
        self.synchronize()
        self.settle(wait=True)
        self._gpu.collect_all()
        if self._pinned is not None:
            self._gpu.unpin(self._pinned)
            self._pinned = None


Destination = OnHost | OnGpu
"""Takes rows out of blocks, and lets each block go when it has them."""


def _at_once() -> None:
    """Do nothing: the batch is there already."""
