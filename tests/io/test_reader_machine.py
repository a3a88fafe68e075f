"""No sequence of submit and completed, on storage that misbehaves, loses, repeats or spoils an extent."""

from __future__ import annotations

import ctypes
import errno

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.examples import examples

from penstock.contracts import Extents, Opened
from penstock.io.queue import Reads, Results
from penstock.io.reader import QueueReader
from penstock.testing.faulty_queue import FaultyQueue

DEPTH = 8
SLOT_BYTES = 512
FILE = np.random.default_rng(0).integers(0, 256, 20_000, np.uint8)
ALIGNED = st.tuples(st.integers(0, 300).map((64).__mul__), st.integers(1, 7).map((64).__mul__), st.just(0))
NEAR_THE_END = st.tuples(st.integers(19_500, 20_100), st.integers(1, 450), st.sampled_from([0, 0, 7, 60]))
EXTENT = ALIGNED | NEAR_THE_END | NEAR_THE_END.map(lambda each: (each[0] // 64 * 64, each[1] // 64 * 64 + 64, 0))


class MemoryQueue:
    """A file that lies in memory, read at once; as with O_DIRECT, only from and to aligned places."""

    mech = "memory"
    path_taken = "memory"

    def __init__(self, depth: int, alignment: int) -> None:
        self.depth = depth
        self.alignment = alignment
        self._done: list[tuple[int, int]] = []
        self._under_way: set[int] = set()

    def open(self, path: str) -> Opened:
        return Opened(0, FILE.nbytes)

    def push(self, reads: Reads) -> None:
        for i, _, offset, nbytes, address in zip(*(field.tolist() for field in reads), strict=True):
            assert (offset | nbytes | address) % self.alignment == 0
            assert i not in self._under_way
            self._under_way.add(i)
            part = FILE[offset : offset + nbytes]
            ctypes.memmove(address, part.ctypes.data, part.nbytes)
            self._done.append((i, part.nbytes))
        assert len(self._under_way) <= self.depth

    def pop(self, at_least: int) -> Results:
        assert len(self._done) >= at_least, "it would wait for ever"
        ids, nbytes = np.array(self._done, np.int64).reshape(-1, 2).T
        self._under_way.clear()
        self._done.clear()
        return Results(ids, nbytes)

    def close(self) -> None:
        assert not self._under_way


class Machine(RuleBasedStateMachine):
    @initialize(
        seed=st.integers(0, 1000),
        alignment=st.sampled_from([1, 64]),
        errors=st.sampled_from([0.0, 0.2]),
        shorts=st.sampled_from([0.0, 0.5]),
    )
    def begin(self, seed: int, alignment: int, errors: float, shorts: float) -> None:
        # A destination in the middle of the memory, which itself begins where the queue likes it.
        whole = np.zeros(DEPTH * SLOT_BYTES + 64, np.uint8)
        self.memory = whole[-whole.ctypes.data % 64 :][: DEPTH * SLOT_BYTES]
        queue = MemoryQueue(DEPTH, alignment)
        self.queue = FaultyQueue(queue, seed, errors=errors, shorts=shorts, repeats=0.2)
        self.reader = QueueReader(self.queue, self.memory)
        self.file, _ = self.reader.open("file")
        self.free = set(range(DEPTH))
        self.under_way: dict[int, tuple[int, int, int]] = {}
        self.next_tag = 0
        self.errors_seen = 0

    @rule(asked=st.lists(EXTENT, max_size=5))
    def submit(self, asked: list[tuple[int, int, int]]) -> None:
        asked = asked[: len(self.free)]
        slots = sorted(self.free)[: len(asked)]
        offsets, nbytes, skips = np.array(asked, np.int64).reshape(-1, 3).T
        to = np.array(slots, np.int64) * SLOT_BYTES + skips
        tags = self.next_tag + np.arange(len(asked))
        taken = self.reader.submit(Extents(tags, np.full(len(asked), self.file), offsets, nbytes, to))
        assert taken == len(asked)
        for tag, offset, n, start in zip(tags, offsets, nbytes, to, strict=True):
            self.under_way[int(tag)] = int(offset), int(n), int(start)
        self.free -= set(slots)
        self.next_tag += len(asked)

    @rule(at_least=st.integers(0, DEPTH + 1))
    def complete(self, at_least: int) -> None:
        before = len(self.under_way)
        done = self.reader.completed(at_least)
        assert len(done.tags) >= min(at_least, before)
        for tag in done.tags.tolist():
            offset, nbytes, start = self.under_way.pop(tag)
            self.free.add(start // SLOT_BYTES)
            failure = done.failures.get(tag)
            if failure is None:
                np.testing.assert_array_equal(self.memory[start : start + nbytes], FILE[offset : offset + nbytes])
            elif failure.errno:
                assert failure.errno == errno.EIO
                self.errors_seen += 1
            else:
                assert offset + nbytes > FILE.nbytes
            if offset + nbytes > FILE.nbytes:
                assert failure is not None

    @invariant()
    def every_error_is_told_and_none_is_made_up(self) -> None:
        if hasattr(self, "queue"):
            assert self.errors_seen <= len(self.queue.failed)
            if not self.under_way:
                assert self.errors_seen == len(self.queue.failed)

    def teardown(self) -> None:
        if hasattr(self, "reader"):
            self.reader.close()


TestReaderMachine = Machine.TestCase
TestReaderMachine.settings = settings(max_examples=examples(40), stateful_step_count=30)
