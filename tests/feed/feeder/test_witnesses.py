"""What the feeder's loader makes of a few samples, and what a trainer makes of those that differ from its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.feed import wire
from penstock.feed.witness import Compared, SampleComparison, Witnesses
from penstock.fingerprint.batch import LeafDigest, leaves_of


def no_leaves(ids: Sequence[int]) -> tuple[LeafDigest, ...]:
    return ()


def test_a_witness_that_is_asked_for_as_it_begins_is_made_once():
    witnesses, told, done = Witnesses(no_leaves), list[wire.Witness](), threading.Event()

    def tell(witness: wire.Witness) -> None:
        told.append(witness)
        assert witnesses.want(witness.number) == witness
        if witness.leaves is not None:
            done.set()

    witnesses.see(np.array([5, 6, 7, 8, 9]), tell)
    witnesses.see(np.array([15, 16]), tell)
    assert done.wait(60)
    assert [(each.number, each.ids, each.leaves) for each in told] == [
        (0, (5, 6, 7, 8), None),
        (0, (5, 6, 7, 8), ()),
    ]


def test_samples_without_numbers_are_said_to_have_none():
    told = list[wire.Witness]()
    Witnesses(no_leaves).see(None, told.append)
    assert [each.why for each in told] == ["its samples have no numbers"]


def test_a_trainer_with_many_open_files_waits_for_a_witness(serve):
    import resource

    import penstock

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, before[1]), before[1]))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        serve(penstock.ArraySource({"id": np.arange(64)}, batch_size=8))
        with penstock.attach("feed") as loader:
            next(iter(loader))
            finding = loader.compare(1, no_leaves).finding(wait=True)
        assert finding is not None and "no DataLoader" in finding.unproved
    finally:
        for fd in files:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


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
    assert isinstance(finding, Compared)
    assert finding.differs == differs
