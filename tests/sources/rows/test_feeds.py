"""Feeds of tables: trainers that come late, resume, or lose their feeder."""

from __future__ import annotations

import os
import signal
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.sources.tables.files import numbers, written

import penstock
from penstock import RecordSource

pytestmark = pytest.mark.whole

ROWS = 1200
SIZES = [30, 1, 70, 0, 45, 100, 54] * 4
TEXT = ["id", "half", "text"]


@pytest.fixture
def path(tmp_path: Path) -> str:
    table = numbers(ROWS).append_column("text", pa.array([f"row {i}" for i in range(ROWS)]))
    return written(tmp_path / "x.parquet", table, SIZES)


def made(path: str, **options: Any) -> RecordSource:
    """Some 7 shuffle windows of rows, or of those with texts."""
    columns = options.setdefault("columns", ["id", "half"])
    most = 4000 if columns == ["id", "half"] else 16_000
    return RecordSource(path, **{"batch_size": 10, "shuffle_bytes": most, "seed": 3, **options})


def checked(batch: Any) -> list[int]:
    ids = np.asarray(batch["id"])
    assert np.asarray(batch["half"]).tolist() == (ids / 2).tolist()
    assert "text" not in batch or batch["text"] == [f"row {id}" for id in ids.tolist()]
    return ids.tolist()


def epoch(loader: Any) -> list[int]:
    return [id for batch in loader for id in checked(batch)]


@pytest.mark.parametrize(("columns", "already"), [(["id", "half"], 1), (["id", "half", "text"], 100)])
def test_a_late_trainer_begins_with_a_handful_and_every_epoch_of_both_is_whole(path, serve, columns, already):
    source = made(path, columns=columns)
    assert 4 < len(source.starts(0)) < 20
    serve(source, "feed", window="1MiB")
    with penstock.attach("feed", 8) as first, penstock.attach("feed", 13) as late:
        reading = iter(first)
        seen = [id for batch in islice(reading, already) for id in checked(batch)]
        loops = {0: reading, 1: iter(late)}
        ids: dict[int, list[int]] = {0: seen, 1: []}
        ended = Counter[int]()
        began = None
        while min(ended[0], ended[1]) < 4:
            for i, loader in ((0, first), (1, late)):
                try:
                    ids[i] += checked(next(loops[i]))
                    if began is None and i:
                        began = late.state_dict()["start"]
                except StopIteration:
                    assert Counter(ids[i]) == Counter(range(ROWS)), (i, ended)
                    ended[i] += 1
                    ids[i], loops[i] = [], iter(loader)
    assert began is not None
    assert began[1] in made(path, columns=columns).starts(began[0]), "no group is read twice for him"


def test_a_feed_gives_what_the_source_gives_alone_and_resumes_at_the_very_next_row(path, serve):
    alone = made(path, columns=TEXT)
    wanted = [epoch(alone) for _ in range(3)]
    alone.close()
    serve(made(path, columns=TEXT), "feed", window="1MiB")
    with penstock.attach("feed", 7) as loader:
        assert [epoch(loader) for _ in range(2)] == wanted[:2]
        reading = iter(loader)
        seen = [id for batch in islice(reading, 60) for id in checked(batch)]
        state = loader.state_dict()
        following = [checked(batch) for batch in reading]
    assert seen + [id for batch in following for id in batch] == wanted[2]
    with penstock.attach("feed", 7) as loader:
        loader.load_state_dict(state)
        assert [checked(batch) for batch in loader] == following


def test_a_feeder_that_is_killed_amid_a_cycle_changes_no_batch(path, forks_feeders):
    alone = made(path)
    wanted = [epoch(alone) for _ in range(3)]
    alone.close()

    def make() -> RecordSource:
        return made(path)

    loader = penstock.share(make, "feed", batch_size=9, window="16KiB", linger=1.0)
    killed = 0
    for order in wanted:
        found: list[int] = []
        for number, batch in enumerate(loader):
            found += checked(batch)
            if number in (20, 90):
                for feed in penstock.feeds():  # none if the one before has just died, and all is in memory
                    os.kill(feed.pid, signal.SIGKILL)
                    killed += 1
        assert found == order
    loader.close()
    assert killed >= 3
