"""A source that one training reads by itself: each loop is an epoch, or a rank's part of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.forked import Forked
from tests.sources.images.pictures import colours
from torch.utils.data import DataLoader, IterableDataset

import penstock
from penstock.errors import BadSetting
from penstock.sources.adapt import adapt
from penstock.sources.sharding import batches
from penstock.sources.torch.compat import end_workers


def tokens(folder: Path, rows: int) -> Path:
    path = folder / f"{rows}.bin"
    if not path.exists():
        np.arange(2 * rows + 1, dtype=np.uint16).tofile(path)
    return path


def firsts(loader: Any) -> list[list[int]]:
    """The first token of each row, batch by batch."""
    return [batch[:, 0].tolist() for batch in loader]


@settings(max_examples=40, deadline=None)
@example(rows=3, batch_size=4, world=5, drop_last=False, shuffle=True)  # as it was found: no rank got anything
@given(st.integers(1, 200), st.integers(1, 20), st.integers(1, 5), st.booleans(), st.booleans())
def test_ranks_get_equally_many_batches_and_every_sample_once(
    tmp_path_factory, rows, batch_size, world, drop_last, shuffle
):
    path = tokens(tmp_path_factory.getbasetemp(), rows)
    options = {"length": 2, "batch_size": batch_size, "shuffle": shuffle, "drop_last": drop_last, "segments": 3}
    try:
        expected = batches(rows, batch_size, world, drop_last=drop_last)
    except BadSetting:
        with pytest.raises(BadSetting, match="cannot be split among"):
            len(penstock.TokenSource(path, shard=(0, world), **options))
        with pytest.raises(BadSetting, match="cannot be split among"):
            firsts(penstock.TokenSource(path, shard=(0, world), **options))
        return
    plain = penstock.TokenSource(path, shard=(0, 1), **options)
    ranks = [penstock.TokenSource(path, shard=(rank, world), **options) for rank in range(world)]
    for _ in range(2):
        parts = [firsts(rank) for rank in ranks]
        assert [len(part) for part in parts] == [len(rank) for rank in ranks] == [expected] * world
        assert all(len(batch) <= batch_size for part in parts for batch in part)
        every = [first for part in parts for batch in part for first in batch]
        whole = [first for batch in firsts(plain) for first in batch]
        if drop_last:
            assert len(every) == len(set(every)) == expected * batch_size * world
            assert all(len(batch) == batch_size for part in parts for batch in part)
        else:
            assert sorted(every) == sorted(whole) == list(range(0, 2 * rows, 2))
            # A step of all ranks is the next rows of the order.
            assert [first for step in zip(*parts, strict=True) for batch in step for first in batch] == whole


def test_ranks_of_images_get_the_pixels_that_one_loop_gets(tmp_path):
    colours(tmp_path, 30)
    options: dict[str, Any] = {"size": 8, "batch_size": 4, "workers": 1}
    plain = penstock.ImageSource(tmp_path, **options)
    ranks = [penstock.ImageSource(tmp_path, shard=(rank, 2), **options) for rank in range(2)]
    for _ in range(2):
        whole = [np.concatenate(leaves) for leaves in zip(*plain, strict=True)]
        steps = zip(*[list(rank) for rank in ranks], strict=True)
        found = [
            np.concatenate(leaves) for leaves in zip(*[batch for step in steps for batch in step], strict=True)
        ]
        assert all(map(np.array_equal, found, whole))
    for source in (plain, *ranks):
        source.close()


class Wrapped(IterableDataset[Any]):
    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Any:
        return iter(self.source)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("shard", [None, (0, 1)])
def test_in_workers_of_a_data_loader_it_is_refused(tmp_path, workers, shard):
    """As it was found: each worker gave all of it, or all of its rank's part."""
    source = penstock.TokenSource(tokens(tmp_path, 50), length=2, batch_size=5, shard=shard)
    batches = iter(DataLoader(Wrapped(source), batch_size=None, num_workers=workers))
    with pytest.raises(BadSetting, match=f"TokenSource in a DataLoader with {workers} workers: each would"):
        list(batches)
    end_workers(batches)  # each that is left to the garbage collector is waited for, 5 s
    rows = torch.cat(list(DataLoader(Wrapped(source), batch_size=None)))
    assert sorted(rows[:, 0].tolist()) == list(range(0, 100, 2))


@pytest.mark.parametrize("options", [{}, {"batch_size": None}, {"shuffle": True}, {"num_workers": 1}])
def test_as_the_data_set_of_a_data_loader_it_is_refused(tmp_path, options):
    """As it was found: "'TokenSource' object is not subscriptable"."""
    batches = iter(DataLoader(penstock.TokenSource(tokens(tmp_path, 50), length=2), **options))
    with pytest.raises(BadSetting, match=r"TokenSource gives whole batches, .*: loop over it"):
        next(batches)
    end_workers(batches)


RANK = """
import sys
import penstock, torch.distributed as dist
from torch.testing._internal.distributed import fake_pg
dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=int(sys.argv[2]))
source = penstock.TokenSource(sys.argv[1], length=2, batch_size=5)
print(sum(map(len, source)))
"""


def test_under_several_ranks_it_is_refused_unless_the_part_is_named(tmp_path, monkeypatch):
    """As it was found: each rank got everything."""
    path = tokens(tmp_path, 50)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(BadSetting, match=r"under several ranks: .*shard=\(rank, world\), or shard=\(0, 1\)"):
        firsts(penstock.TokenSource(path, length=2))
    assert len(firsts(penstock.TokenSource(path, length=2, batch_size=5, shard=(0, 1)))) == 10
    assert len(firsts(penstock.TokenSource(path, length=2, batch_size=5, shard=(1, 2)))) == 5
    for shard in ((0, 0), (2, 2), (-1, 2), 3, (0, 1, 2), ("a", 2)):
        with pytest.raises(BadSetting, match="shard="):
            penstock.TokenSource(path, length=2, shard=shard)


@pytest.mark.whole
def test_ranks_of_torch_distributed_count_too(tmp_path, servers):
    path = tokens(tmp_path, 50)
    (script := tmp_path / "rank.py").write_text(RANK)
    runs = [Forked(servers["torch"], str(script), [str(path), world], tmp_path / world) for world in "12"]
    assert [run.wait() for run in runs] == [0, 1], runs[0].output
    assert runs[0].output.split() == ["50"]
    assert "TokenSource alone under several ranks" in runs[1].output


def test_one_ranks_part_is_not_fed(tmp_path):
    source = penstock.TokenSource(tokens(tmp_path, 50), length=2, shard=(0, 2))
    with pytest.raises(BadSetting, match=r"a TokenSource with shard= is one rank's part.*attach with shard="):
        adapt(source, segments=None, seed=0)
