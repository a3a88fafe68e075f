"""Promise 5: a copy is the trainer's own, and a view keeps its bytes for as long as anything refers to it."""

from __future__ import annotations

import gc
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
from tests.feed.reading import ids_of
from tests.forked import eventually

import penstock

ROWS = 400


def arrays(source: int = 10, **more: Any) -> penstock.ArraySource:
    """Rows of 1 KB, so that a window of some pages holds few blocks."""
    ids = np.arange(ROWS)
    tree = {"id": ids, "data": np.repeat(ids[:, None], 128, axis=1), **more}
    return penstock.ArraySource(tree, batch_size=source, shuffle=False, segments=4)


def assert_rows_agree(batch: dict[str, Any]) -> None:
    assert (batch["data"] == batch["id"][:, None]).all()


def test_a_kept_view_reads_the_same_after_the_ring_wraps(serve):
    feeder = serve(arrays(), window="64KiB")
    with penstock.attach("feed", 10, borrow=True) as loader:
        batches = iter(loader)
        kept = next(batches)
        mine, before = kept["data"][3:5, ::2], kept["data"][3:5, ::2].copy()
        del kept
        for _ in range(3):
            for batch in batches:
                assert_rows_agree(batch)
                del batch
            batches = iter(loader)
        assert feeder.statistics().bytes > 10 * feeder.settings.window_bytes
        assert (mine == before).all()
        del mine, batches


@pytest.mark.parametrize("seed", range(3))
def test_views_that_are_kept_and_dropped_at_will_never_change(serve, seed):
    serve(arrays(source=7), window="128KiB")
    choose = np.random.default_rng(seed)
    kept: list[tuple[np.ndarray, np.ndarray]] = []
    with penstock.attach("feed", 5, borrow=True) as loader:
        for _ in range(3):
            for batch in loader:
                assert_rows_agree(batch)
                if len(kept) > 5 or (kept and choose.random() < 0.3):
                    kept.pop(choose.integers(len(kept)))
                view = batch["data"][choose.integers(len(batch["id"])) :]
                kept.append((view, view.copy()))
                for one, before in kept:
                    assert (one == before).all()
                del batch, view, one, before
        kept.clear()


def test_numpy_views_are_read_only(serve):
    serve(arrays())
    with penstock.attach("feed", 10, borrow=True) as loader:
        batch = next(iter(loader))
        for leaf in batch.values():
            assert not leaf.flags.writeable
            with pytest.raises(ValueError, match="read-only"):
                leaf[0] = 0
        del batch, leaf


def test_private_copies_are_the_trainers_own(serve):
    serve(arrays(), window="4MiB")
    with penstock.attach("feed", 10) as one, penstock.attach("feed", 10) as other:
        kept: list[dict[str, np.ndarray]] = []
        for batch, theirs in zip(one, other, strict=True):
            assert_rows_agree(batch)
            for leaf in batch.values():
                np.negative(leaf, out=leaf)
            assert_rows_agree(theirs)
            kept.append(batch)
        assert sorted(-int(i) for batch in kept for i in batch["id"]) == list(range(ROWS))
        assert all((batch["data"] == batch["id"][:, None]).all() for batch in kept)


def test_a_batch_inside_a_block_is_a_view_and_one_across_blocks_a_copy(serve):
    serve(arrays(source=10))
    row_bytes = 8 + 128 * 8
    with penstock.attach("feed", 5, borrow=True) as loader:
        batches = iter(loader)
        first, second = next(batches), next(batches)
        assert loader.statistics().viewed_bytes == 10 * row_bytes
        assert loader.statistics().copied_bytes == 0
        assert loader.statistics().handed == "view"
        assert first["data"].ctypes.data + 5 * 128 * 8 == second["data"].ctypes.data, "of one block"
        del first, second, batches
    with penstock.attach("feed", 15, borrow=True) as loader:
        for batch in itertools.islice(loader, 2):
            assert_rows_agree(batch)
            assert batch["data"].flags.writeable
        assert loader.statistics().viewed_bytes == 0
        assert loader.statistics().copied_bytes == 30 * row_bytes
    with penstock.attach("feed", 6, borrow=True) as loader:
        writeable = [batch["data"].flags.writeable for batch in itertools.islice(loader, 5)]
        assert writeable == [False, True, False, True, False]


def test_room_comes_back_when_the_views_die(serve):
    """A view in a list holds up the whole feed; the moment it goes, the feed goes on."""
    feeder = serve(arrays(), window="64KiB")
    with penstock.attach("feed", 10, borrow=True) as loader:
        batches = iter(loader)
        kept = [next(batches) for _ in range(6)]  # as many as the window holds
        eventually(lambda: feeder.statistics().waits_for == "trainers")
        assert feeder.statistics().trainers[0].held_bytes == feeder.statistics().used_bytes
        with ThreadPoolExecutor(1) as threads:
            rest = threads.submit(ids_of, batches)
            del batches
            kept.clear()
            assert len(rest.result()) == ROWS - 60


