"""A fake GPU in host memory that enforces a real one's rules: bytes read too early are poison."""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch

from penstock.contracts import ByteArray, DeviceBytes, Event, Ids
from penstock.errors import DeviceUnavailable, PinningRefused
from penstock.memory.host_ring import HostRing, WritableHostRing, when_dead

POISON = 0xDB


class FakeGpu:
    """A GPU whose copies are carried out late: when they are waited for, or at random times.

    Until then the destination of copies *beside* holds poison, and they read what the host
    memory holds when they are carried out. What a thread launches reads the destination of others
    at once, as both are in one stream: there it is checked that what they read did not change
    before they were carried out. New memory and new rings hold
    poison too. Each ring may take as much memory as all else together.
    """

    name = "fake:0"
    uuid = "GPU-00000000-fake"

    def __init__(self, seed: int = 0, *, pins: bool = True, memory_bytes: int = 1 << 30, reaches: bool = True):
        self._random = random.Random(seed)
        self._pins = pins  # whether host memory can be registered
        self._memory_bytes = self._free_bytes = memory_bytes
        self._reaches = reaches  # whether other processes' shared memory can be mapped
        self._shared: WeakValueDictionary[int, ByteArray] = WeakValueDictionary()
        self._loans: deque[tuple[Event, Callable[[], None]]] = deque()
        self._collects = True
        self._side, self._current = _FakeStream(self._random), _FakeStream(self._random)
        self._is_beside = False
        self._taken_over: Sequence[DeviceBytes] = ()
        self._computes = False
        self.capturing = False  # whether this thread's stream captures a graph
        self.pinned: list[tuple[int, int]] = []
        self.copied_bytes = 0
        self.most_under_way = 0

    def pin(self, memory: ByteArray) -> None:
        pages = pages_of(memory)
        # Registering for writing would replace such a page by a private copy of the file's.
        assert not any(page.private and page.of_a_file for page in pages), "the GPU would read a copy for ever"
        why = "" if all(page.writable for page in pages) else "invalid argument"
        if why or not self._pins:
            why = why or "it is a test"
            raise PinningRefused(f"{self.name} cannot register {memory.nbytes:,} bytes of host memory: {why}")
        span = memory.ctypes.data, memory.nbytes
        assert span not in self.pinned, "registered once"
        self.pinned.append(span)

    def unpin(self, memory: ByteArray) -> None:
        assert not self._side.copies and not self._current.copies, "a copy may be reading there"
        self.pinned.remove((memory.ctypes.data, memory.nbytes))

    @contextmanager
    def beside(self) -> Iterator[None]:
        before, self._is_beside = self._is_beside, True
        try:
            yield
        finally:
            self._is_beside = before

    def current(self) -> object:
        return self._current

    def follow(self, stream: Any, memory: Sequence[DeviceBytes]) -> None:
        raise AssertionError("this GPU has one stream beside its copies")

    def captures(self) -> bool:
        return self.capturing

    def empty(self, nbytes: int) -> DeviceBytes:
        if nbytes > self._free_bytes:
            raise torch.OutOfMemoryError(
                f"{self.name} has {self._memory_bytes:,} bytes, {self._free_bytes:,} of them free; "
                f"{nbytes:,} were asked for"
            )
        memory = np.full(nbytes, POISON, np.uint8)
        self._free_bytes -= nbytes
        when_dead(memory, partial(self._free, nbytes))
        return torch.as_tensor(memory)

    def copy(self, to: DeviceBytes, origin: ByteArray, *, pinned: bool) -> None:
        assert to.nbytes == origin.nbytes
        assert pinned == _lies_in(self.pinned, origin.ctypes.data, origin.nbytes)
        self._begin(to, torch.as_tensor(origin if pinned else origin.copy()))
        self.copied_bytes += origin.nbytes

    def copy_within(self, to: DeviceBytes, origin: DeviceBytes) -> None:
        assert to.nbytes == origin.nbytes
        self._check_settled(origin)
        self._begin(to, origin)

    def gather(self, to: DeviceBytes, origin: Any, rows: Ids, row_bytes: int, *, pinned: bool) -> None:
        for i, row in enumerate(rows.tolist()):
            there, part = to[i * row_bytes : (i + 1) * row_bytes], origin[row * row_bytes : (row + 1) * row_bytes]
            if isinstance(origin, np.ndarray):
                self.copy(there, part, pinned=pinned)
            else:
                self.copy_within(there, part)

    def copy_out(self, to: ByteArray, origin: DeviceBytes) -> None:
        assert to.nbytes == origin.nbytes
        self._check_settled(origin)
        self._begin(torch.as_tensor(to), origin)

    def share(self, nbytes: int) -> tuple[DeviceBytes, int]:
        if nbytes > self._memory_bytes:
            raise DeviceUnavailable(
                f"{self.name} refused {nbytes:,} bytes; {self._memory_bytes:,} are free. "
                'memory="host" asks nothing of it'
            )
        ring = WritableHostRing.create(nbytes)
        fd = os.dup(ring.fd)
        memory = self._mapped(ring.writable(0, nbytes))
        ring.close()
        return memory.fill_(POISON), fd

    def open_shared(self, fd: int, nbytes: int) -> DeviceBytes:
        if not self._reaches:
            raise DeviceUnavailable("it is another GPU's memory, and this is a test")
        ring = HostRing.attach(fd, nbytes)
        memory = self._mapped(ring.readable(0, nbytes))
        ring.close()
        return memory

    def lend(self, memory: DeviceBytes, offset: int, nbytes: int, ended: Callable[[], None]) -> DeviceBytes:
        view = self._shared[memory.data_ptr()][offset : offset + nbytes]
        self._collects = True
        when_dead(view, lambda: self._loans.append((self.here(), ended)) if self._collects else ended())
        return torch.as_tensor(view)

    def _mapped(self, memory: ByteArray) -> DeviceBytes:
        tensor = torch.as_tensor(memory)
        self._shared[tensor.data_ptr()] = memory
        return tensor

    def collect(self, *, wait: bool = False) -> bool:
        while self._loans:
            mark, ended = self._loans[0]
            if wait:
                mark.wait()
            elif not mark.passed():
                return False
            ended()
            self._loans.popleft()
        return True

    def collect_all(self) -> None:
        self._collects = False
        self.collect(wait=True)

    def mark(self) -> Event:
        return _FakeMark(self._side)

    def here(self) -> Event:
        return _FakeMark(self._current)

    def wait_for_copies(self, memory: Sequence[DeviceBytes], mark: Event) -> None:
        self._computes = True
        mark.wait()  # a real GPU makes the device wait, not the process

    def wait_for_compute(self, memory: Sequence[DeviceBytes]) -> None:
        self._taken_over = memory

    def holds(self, tensor: torch.Tensor) -> bool:
        """Count every host tensor once memory was handed over: what is computed here looks like the host's."""
        return self._computes and tensor.device.type == "cpu"

    def _free(self, nbytes: int) -> None:
        self._free_bytes += nbytes

    def _check_settled(self, origin: DeviceBytes) -> None:
        """Check that what this process computes is read only after ``wait_for_compute``, or in its own stream."""
        if not self._is_beside:
            return
        known = [(ring.ctypes.data, ring.nbytes) for ring in self._shared.values()]
        known += [(each.data_ptr(), each.nbytes) for each in self._taken_over]
        assert _lies_in(known, origin.data_ptr(), origin.nbytes), "computed, and not taken over"

    def _begin(self, to: DeviceBytes, source: DeviceBytes) -> None:
        if self._is_beside:
            to.fill_(POISON)
            self._side.begin(partial(to.copy_, source))
            self.most_under_way = max(self.most_under_way, len(self._side.copies))
        else:
            to.copy_(source)
            seen = source.clone()
            self._current.begin(lambda: _check_same(source, seen))

    def synchronize(self) -> None:
        self._side.run(self._side.begun)


