"""A block has the same bytes wherever it is made, and however often."""

from __future__ import annotations

import hashlib
import os
import random
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.forked import eventually
from tests.sources.images.pictures import jpeg, noise
from torch.utils.data import DataLoader, Dataset

import penstock
from penstock.contracts import Cursor, SourceBlock
from penstock.sources.adapt import adapt
from penstock.sources.remote.remote_source import RemoteSource
from penstock.tree import array_nodes, bytes_of, describe


class Noisy(Dataset[Any]):
    """Samples with noise by Python, NumPy and torch."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, number: int) -> Any:
        return number, torch.rand(50) + random.random() + np.random.random()


def noisy(_folder: Path) -> Any:
    return DataLoader(Noisy(), batch_size=8, shuffle=True)


def images(folder: Path) -> Any:
    for number in range(40):
        (folder / f"{number % 2}").mkdir(exist_ok=True)
        (folder / f"{number % 2}" / f"{number}.jpg").write_bytes(jpeg(noise(60, 80, number)))
    return penstock.ImageSource(folder, size=32, batch_size=4, workers=1)


def digest(block: SourceBlock) -> str:
    layout, _, leaves = describe(block.tree)
    parts = [bytes_of(node, leaf) for node, leaf in zip(array_nodes(layout), leaves, strict=True)]
    return hashlib.sha256(b"".join(map(bytes, parts))).hexdigest()


def made_there(source: RemoteSource) -> bool:
    """Have a cycle made; tell whether the cluster took part."""
    return bool(list(source.open(Cursor(2, 0)))) and "made by" in source.description


@pytest.mark.parametrize("make", [images, noisy])
def test_every_block_has_the_same_bytes_made_here_in_the_cluster_and_again(cluster, tmp_path, make):
    loader = make(tmp_path)
    local = adapt(loader, segments=None, seed=7)
    here = [digest(block) for cycle in range(2) for block in local.load(local.plans(Cursor(cycle, 0)), cycle)]
    local.close()
    with closing(
        RemoteSource(loader, adapt(loader, segments=None, seed=7), None, segments=None, seed=7)
    ) as remote:
        eventually(lambda: made_there(remote))
        there = [digest(block) for cycle in range(2) for block in remote.open(Cursor(cycle, 0))]
        again = []
        for cycle in range(2):
            for number, block in enumerate(remote.open(Cursor(cycle, 0))):
                again.append(digest(block))
                if number == 3:
                    os.kill(cluster.makers()[0], signal.SIGKILL)
    assert there == here
    assert again == here
    assert len(set(here)) == len(here)
