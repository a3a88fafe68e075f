"""A window that was once in use far and wide gives its pages back; not those that somebody may have registered."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fakes.gpu import FakeGpu
from tests.sources.images.pictures import colours

import penstock
from penstock.memory import host_ring as unused_pages
from penstock.sources.packed.packed_source import PackedSource
from penstock.sources.packed.packing import pack

pytestmark = pytest.mark.usefixtures("stays")
MIB = 1 << 20
BLOCKS = 48


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unused_pages, "LOOK_S", 0.05)


def blocks() -> penstock.ArraySource:
    """Blocks of a MiB, in one row each, whose bytes are its number."""
    numbers = np.arange(BLOCKS)
    return penstock.ArraySource(
        {"id": numbers, "row": np.repeat(numbers.astype(np.uint8), MIB).reshape(-1, MIB)}, batch_size=1
    )


def epoch(trainer: penstock.Loader) -> None:
    seen = []
    for batch in trainer:
        assert (np.asarray(batch["row"]) == np.asarray(batch["id"])[:, None]).all()
        seen += batch["id"].tolist()
    assert sorted(seen) == list(range(BLOCKS))


def hold_a_cycle(trainer: penstock.Loader, behind: penstock.Loader) -> None:
    """Read an epoch, of which the other trainer holds all but the first blocks."""
    next(iter(behind))
    epoch(trainer)


def resident_bytes(feeder: penstock.Feeder, wanted: int) -> int:
    """The ring's memory once it is as small as wanted, or has not become so for long."""
    deadline = time.monotonic() + 20
    while feeder.statistics().resident_bytes > wanted and time.monotonic() < deadline:
        time.sleep(0.02)
    return feeder.statistics().resident_bytes


@pytest.mark.whole
def test_a_feed_that_nobody_reads_any_more_gives_its_pages_back(serve: Any) -> None:
    feeder = serve(blocks(), window="128MiB")
    with penstock.attach("feed") as ahead, penstock.attach("feed") as behind:
        hold_a_cycle(ahead, behind)
        assert feeder.statistics().resident_bytes >= 40 * MIB
    assert resident_bytes(feeder, 0) == 0
    with penstock.attach("feed") as again:
        epoch(again)


def test_trainers_that_are_close_again_need_few_pages_and_lose_nothing(serve: Any) -> None:
    feeder = serve(blocks(), window="128MiB")
    with penstock.attach("feed") as ahead:
        with penstock.attach("feed") as behind:
            hold_a_cycle(ahead, behind)
        deadline = time.monotonic() + 20
        while feeder.statistics().resident_bytes > 30 * MIB and time.monotonic() < deadline:
            epoch(ahead)
        assert feeder.statistics().resident_bytes <= 30 * MIB
        epoch(ahead)


def test_pages_into_which_workers_decode_are_given_back(serve: Any, tmp_path: Path) -> None:
    colours(tmp_path, BLOCKS)
    feeder = serve(penstock.ImageSource(tmp_path, size=592, batch_size=1, workers=1), window="128MiB")
    with penstock.attach("feed") as ahead:
        with penstock.attach("feed") as behind:
            next(iter(behind))
            assert len(list(ahead)) == BLOCKS
            assert feeder.statistics().resident_bytes >= 40 * MIB
        first = [bytes(batch[0]) for batch in ahead]
        deadline = time.monotonic() + 20
        while feeder.statistics().resident_bytes > 30 * MIB and time.monotonic() < deadline:
            assert sorted(bytes(batch[0]) for batch in ahead) == sorted(first)
        assert feeder.statistics().resident_bytes <= 30 * MIB


def test_pages_that_a_gpu_has_registered_stay(serve: Any) -> None:
    feeder = serve(blocks(), window="128MiB")
    with penstock.attach("feed", device=FakeGpu()) as ahead, penstock.attach("feed") as behind:
        hold_a_cycle(ahead, behind)
        before = feeder.statistics().resident_bytes
        behind.close()
        time.sleep(0.4)
        assert feeder.statistics().resident_bytes >= before >= 40 * MIB


def test_pages_into_which_disks_are_read_stay(serve: Any, tmp_path: Path) -> None:
    pack(blocks(), tmp_path / "packed")
    feeder = serve(PackedSource(tmp_path / "packed", batch_size=1), window="128MiB")
    with penstock.attach("feed") as ahead, penstock.attach("feed") as behind:
        next(iter(behind))
        assert len(list(ahead)) == BLOCKS
    before = feeder.statistics().resident_bytes
    time.sleep(0.4)
    assert feeder.statistics().resident_bytes >= before >= 40 * MIB