def test_room_comes_back_when_a_view_dies_in_another_thread(serve):
    serve(arrays(), window="64KiB")
    with penstock.attach("feed", 10, borrow=True) as loader:
        queue: list[Any] = []
        ready = threading.Semaphore(0)
        seen: list[int] = []

        def consume() -> None:
            for _ in range(ROWS // 10):
                ready.acquire()
                batch = queue.pop(0)
                assert_rows_agree(batch)
                seen.extend(batch["id"].tolist())
                del batch

        thread = threading.Thread(target=consume)
        thread.start()
        for batch in loader:
            queue.append(batch)
            del batch
            ready.release()
        thread.join()
        assert sorted(seen) == list(range(ROWS))


def test_everything_is_released_when_the_last_view_dies(serve):
    feeder = serve(arrays(), window="1MiB", epochs=None)
    loader = penstock.attach("feed", 10, borrow=True)
    batches = iter(loader)
    kept = [next(batches) for _ in range(3)]
    del batches
    loader.close()
    assert feeder.statistics().used_bytes >= sum(leaf.nbytes for batch in kept for leaf in batch.values())
    kept.clear()
    eventually(lambda: not feeder.statistics().used_bytes)
    eventually(lambda: not feeder.statistics().trainers, "its connection ends with its last view")


@pytest.mark.parametrize("torch_leaf", [False, True])
def test_views_outlive_the_loader_and_the_feeder(serve, torch_leaf):
    ids = torch.arange(ROWS) if torch_leaf else np.arange(ROWS)
    feeder = serve(penstock.ArraySource({"id": ids}, batch_size=100, shuffle=False), window=4096)
    loader = penstock.attach("feed", 100, borrow=True)
    batches = iter(loader)
    batch = next(batches)
    view = batch["id"][20:40]
    del batch
    loader.close()
    assert view.tolist() == list(range(20, 40))
    del batches, loader
    feeder.close()
    gc.collect()
    assert view.tolist() == list(range(20, 40))


def test_views_of_a_closed_loader_hold_their_own_blocks_and_nothing_else(serve):
    """The others go on, and the ring is used on, but for the block that is still viewed."""
    serve(penstock.ArraySource({"id": np.arange(ROWS)}, batch_size=100, shuffle=False), window=4096)
    loader = penstock.attach("feed", 100, borrow=True)
    batches = iter(loader)
    view = next(batches)["id"][20:40]
    del batches
    loader.close()
    with penstock.attach("feed", 30) as other:
        assert sum(len(ids_of(other)) for _ in range(3)) == 3 * ROWS
    assert view.tolist() == list(range(20, 40))


def test_tensor_views_share_the_rings_memory_and_keep_it(serve):
    data = torch.arange(ROWS * 32, dtype=torch.float32).reshape(ROWS, 32).to(torch.bfloat16)
    feeder = serve(penstock.ArraySource((data,), batch_size=20, shuffle=False), window="8KiB")
    with penstock.attach("feed", 20, borrow=True) as loader:
        batches = iter(loader)
        (first,) = next(batches)
        row = first[7].view(torch.int16)[3:]
        expected = row.clone()
        del first
        for _ in batches:
            pass
        assert feeder.statistics().bytes > 2 * feeder.settings.window_bytes
        assert torch.equal(row, expected)
        assert loader.statistics().copied_bytes == 0
        del row, batches


def test_a_view_that_is_kept_over_a_resume_keeps_its_bytes(serve):
    """Its block is sent once more, because another trainer keeps it in the ring, and is then held twice."""
    feeder = serve(arrays(), window="64KiB")
    with penstock.attach("feed", 10, borrow=True) as other:
        theirs = iter(other)
        held = [next(theirs) for _ in range(6)]
        with penstock.attach("feed", 5, borrow=True) as loader:
            batches = iter(loader)
            kept = next(batches)
            state = loader.state_dict()
            del batches
            loader.load_state_dict(state)
            again = iter(loader)
            assert next(again)["id"].tolist() == [5, 6, 7, 8, 9]
            held.clear()
            with ThreadPoolExecutor(1) as threads, closing(feeder):
                reading = threads.submit(ids_of, theirs)
                ids_of(again)
                assert kept["id"].tolist() == [0, 1, 2, 3, 4]
                del kept, again
                loader.close()
                reading.result()


def test_borrowing_from_a_feed_that_evicts_is_refused(serve):
    serve(arrays(), stall_timeout=5.0)
    with pytest.raises(penstock.errors.Refused, match="a view cannot outlive an eviction"):
        penstock.attach("feed", 10, borrow=True)


def test_lists_and_scalars_are_never_views(serve):
    serve(arrays(name=[f"{i}.jpg" for i in range(ROWS)]))
    with penstock.attach("feed", 4, borrow=True) as loader:
        for batch in loader:
            assert batch["name"] == [f"{i}.jpg" for i in batch["id"]]
            batch["name"].clear()
            del batch


def test_a_recycled_copy_never_overwrites_a_batch_that_is_kept(serve):
    """Large batches, whose memory is used again; some are kept in part, as a tensor or a slice."""
    rows = np.repeat(np.arange(64)[:, None], 4096, axis=1)
    serve(penstock.ArraySource({"x": rows}, batch_size=8, segments=1), window="4MiB")
    kept: list[tuple[Any, int]] = []
    with penstock.attach("feed", 12) as loader:
        for epoch in range(4):
            for i, batch in enumerate(loader):
                x = batch["x"]
                assert (x == x[:, :1]).all()
                if i % 3 == epoch % 3:
                    kept.append((torch.from_numpy(x)[2] if i % 2 else x[2, 1:], int(x[2, 0])))
                del batch, x
        assert all((view == value).all() for view, value in kept)
