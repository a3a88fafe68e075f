"""Blocks that workers write into the ring: the same batches, no wait for room, and all of it given back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.sources.drawing import assert_identical
from torch.utils.data import DataLoader, Dataset, default_collate

import penstock
from penstock.contracts import Cursor
from penstock.feed.feeder.slot_pool import RING_SHARE
from penstock.memory.host_ring import WritableHostRing
from penstock.memory.room import ALIGNMENT, Room
from penstock.memory.slots import Slot, Slots, SlotSource
from penstock.sources.adapt import adapt

ROWS = 8
SAMPLES = 200
ROW_BYTES = 512
BLOCK_BYTES = ROWS * ROW_BYTES + ALIGNMENT  # rows and their numbers
PAGE = 4096


class Rows(Dataset[Any]):
    """Samples whose every byte tells which they are."""

    def __init__(self, *, names: bool = False, slow: bool = False) -> None:
        self.names = names
        self.slow = slow

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> Any:
        if self.slow and i // ROWS % 2 == 0:
            time.sleep(0.003)
        return np.full(ROW_BYTES, i % 251, np.uint8), f"row {i}" if self.names else i


def loader(workers: int = 2, *, names: bool = False, **options: Any) -> DataLoader[Any]:
    return DataLoader(Rows(names=names), batch_size=ROWS, shuffle=True, num_workers=workers, **options)


def epoch_of(trainer: penstock.Loader, pause_s: float = 0.0) -> list[int]:
    """An epoch's sample numbers, each row checked."""
    seen: list[int] = []
    for rows, numbers in trainer:
        assert (rows == (numbers % 251).to(torch.uint8)[:, None]).all()
        seen += numbers.tolist()
        time.sleep(pause_s)
    return seen


def assert_holds_only_what_is_under_way(feeder: penstock.Feeder, workers: int) -> None:
    """Without a reader: at most two blocks a worker, one more on offer, and one that waits."""
    most = (max(1, 2 * workers) + 2) * BLOCK_BYTES
    deadline = time.monotonic() + 20
    while feeder.statistics().used_bytes > most and time.monotonic() < deadline:
        time.sleep(0.01)
    assert feeder.statistics().used_bytes <= most


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_write_blocks_into_the_ring(serve: Any, persistent: bool) -> None:
    feeder = serve(loader(persistent_workers=persistent))
    with penstock.attach("feed") as trainer:
        orders = [epoch_of(trainer) for _ in range(3)]
        statistics = feeder.statistics()
    assert all(sorted(order) == list(range(SAMPLES)) for order in orders)
    # The first tells the size of a slot; those collated before it is published are copied.
    assert 1 <= statistics.blocks - statistics.blocks_in_place <= 2 * 2 + 1
    assert_holds_only_what_is_under_way(feeder, 2)


