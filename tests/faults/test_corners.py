"""Failures that meet at a bad moment: each was once a lost sample, a hang or a wrong error."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from resource import RLIMIT_NOFILE, prlimit

import numpy as np
import psutil
import pytest
import torch
from tests.feed.reading import at_once, ids_of
from torch.utils.data import DataLoader, TensorDataset

import penstock
from penstock.feed.endpoint import Endpoint
from penstock.feed.trainer.batch_builder import BatchBuilder


def rows(samples: int = 400) -> penstock.ArraySource:
    return penstock.ArraySource({"id": np.arange(samples)}, batch_size=10, segments=4)


def kill_feeder() -> None:
    (feed,) = penstock.feeds()
    os.kill(feed.pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(feed.pid)] if psutil.pid_exists(feed.pid) else [], timeout=10)


def test_an_epoch_that_began_late_is_whole_although_the_feeder_dies_in_it(forks_feeders_with_torch):
    make_loader = partial(rows, 1000)
    with penstock.share(make_loader, "late", epochs=1, linger=0.5, window="4KiB") as early:
        batches = iter(early)
        for _ in range(45):  # with the window's 32 that is less than its epoch
            next(batches)
        with penstock.share(make_loader, "late", linger=0.5) as late:
            rest = iter(late)
            ids = next(rest)["id"].tolist()
            assert late.state_dict()["start"][1] > 0
            kill_feeder()
            assert sorted(ids + ids_of(rest)) == list(range(1000))
            assert late.statistics().failovers == 1


def test_a_feed_of_another_order_is_no_successor(forks_feeders_with_torch, serve):
    with penstock.share(rows, "order", linger=0.5, window="4KiB") as loader:
        batches = iter(loader)
        next(batches)
        kill_feeder()
        serve(rows(), "order", seed=1)
        with pytest.raises(penstock.errors.SettingsDiffer, match="seed"):
            for _ in range(100):
                next(batches)
        with pytest.raises(penstock.errors.SettingsDiffer, match="seed"):
            next(batches)


def test_detection_batches_may_end_with_a_shorter_one(serve):
    def lists(samples):
        images, boxes = zip(*samples, strict=True)
        return list(images), [box[: 1 + i % 3] for i, box in enumerate(boxes)]

    data = TensorDataset(torch.arange(10), torch.zeros(10, 4))
    serve(DataLoader(data, batch_size=4, collate_fn=lists), whole_batches=True, epochs=1)
    with penstock.attach("feed") as loader:
        assert [len(images) for images, _ in loader] == [4, 4, 2]


def test_more_ranks_than_the_window_has_blocks_go_on(serve):
    serve([np.full((8, 16), i) for i in range(8)], window="4KiB", whole_batches=True)
    ranks = [penstock.attach("feed", shard=(rank, 4), drop_last=True) for rank in range(4)]

    def read(rank: int) -> list[int]:
        return [int(batch[0, 0]) for batch in ranks[rank]]

    assert at_once(read, 4) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    for loader in ranks:
        loader.close()


def test_a_sampler_that_can_be_read_only_once_is_an_error_in_the_second_cycle(serve):
    once = iter([[0, 1], [2, 3]])
    serve(DataLoader(TensorDataset(torch.arange(4)), batch_sampler=once))
    with penstock.attach("feed") as loader:
        assert len(list(loader)) == 2
        with pytest.raises(penstock.errors.SourceError, match="sampler gave no index in cycle 1"):
            list(loader)


def test_a_trainer_that_is_alone_holds_nobody_back(serve):
    serve(rows(), window="4KiB", stall_timeout=0.05)
    with penstock.attach("feed", 10) as loader:
        batches = iter(loader)
        next(batches)
        threading.Event().wait(0.5)
        assert 1 + sum(1 for _ in batches) == 40


def test_a_first_batch_that_was_interrupted_is_read_again(serve, monkeypatch):
    serve(rows())
    finish = BatchBuilder.finish

    def interrupted(self):
        monkeypatch.setattr(BatchBuilder, "finish", finish)
        raise KeyboardInterrupt

    with penstock.attach("feed", 64) as loader:
        monkeypatch.setattr(BatchBuilder, "finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(iter(loader))
        assert sorted(ids_of(loader)) == list(range(400))


def test_a_tree_too_large_to_describe_is_an_error_with_its_size(serve):
    serve([{f"leaf {i}": np.zeros(2) for i in range(20_000)}])
    with (
        penstock.attach("feed") as loader,
        pytest.raises(penstock.errors.SourceError, match="20,000 leaves takes"),
    ):
        list(loader)


def holding(what: object) -> Callable[[], object]:
    return lambda: what


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (holding(threading.Lock()), "cannot be pickled for the feeder's process"),
        (rows(), "not its result"),
        (lambda folder: folder, "missing a required argument: 'folder'"),
    ],
)
def test_share_takes_a_function_without_arguments_that_travels(make, says):
    with pytest.raises(penstock.errors.BadSetting, match=says):
        penstock.share(make, "refused")


def attached_at_last() -> penstock.Loader:
    """Attach to a feeder that may have a descriptor for the connection, and none for its ring."""
    while True:
        try:
            return penstock.attach("feed", wait_s=90)
        except penstock.errors.Refused as refused:
            if "Too many open files" not in str(refused):
                raise
            time.sleep(0.1)


def test_a_feeder_without_descriptors_goes_on_and_admits_again_once_it_has_dropped_who_says_nothing(feed):
    prlimit(feed("rows of an impatient feeder", source={"samples": 400}).pid, RLIMIT_NOFILE, (30, 30))
    with ThreadPoolExecutor() as threads, penstock.attach("feed", wait_s=30) as first:
        batches = iter(first)
        ids = next(batches)["id"].tolist()
        strangers = [Endpoint("feed").connect() for _ in range(40)]  # more than it has descriptors for
        late = threads.submit(attached_at_last)
        for batch in batches:
            ids += batch["id"].tolist()
        assert sorted(ids) == list(range(400)), "who was there lost nothing"
        with late.result(timeout=90) as again:
            assert sum(len(batch["id"]) for batch in again) == 400
        for stranger in strangers:
            stranger.close()


def test_a_trainer_for_whom_the_feeder_has_no_descriptor_is_told_so(feed):
    prlimit(feed("rows", source={"samples": 400}).pid, RLIMIT_NOFILE, (30, 30))
    crowd = [penstock.attach("feed", wait_s=30)]
    with pytest.raises(penstock.errors.Refused, match="Too many open files"):
        crowd.extend(penstock.attach("feed") for _ in range(40))
    crowd.pop().close()
    crowd.append(penstock.attach("feed", wait_s=30))
    for trainer in crowd:
        trainer.close()


def test_an_interrupt_amid_a_locks_own_code_is_an_interrupt(monkeypatch):
    feeder = penstock.Feeder(rows(10), "feed")
    changed = feeder._server.changed
    released = changed._release_save

    def interrupted() -> None:
        released()
        raise KeyboardInterrupt  # after the lock was released, and before its user knows

    monkeypatch.setattr(changed, "_release_save", interrupted)
    with penstock.attach("feed", 5) as loader:
        with pytest.raises(KeyboardInterrupt):
            feeder.run()
        with pytest.raises(penstock.errors.FeedStopped, match="interrupted"):
            for _ in range(10):
                next(iter(loader))