def _check_same(source: torch.Tensor, seen: torch.Tensor) -> None:
    assert torch.equal(source, seen), "overwritten before it was copied"


class _FakeStream:
    """Copies in order, those that are yet to be carried out."""

    def __init__(self, chances: random.Random) -> None:
        self.copies: deque[Callable[[], object]] = deque()
        self.begun = self._done = 0
        self._chances = chances

    def begin(self, copy: Callable[[], object]) -> None:
        self.copies.append(copy)
        self.begun += 1

    def passed(self, upto: int) -> bool:
        """Whether ``upto`` copies are done; some may be carried out now."""
        while self.copies and self._chances.random() < 0.3:
            self._carry_out()
        return self._done >= upto

    def run(self, upto: int) -> None:
        while self._done < upto:
            self._carry_out()

    def _carry_out(self) -> None:
        self.copies.popleft()()
        self._done += 1


class Page(NamedTuple):
    """A mapping of this process: how it may be used, and whether it maps a file."""

    writable: bool
    private: bool
    of_a_file: bool


def pages_of(memory: ByteArray) -> list[Page]:
    """List the mappings that memory lies in (/proc/self/maps, proc(5))."""
    start, stop = memory.ctypes.data, memory.ctypes.data + memory.nbytes
    found: list[Page] = []
    for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
        span, may, _, _, inode, *_ = line.split()
        first, last = (int(at, 16) for at in span.split("-"))
        if first < stop and start < last:
            found.append(Page("w" in may, "p" in may, inode != "0"))
    return found


def _lies_in(spans: Sequence[tuple[int, int]], where: int, nbytes: int) -> bool:
    return any(start <= where and where + nbytes <= start + n for start, n in spans)


class _FakeMark:
    def __init__(self, stream: _FakeStream) -> None:
        self.stream, self._upto = stream, stream.begun

    def passed(self) -> bool:
        return self.stream.passed(self._upto)

    def wait(self) -> None:
        self.stream.run(self._upto)