@pytest.mark.whole
@pytest.mark.parametrize("how", [("spawn", "persistent"), ("forkserver", "default")])
def test_workers_that_are_not_forked_do_too(how: tuple[str, ...]) -> None:
    script = Path(__file__).with_name("contexts.py")
    done = subprocess.run([sys.executable, script, *how], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


def test_a_loader_without_workers_collates_into_the_ring_too(serve: Any) -> None:
    feeder = serve(loader(0))
    with penstock.attach("feed") as trainer:
        assert sorted(epoch_of(trainer)) == list(range(SAMPLES))
        statistics = feeder.statistics()
    assert statistics.blocks_in_place >= 20  # of 25: the first tells the size of a slot


def test_the_order_and_the_bytes_are_those_of_a_feeder_that_copies(serve: Any) -> None:
    serve(loader(2), "in place", seed=7, segments=16)
    source = adapt(loader(2), segments=16, seed=7)
    serve([block.tree for block in source.open(Cursor(0, 0))], "copied")
    with (
        penstock.attach("in place") as one,
        penstock.attach("in place", borrow=True) as viewing,
        penstock.attach("copied") as other,
    ):
        for batch, view, copied in zip(one, viewing, other, strict=True):
            assert_identical(batch, copied)
            assert_identical(view, copied)


@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 6, 9, 13])
def test_a_window_of_few_blocks_never_blocks_itself(serve: Any, blocks: int) -> None:
    """Every other batch is slow, so that the one after it finds its slot first."""
    slow = DataLoader(Rows(slow=True), batch_size=ROWS, num_workers=2, prefetch_factor=3)
    feeder = serve(slow, window=-(-BLOCK_BYTES * blocks // PAGE) * PAGE, epochs=1)
    with ThreadPoolExecutor() as threads, penstock.attach("feed") as late, penstock.attach("feed") as prompt:
        for seen in threads.map(epoch_of, (late, prompt), (0.002, 0.0)):
            assert sorted(seen) == list(range(SAMPLES))
    assert_holds_only_what_is_under_way(feeder, 3)


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_a_source_that_is_opened_elsewhere_again_and_again_gives_all_its_slots_back(serve, workers, persistent):
    feeder = serve(loader(workers, persistent_workers=persistent), segments=5, window="64KiB")
    states: list[dict[str, Any]] = []
    with penstock.attach("feed") as trainer:
        for batch, _ in enumerate(iter(trainer)):
            if batch % 8 == 0:
                states.append(trainer.state_dict())
    for state in reversed(states):
        with penstock.attach("feed") as trainer:
            trainer.load_state_dict(state)
            rest = epoch_of(trainer)
            assert len(rest) == len(set(rest))
    assert feeder.statistics().reopened >= len(states) - 1
    assert_holds_only_what_is_under_way(feeder, workers)


@pytest.mark.parametrize("whole", [False, True])
def test_blocks_with_strings_and_batches_that_vary_are_copied_by_the_feeder(serve: Any, whole: bool) -> None:
    feeder = serve(loader(2, names=not whole), whole_batches=whole)
    with penstock.attach("feed") as trainer:
        named = [each for _, batch in trainer for each in (batch.tolist() if whole else batch)]
    assert sorted(named) == sorted(i if whole else f"row {i}" for i in range(SAMPLES))
    assert feeder.statistics().blocks_in_place == 0


def ragged(samples: list[Any]) -> penstock.RaggedRows:
    return penstock.RaggedRows.of([rows[: int(i) % 7 + 1] for rows, i in samples])


def test_blocks_with_ragged_rows_are_copied_by_the_feeder(serve: Any) -> None:
    feeder = serve(loader(2, collate_fn=ragged))
    with penstock.attach("feed") as trainer:
        lengths = [len(row) for rows in trainer for row in rows]
    assert sorted(lengths) == sorted(i % 7 + 1 for i in range(SAMPLES))
    assert feeder.statistics().blocks_in_place == 0


@settings(max_examples=examples(75))
@given(data=st.data())
def test_slots_leave_room_for_any_block_however_they_lie(data: st.DataObject) -> None:
    """What ``SlotPool`` counts on, with as many as it offers."""
    lines = data.draw(st.integers(1, 6))
    slot_bytes = lines * ALIGNMENT
    capacity = data.draw(st.integers(lines, 60)) * ALIGNMENT
    most = capacity // RING_SHARE // slot_bytes
    room = Room(capacity)
    slots: list[int] = []
    blocks: list[int] = []
    for _ in range(data.draw(st.integers(0, 60))):
        action = data.draw(st.sampled_from(["slot", "block", "free a block", "publish a slot"]))
        if action == "slot" and len(slots) < most and (offset := room.reserve(slot_bytes)) is not None:
            slots.append(offset)
        elif action == "block":
            nbytes = data.draw(st.integers(1, lines)) * ALIGNMENT
            if (offset := room.reserve(nbytes)) is not None:
                blocks.append(offset)
        elif action == "free a block" and blocks:
            room.release(blocks.pop(data.draw(st.integers(0, len(blocks) - 1))))
        elif action == "publish a slot" and slots:
            blocks.append(slots.pop(data.draw(st.integers(0, len(slots) - 1))))
    for offset in blocks:
        room.release(offset)
    assert room.reserve(slot_bytes) is not None


def test_a_source_without_arrays_is_fed_too(serve: Any) -> None:
    serve(DataLoader(range(5), batch_size=1, collate_fn=lambda samples: {"n": 3}))
    with penstock.attach("feed") as trainer:
        assert [batch["n"] for batch in trainer] == [3] * 5


def slow_collate(samples: Any) -> Any:
    time.sleep(0.3)
    return default_collate(samples)


@pytest.mark.parametrize("loader_timeout_s", [0, 0.1])
def test_no_worker_writes_once_a_pass_is_closed(loader_timeout_s: float) -> None:
    source = adapt(
        loader(2, persistent_workers=True, collate_fn=slow_collate, timeout=loader_timeout_s), segments=1, seed=0
    )
    assert isinstance(source, SlotSource)
    with closing(WritableHostRing.create(1 << 20)) as ring, closing(Slots(ring)) as slots:
        source.fill(slots)
        for i in range(5):
            slots.offer(Slot(i << 16, 1 << 16))
        blocks = source.open(Cursor(0, 0))
        with suppress(RuntimeError), closing(blocks):  # the loader's timeout
            next(blocks)
        ring.writable(0, 1 << 20)[:] = 0
        source.close()  # waits for what its workers collate
        assert not ring.readable(0, 1 << 20).any()


@pytest.mark.whole
def test_a_persistent_worker_that_is_killed_while_it_reports_is_told_of(serve: Any) -> None:
    """The kernel takes it with the lock of its queue held."""
    keeps = loader(2, persistent_workers=True)
    feeder = serve(keeps)
    with penstock.attach("feed") as trainer:
        batches = iter(trainer)
        next(batches)
        planned = feeder._source._planned._loader._iterator
        planned._worker_result_queue._wlock.acquire()
        os.kill(planned._workers[0].pid, signal.SIGKILL)
        # Torch tells the main thread too, which here is the trainer's.
        with pytest.raises((penstock.errors.SourceError, RuntimeError)):
            for _ in batches:
                pass
