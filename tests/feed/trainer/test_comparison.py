"""What a trainer makes of samples that differ from the feed's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.feed import wire
from penstock.feed.trainer.comparison import Finding, SampleComparison
from penstock.fingerprint.batch import LeafDigest, leaves_of

IDS = (4, 9)


class Feed:
    """Stands for a connection to a feeder that made these values of the samples."""

    def __init__(self, values: Sequence[int]) -> None:
        self._leaves = leaves_of([np.array(values)], len(IDS))

    def ask_witness(self, number: int) -> None:
        pass

    def witness(self, number: int, wait_s: float, *, complete: bool) -> wire.Witness:
        return wire.Witness(number, IDS, self._leaves)


class Own:
    """Makes one batch after another, each in a child, and then fails."""

    def __init__(self, folder: Path, *batches: Sequence[int]) -> None:
        self._folder = folder
        self._batches = batches

    def __call__(self, _: Sequence[int]) -> tuple[LeafDigest, ...]:
        made = len(list(self._folder.iterdir()))
        (self._folder / str(made)).touch()
        return leaves_of([np.array(self._batches[made])], len(IDS))


@pytest.mark.parametrize(
    ("batches", "differs"),
    [
        ([(4, 9)], ""),
        ([(4, 8), (4, 8)], "of sample 9, batch[0] differs"),
        ([(4, 8), (4, 7)], ""),  # as what hangs on the time
        ([(4, 8)], "of sample 9, batch[0] differs"),
    ],
)
def test_samples_that_differ_twice_are_others_and_so_are_those_that_cannot_be_made_again(
    tmp_path: Path, batches: list[Sequence[int]], differs: str
) -> None:
    feed: Any = Feed((4, 9))
    finding = SampleComparison(feed, 0, Own(tmp_path, *batches)).finding(wait=True)
    assert isinstance(finding, Finding)
    assert finding.differs == differs
