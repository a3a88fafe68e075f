"""Where a trainer's batches end: in memory of its own, or on a GPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from penstock.contracts import ByteArray, DeviceBytes, Gpu, Mark, Ring
from penstock.errors import BadSetting, DeviceUnavailable, PinningRefused
from penstock.feed import wire
from penstock.feed.arrived import Arrived
from penstock.memory.device import DeviceRing
from penstock.memory.host import HostRing
from penstock.memory.recycle import Recycler
from penstock.tree import Array, device_leaf, leaf_from_bytes

Ready = Callable[[], None]
"""Makes a batch that may still be on its way fit for use by this thread."""


class Destination(Protocol):
    """Takes rows out of blocks, and lets each block go when it has them."""

    @property
    def handed(self) -> str:
        """What batches are, as ``statistics()`` names it."""
        ...

    @property
    def runs_ahead(self) -> bool:
        """Whether the next batch is worth taking before it is asked for."""
        ...

    @property
    def lends(self) -> bool:
        """Whether views of the ring are of use there."""
        ...

    def open_ring(self, welcome: wire.Welcome, fd: int) -> Ring:
        """Map a feed's ring, from which blocks come from now on; ``fd`` becomes the ring's.

        Raises:
            DeviceUnavailable, BadSetting: it cannot be reached from here.
        """
        ...

    def take(self, nbytes: int) -> Any:
        """Memory for a leaf, as an array of bytes."""
        ...

    def copy(self, to: Any, origin: Any) -> None:
        """Bring bytes of a block there, now or later."""
        ...

    def bytes(self, origin: Any) -> bytes | memoryview:
        """Bytes of a block in this process, now."""
        ...

    def leaf(self, node: Array, memory: Any, rows: int | None, *, writable: bool = True) -> Any:
        """The array or tensor over memory that was taken or lent, with ``rows`` in front unless None."""
        ...

    def seal(self) -> Ready:
        """All of a batch has been copied, or will be."""
        ...

    def let_go(self, block: Arrived) -> None:
        """Release a block, as soon as what was copied of it has arrived."""
        ...

    def settle(self, *, wait: bool) -> None:
        """Release what can be released; with ``wait``, everything."""
        ...

    def finish(self) -> None:
        """Wait until all copies have arrived."""
        ...

    def leave(self) -> None:
        """No block of the present ring is used any more."""
        ...


class OnHost:
    """Private copies in this process's memory, which is used again once they have died."""

    handed = "private copy"
    runs_ahead = False
    lends = True

    def __init__(self) -> None:
        self._recycler = Recycler()

    def open_ring(self, welcome: wire.Welcome, fd: int) -> Ring:
        if welcome.ring_kind != HostRing.kind:
            raise BadSetting(
                f"feed {welcome.name!r} is a {welcome.ring_kind}, and this trainer's batches were to end on the "
                'host: pass device="cuda"'
            )
        return HostRing.attach(fd, welcome.settings.window_bytes)

    def take(self, nbytes: int) -> ByteArray:
        return self._recycler.take(nbytes)

    def copy(self, to: ByteArray, origin: ByteArray) -> None:
        to[:] = origin

    def bytes(self, origin: ByteArray) -> memoryview:
        return origin.data

    def leaf(self, node: Array, memory: ByteArray, rows: int | None, *, writable: bool = True) -> Any:
        return leaf_from_bytes(node, memory, rows, writable=writable)

    def seal(self) -> Ready:
        return _at_once

    def let_go(self, block: Arrived) -> None:
        block.release()

    def settle(self, *, wait: bool) -> None:
        pass

    def finish(self) -> None:
        pass

    def leave(self) -> None:
        pass


class OnGpu:
    """Tensors on a GPU, copied from the ring by the GPU itself, beside what it computes.

    A ring on the host is registered with the GPU once. Where the system
    refuses that, bytes go by way of a registered buffer, which costs the
    process a copy. A ring on a GPU is mapped once.
    """

    runs_ahead = True

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._on_device = False
        self._pinned: ByteArray | None = None
        self._refusal = ""
        self._taken: list[DeviceBytes] = []  # for the batch at hand
        self._held: deque[tuple[Mark, Arrived]] = deque()

    @property
    def lends(self) -> bool:
        return self._on_device

    @property
    def handed(self) -> str:
        if self._on_device:
            return f"copy on {self._gpu.name}"
        if self._refusal:
            return f"copy on {self._gpu.name} by way of a buffer ({self._refusal})"
        return f"copy on {self._gpu.name} from the pinned ring"

    def open_ring(self, welcome: wire.Welcome, fd: int) -> Ring:
        self._on_device = welcome.ring_kind != HostRing.kind
        if self._on_device:
            try:
                return DeviceRing.attach(self._gpu, fd, welcome.settings.window_bytes)
            except DeviceUnavailable as error:
                raise DeviceUnavailable(
                    f"feed {welcome.name!r} is a {welcome.ring_kind}, which {self._gpu.name} ({self._gpu.uuid}) "
                    f'cannot map: {error}. Train on the feed\'s GPU, or feed with memory="host"'
                ) from None
        ring = HostRing.attach(fd, welcome.settings.window_bytes)
        memory = ring.readable(0, ring.capacity_bytes)
        try:
            self._gpu.pin(memory)
        except PinningRefused as refused:
            self._refusal = str(refused)
        else:
            self._pinned, self._refusal = memory, ""
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

    def bytes(self, origin: Any) -> bytes | memoryview:
        return self._gpu.fetch(origin) if self._on_device else origin.data

    def leaf(self, node: Array, memory: DeviceBytes, rows: int | None, *, writable: bool = True) -> Any:
        return device_leaf(node, memory, rows)

    def seal(self) -> Ready:
        taken, self._taken = self._taken, []
        mark = self._gpu.mark()
        return lambda: self._gpu.hand_over(taken, mark)

    def let_go(self, block: Arrived) -> None:
        self._held.append((self._gpu.mark(), block))
        self.settle(wait=False)

    def settle(self, *, wait: bool) -> None:
        self._gpu.collect()
        while self._held:
            mark, block = self._held[0]
            if wait:
                mark.wait()
            elif not mark.passed():
                return
            self._held.popleft()
            block.release()

    def finish(self) -> None:
        self._gpu.mark().wait()

    def leave(self) -> None:
        self.finish()
        self.settle(wait=True)
        self._gpu.collect_all()
        if self._pinned is not None:
            self._gpu.unpin(self._pinned)
            self._pinned = None


def _at_once() -> None:
    """A batch that is there already."""
