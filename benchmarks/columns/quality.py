"""How well rows are shuffled that lie sorted by label."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.columns.data import BINS
from scipy.stats import chisquare

import penstock
from penstock.contracts import Cursor

BLOCK = 512
BLOCKS = 100


def blocks(source: penstock.RecordSource) -> Iterator[Any]:
    """Yield full blocks of one cycle after another."""
    for cycle in count():
        yield from (block.tree for block in source.open(Cursor(cycle, 0)) if block.rows == BLOCK)


def passed(path: Path) -> int:
    """Of 100 blocks of rows that fit: in how many chi-squared of the labels has p > 0.01."""
    source = penstock.RecordSource(path, batch_size=BLOCK)
    counts = [np.bincount(block["label"], minlength=BINS) for block in islice(blocks(source), BLOCKS)]
    source.close()
    return int(sum(chisquare(found).pvalue > 0.01 for found in counts))


def groups_seen(path: Path, rows: int, groups: int) -> tuple[float, float]:
    """With memory for an eighth of the rows: the share of row groups that a block sees, as said and as it is."""
    source = penstock.RecordSource(path, batch_size=BLOCK, shuffle_bytes=rows * 16 // 8)
    said = source.description.rpartition("a block has rows of ")[2].partition("%")[0]
    edges = np.linspace(0, rows, groups + 1).astype(int)
    seen = [
        len(np.unique(np.searchsorted(edges, block["id"], "right")))
        for block in islice(blocks(source), 3 * rows // BLOCK)
    ]
    source.close()
    return float(said) / 100, float(np.mean(seen)) / groups
