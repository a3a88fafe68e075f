"""What the feeder's loader makes of a few samples: once for each number, whoever asks meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import numpy as np

from penstock.feed import wire
from penstock.feed.feeder.witness import Witnesses
from penstock.fingerprint.batch import LeafDigest


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
