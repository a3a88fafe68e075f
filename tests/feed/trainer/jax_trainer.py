"""What a trainer with JAX checks, in a process of its own: JAX's threads and other tests' forks do not mix."""

from __future__ import annotations

import gc
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import penstock
from penstock.feed.trainer.batch_builder import converted
from penstock.memory.host_ring import Recycler

SAMPLES, WIDTH, BATCH = 3000, 1500, 96


def types() -> None:
    with penstock.attach("types", framework="jax") as loader:
        batch = next(iter(loader))
    for name, leaf in batch["arrays"].items():
        assert isinstance(leaf, jax.Array), name
        assert leaf.dtype == np.dtype(name), (name, leaf.dtype)
        assert np.array_equal(np.asarray(leaf), np.arange(12).reshape(4, 3).astype(name)), name
    assert isinstance(batch["bfloat16"], jax.Array)
    assert batch["bfloat16"].dtype == jnp.bfloat16
    assert batch["bfloat16"].tolist() == [0, 1, 2, 3]
    assert batch["names"] == ["a", "b", "c", "d"]
    assert batch["k"] == 5


def ragged() -> None:
    with penstock.attach("ragged", framework="jax") as loader:
        batch = next(iter(loader))
    rows = batch["ragged"]
    assert isinstance(rows.values, jax.Array)
    assert isinstance(rows.offsets, jax.Array)
    assert [row.tolist() for row in rows] == [[0, 1], [], [0, 1, 2]]
    assert [row.tolist() for row in rows[np.array([2, 0])]] == [[0, 1, 2], [0, 1]]
    assert isinstance(batch["padded"], jax.Array)
    assert batch["padded"].tolist() == [[0, 1, 0], [0, 0, 0], [0, 1, 2]]


def wide_types() -> None:
    with penstock.attach("wide_types", framework="jax") as loader:
        batch = next(iter(loader))
        assert (batch["n"].dtype, batch["t"].dtype) == (np.int32, np.float32)
        assert batch["n"].tolist() == [0, 1, 2]
        jax.config.update("jax_enable_x64", True)
        batch = next(iter(loader))
        assert (batch["n"].dtype, batch["t"].dtype) == (np.int64, np.float64)
        assert batch["n"].tolist() == [0, 1, 2]


def kept(name: str, *, borrow: bool) -> None:
    """Each sample once an epoch; batches that are kept, and sums that are computed meanwhile, stay right."""
    total = jax.jit(lambda x: x.sum(axis=1))
    with penstock.attach(name, BATCH, framework="jax", borrow=borrow) as loader:
        for _ in range(3):
            seen: list[Any] = []
            held: list[tuple[Any, Any]] = []
            sums: list[tuple[Any, Any]] = []
            for i, batch in enumerate(loader):
                ids = np.array(batch["id"])
                seen += ids.tolist()
                sums.append((ids, total(batch["x"])))  # not waited for, and its batch is gone
                if i % 5 == 0 and not (borrow and len(held) == 2):  # a view that is kept holds its room
                    held.append((ids, batch["x"]))
            assert sorted(seen) == list(range(SAMPLES))
            for ids, x in held:
                assert np.array_equal(np.asarray(x), np.repeat(ids[:, None], WIDTH, 1))
            for ids, of_rows in sums:
                assert np.allclose(of_rows, ids.astype(np.float64) * WIDTH, rtol=1e-5)
        assert (loader.statistics().viewed_bytes > 0) == borrow


def private_copies() -> None:
    kept("private_copies", borrow=False)


def views() -> None:
    kept("views", borrow=True)


def donated() -> None:
    """What a compiled function may overwrite is not the ring."""
    double = jax.jit(lambda x: x * 2, donate_argnums=0)
    with penstock.attach("donated", BATCH, framework="jax", borrow=True) as loader:
        for batch in loader:
            ids = np.array(batch["id"])
            assert np.array_equal(np.asarray(double(batch["x"]))[:, 0], 2.0 * ids)


def recycled() -> None:
    """Memory that JAX shares is not given out again before JAX has let it go."""
    recycler = Recycler()
    memory = recycler.take(100_032)
    assert memory.ctypes.data % 64 == 0, "JAX would copy it"
    address = memory.ctypes.data
    memory[:] = 7
    batch = converted({"x": memory.view(np.float32)}, "jax")
    assert batch["x"].unsafe_buffer_pointer() == address
    wanted = np.array(batch["x"])
    del memory
    gc.collect()
    taken = [recycler.take(100_032) for _ in range(4)]
    for other in taken:
        other[:] = 9
    assert address not in [other.ctypes.data for other in taken]
    assert np.array_equal(np.asarray(batch["x"]), wanted)
    del batch
    gc.collect()
    assert recycler.take(100_032).ctypes.data == address


if __name__ == "__main__":
    for check in sys.argv[1:]:
        globals()[check]()
