"""What workers see of a cycle's records are these records, cycle after cycle."""

from __future__ import annotations

import pickle
from mmap import mmap
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.sources.streams.memory import CycleMemory, SharedRecords

CYCLES = st.lists(st.lists(st.binary(max_size=9000), min_size=1, max_size=20), min_size=1, max_size=6)


@given(CYCLES, st.randoms())
def test_each_cycle_replaces_the_one_before(cycles: list[list[bytes]], random: Random) -> None:
    memory, seen = CycleMemory(), None  # as a worker has mapped it
    for records in cycles:
        held = memory.filled(records)
        assert [*held] == records
        rows = [random.randrange(len(records)) for _ in range(7)]
        task: SharedRecords = pickle.loads(pickle.dumps(held.picked(np.array(rows))[2:]))
        seen = task.mapped(seen)
        assert isinstance(seen, mmap) and len(task) == 5
        assert [*task.lying_in(seen)] == [*task] == [records[row] for row in rows[2:]]
    memory.file.seek(0)
    assert memory.file.readall() == b"".join(cycles[-1]) + b"\n"


def test_memory_of_a_large_cycle_is_given_back_by_a_small_one() -> None:
    memory = CycleMemory()
    memory.filled([bytes(1 << 20)] * 3)
    memory.filled([b"small"])
    assert memory.file.seek(0, 2) == 6
