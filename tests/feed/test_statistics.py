"""What a feeder and a loader tell about themselves agrees with what they did."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest
from tests.feed.reading import at_once
from tests.forked import eventually

import penstock
from penstock import waits
from penstock.feed import wire


def arrays() -> penstock.ArraySource:
    return penstock.ArraySource({"id": np.arange(120), "x": np.zeros((120, 62))}, batch_size=10, segments=4)


@pytest.fixture
def counted(monkeypatch) -> None:
    """Loops are counted, from nothing."""
    monkeypatch.setattr(waits, "_totals", waits._Totals())
    monkeypatch.setattr(waits, "_begins", lambda: "a run")


def test_a_loader_counts_what_it_handed_out(serve, counted):
    serve(arrays())
    with penstock.attach("feed", 32) as loader:
        before = loader.statistics()
        assert (before.batches, before.samples, before.copied_bytes, before.epoch) == (0, 0, 0, 0)
        list(loader)
        after = loader.statistics()
    assert (after.name, after.feeder_pid, after.sharing) == ("feed", os.getpid(), "host memfd")
    assert (after.handed, after.batches, after.samples, after.epoch) == ("private copy", 4, 120, 1)
    assert after.copied_bytes == 120 * (8 + 62 * 8)
    assert after.viewed_bytes == after.failovers == 0
    now, epoch, _ = (point.values for point in waits.points(is_last=True))
    assert (now["feed.batches"], now["feed.samples"]) == (4, 120)
    assert after.wait_s <= now["feed.wait_s"] <= now["feed.loop_s"] == pytest.approx(epoch["feed.main.epoch_s"])
    assert after.latency_s >= 0


def test_a_loop_that_is_broken_off_ends_there(serve, counted):
    serve(arrays())
    with penstock.attach("feed", 32) as loader:
        for _ in loader:
            break
        assert waits.points() and not waits._totals._going_on


def test_ranks_count_their_own_samples(serve):
    serve(arrays())
    with penstock.attach("feed", 16, shard=(0, 2)) as one, penstock.attach("feed", 16, shard=(1, 2)) as other:
        at_once(lambda rank: list((one, other)[rank]), 2)
        assert one.statistics().samples + other.statistics().samples == 120
        assert one.statistics().batches == other.statistics().batches == 4


def test_a_feeder_tells_what_it_is(serve):
    feeder = serve(arrays(), "a/b", window="1MiB", seed=9)
    told = feeder.statistics()
    assert (told.name, told.pid, told.sharing, told.seed) == ("a/b", os.getpid(), "host memfd", 9)
    assert (told.samples_per_cycle, told.segments, told.window_bytes) == (120, 4, 1 << 20)
    assert told.source == "120 rows of arrays"
    assert (told.cycle, told.sample, told.blocks, told.samples, told.bytes, told.used_bytes) == (0,) * 6
    assert (told.waits_for, told.held_back_by, told.held_back_s, told.reopened) == ("nobody reads", None, 0.0, 0)
    assert told.trainers == ()


def test_a_feeder_counts_what_it_published(serve):
    feeder = serve(arrays(), epochs=1)
    with penstock.attach("feed", 32) as loader:
        list(loader)
    eventually(lambda: not feeder.statistics().trainers)
    told = feeder.statistics()
    assert (told.blocks, told.samples) == (12, 120)
    assert told.bytes >= 120 * (8 + 62 * 8)
    assert (told.cycle, told.sample) == (1, 0)
    assert told.used_bytes == 0
    assert told.copy_s > 0
    assert told.source_s > 0


def test_a_feeder_names_who_holds_it_back(serve):
    feeder = serve(arrays(), window="16KiB")
    with penstock.attach("feed", 10) as slow:
        batches = iter(slow)
        next(batches)
        eventually(lambda: feeder.statistics().held_back_by is not None)
        told = feeder.statistics()
        assert told.held_back_by == os.getpid()
        assert told.waits_for == "trainers"
        assert told.held_back_s >= 0
        (trainer,) = told.trainers
        assert trainer.held_bytes == told.used_bytes > 0
        assert told.used_bytes <= told.resident_bytes <= told.window_bytes
        assert trainer.lag_samples == told.samples - trainer.sample
        eventually(lambda: feeder.statistics().trainers[0].held_back_s > 0)
        list(batches)
    eventually(lambda: feeder.statistics().waits_for == "nobody reads")
    assert feeder.statistics().held_back_by is None


def test_a_feeder_tells_how_each_trainer_stands(serve):
    feeder = serve(arrays(), epochs=2)
    with (
        penstock.attach("feed", 16) as reading,
        penstock.attach("feed", shard=(1, 3), drop_last=True),
        penstock.attach("feed", 7, borrow=True),
    ):
        list(reading)
        told = feeder.statistics().trainers
        assert [(t.batch_size, t.borrow, t.rank, t.world) for t in told] == [
            (16, False, 0, 1),
            (10, False, 1, 3),
            (7, True, 0, 1),
        ]
        assert {t.pid for t in told} == {os.getpid()}
        assert [t.state for t in told][1:] == ["attached", "attached"]
        list(reading)
        eventually(lambda: feeder.statistics().trainers[0].epoch == 1)
        assert feeder.statistics().trainers[0].state == "finished"


def test_a_trainer_that_has_had_its_epoch_holds_nothing_of_it(serve):
    """It may be busy for long now, validating, and must not hold the others back."""
    feeder = serve(arrays(), prefetch=100)
    with penstock.attach("feed", 10) as loader:
        batches = iter(loader)
        next(batches)
        eventually(lambda: feeder.statistics().samples >= 240)
        list(batches)
        eventually(lambda: feeder.statistics().trainers[0].cycle == 1)


def test_feeds_tells_what_the_feeder_tells(serve):
    feeders = [serve(arrays(), name) for name in ("b", "a")]
    told = penstock.feeds()
    assert [feed.name for feed in told] == ["a", "b"]
    assert told[1] == feeders[0].statistics()


def test_a_resume_elsewhere_counts_as_opened_again(serve):
    feeder = serve(arrays(), window="16KiB")
    with penstock.attach("feed", 10) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state = loader.state_dict()
        list(batches)
        assert feeder.statistics().reopened == 0
        loader.load_state_dict(state)
        list(loader)
        assert feeder.statistics().reopened >= 1


def test_statistics_are_values(serve):
    feeder = serve(arrays())
    with penstock.attach("feed", 10) as loader:
        for told in (feeder.statistics(), feeder.statistics().trainers[0], loader.statistics()):
            with pytest.raises(AttributeError, match="immutable"):
                told.pid = 3
        assert wire.decode_from_feeder(wire.encode(feeder.statistics())).name == "feed"
        assert msgspec.json.decode(msgspec.json.encode(loader.statistics()))["name"] == "feed"


def test_trainers_that_wait_while_the_feed_goes_back_for_another_are_ahead(serve):
    feeder = serve(penstock.ArraySource({"id": np.arange(4000)}, batch_size=10), window="4KiB")
    with (  # the executor ends last: its thread ends with the loaders
        ThreadPoolExecutor(1) as other,
        penstock.attach("feed") as first,
        penstock.attach("feed") as behind,
    ):
        batches = iter(first)
        next(batches)
        state = first.state_dict()
        for _ in range(200):
            next(batches)
        behind.load_state_dict(state)
        again = iter(behind)
        reading = other.submit(list, batches)
        next(again)
        eventually(lambda: "ahead" in [trainer.state for trainer in feeder.statistics().trainers])
        assert len(list(again)) == 398
        reading.result()


def test_a_feeder_tells_when_the_number_of_blocks_holds_it_back(serve):
    feeder = serve(penstock.ArraySource({"id": np.arange(5000)}, batch_size=1))
    with penstock.attach("feed") as loader:
        next(iter(loader))
        eventually(lambda: feeder.statistics().blocks_held == feeder.statistics().most_blocks)
        eventually(lambda: feeder.statistics().waits_for == "trainers")
        told = feeder.statistics()
        assert told.most_blocks == 1024
        assert told.used_bytes < told.window_bytes / 100
    eventually(lambda: not feeder.statistics().trainers)
    assert feeder.statistics().blocks_held == 0


def test_a_trainer_that_comes_late_near_the_end_of_a_cycle_waits_for_the_next(serve, stays):
    feeder = serve(penstock.ArraySource({"x": np.zeros((4000, 32))}, batch_size=10), window="12KiB", prefetch=1)
    with (
        ThreadPoolExecutor(1) as other,
        penstock.attach("feed", 10) as first,
        penstock.attach("feed", 10) as late,
    ):
        batches = iter(first)
        for _ in range(385):
            next(batches)
        begins = other.submit(lambda: next(iter(late)))
        eventually(lambda: feeder.statistics().trainers[1].state == "waiting")
        reading, waiting = feeder.statistics().trainers
        assert (reading.state, reading.waits_for) == ("reading", "")
        assert waiting.waits_for == "cycle 1"
        eventually(lambda: next(batches, None) is None)
        batches = iter(first)
        eventually(lambda: next(batches) and feeder.statistics().trainers[1].state == "reading")
        begins.result()
        assert feeder.statistics().trainers[1].waits_for == ""


def test_a_feed_tells_of_itself_also_while_it_ends() -> None:
    for _ in range(30):
        feeder = penstock.Feeder(np.zeros((10, 4)), "ends")
        with ThreadPoolExecutor(1) as other:
            ended = other.submit(feeder.close)
            while not ended.done():
                assert feeder.statistics().name == "ends"
            assert feeder.statistics().resident_bytes == 0
