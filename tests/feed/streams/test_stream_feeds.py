"""Streams through a feed: every trainer gets each record of its cycles once, in one order."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.fakes.log import ListLog
from tests.feed.streams.conftest import epoch, feeding, wait_until

import penstock
from penstock.errors import BadSetting, FeedStopped, Refused, SourceError, StreamTruncated
from penstock.feed.launch.feeds import move
from penstock.sources.streams import stream_source
from penstock.sources.streams.stream_source import StreamSource

LOGS: dict[str, ListLog] = {}


@pytest.fixture(autouse=True)
def _lists(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def opened(name: str, *, skips: bool) -> ListLog:
        LOGS[name].skips = skips
        return LOGS[name]

    monkeypatch.setattr(stream_source, "opened", opened, raising=False)
    monkeypatch.setitem(stream_source._LOGS, "list:", (f"{stream_source.__name__}:opened", "list", 48))
    yield
    LOGS.clear()


def records(count: int, first: int = 0) -> list[bytes]:
    return [b'{"id": %d}' % i for i in range(first, first + count)]


def stream(name: str, partitions: list[list[bytes]], **options: Any) -> StreamSource:
    LOGS.setdefault(name, ListLog(partitions))
    return StreamSource(
        f"list:{name}", **{"cycle": 10, "batch_size": 4, "workers": 1, "close_after": 0.2, **options}
    )


def test_a_cycle_is_a_stretch_of_the_log_shuffled_and_the_next_one_goes_on():
    with feeding(stream("a", [records(25)]), "a"), penstock.attach("a", framework="numpy") as loader:
        first, second, third = epoch(loader), epoch(loader), epoch(loader)
    assert sorted(first) == list(range(10)) != first
    assert sorted(second) == list(range(10, 20)) and sorted(third) == list(range(20, 25))


def test_records_of_several_partitions_come_once_whatever_the_fetches_and_order_by_partition_and_offset():
    orders = []
    for turn in range(2):
        LOGS.clear()
        source = stream("b", [records(7), records(8, 100)], cycle=15)
        LOGS["b"]._turn = turn
        with feeding(source, "b"), penstock.attach("b", framework="numpy") as loader:
            orders.append(epoch(loader))
    assert orders[0] == orders[1] and sorted(orders[0]) == [*range(7), *range(100, 108)]


def test_ids_are_partition_and_offset():
    source = stream("ids", [records(3), records(2, 100)], cycle=5, shuffle=False)
    with feeding(source, "ids"), penstock.attach("ids", framework="numpy") as loader:
        batches = iter(loader)
        assert next(batches)["id"].tolist() == [0, 1, 2, 100]
        assert loader.ids is not None and loader.ids.tolist() == [0, 1, 2, 1 << 48]


def test_no_block_goes_out_before_its_cycle_has_closed_and_the_feed_says_what_it_waits_for():
    source = stream("wait", [records(3)], close_after=60)
    with feeding(source, "wait") as feeder, penstock.attach("wait", framework="numpy") as loader:
        got: list[int] = []
        reader = threading.Thread(target=lambda: got.extend(epoch(loader)))
        reader.start()
        wait_until(lambda: feeder.statistics().waits_for == "3 of 10 records")
        assert not got and feeder.statistics().blocks == 0
        LOGS["wait"].partitions[0] += records(7, 3)
        reader.join(20)
        assert sorted(got) == list(range(10))


def test_a_clock_that_is_set_back_holds_no_cycle_back(monkeypatch: pytest.MonkeyPatch):
    source = stream("back", [records(7)], close_after=0.5)
    with feeding(source, "back"), penstock.attach("back", framework="numpy") as loader:
        monkeypatch.setattr(time, "time", lambda: 1.0)
        assert sorted(epoch(loader)) == [*range(7)]


def test_a_feed_that_waits_for_records_can_be_closed():
    source = stream("leave", [[]])
    with feeding(source, "leave", linger=0.1) as feeder:
        loader = penstock.attach("leave", framework="numpy")

        def read() -> None:
            with pytest.raises(FeedStopped):
                epoch(loader)

        reading = threading.Thread(target=read)
        reading.start()
        wait_until(lambda: feeder.statistics().waits_for == "0 of 10 records")
        feeder.close()
        reading.join(20)
        assert not reading.is_alive()


def test_a_state_goes_on_with_the_next_record_on_a_feed_that_knows_nothing():
    log = [records(50)]
    with feeding(stream("c", log), "c"), penstock.attach("c", framework="numpy") as loader:
        seen = epoch(loader)
        batches = iter(loader)
        seen += next(batches)["id"].tolist()
        state = loader.state_dict()
        state["cycles"] = state["cycles"][:2]  # the feed may have closed a later one by now
        rest = [id for batch in batches for id in batch["id"].tolist()]
    LOGS["c"] = ListLog(log)
    source = stream("c", log, cycle=7)  # another length of cycles, which those that are closed do not take
    with feeding(source, "c"), penstock.attach("c", framework="numpy") as loader:
        loader.load_state_dict(state)
        assert epoch(loader) == rest
        assert sorted(epoch(loader)) == list(range(20, 27))
    assert sorted(seen + rest) == list(range(20))


def test_a_state_after_an_epochs_last_batch_begins_the_next_cycle():
    log = [records(30)]
    with feeding(stream("d", log), "d"), penstock.attach("d", framework="numpy") as loader:
        epoch(loader)
        state = loader.state_dict()
    LOGS["d"] = ListLog(log)
    with feeding(stream("d", log), "d"), penstock.attach("d", framework="numpy") as loader:
        loader.load_state_dict(state)
        assert sorted(epoch(loader)) == list(range(10, 20))


def test_a_state_with_which_a_cycle_is_over_goes_on_with_the_next_whatever_its_last_block_has():
    log = [records(30)]
    with feeding(stream("last", log), "last"), penstock.attach("last", framework="numpy") as loader:
        batches = iter(loader)
        for _ in range(3):  # 4, 4 and 2 of ten
            next(batches)
        state = loader.state_dict()
        assert state["start"] == [0, 0] and state["delivered"] == 10
    LOGS["last"] = ListLog(log)
    with feeding(stream("last", log), "last") as feeder, penstock.attach("last", framework="numpy") as loader:
        loader.load_state_dict(state)
        assert sorted(epoch(loader)) == list(range(10, 20))
        assert feeder.statistics().reopened <= 1


@pytest.mark.parametrize("loads", [False, True])
def test_an_epoch_that_was_given_up_is_followed_by_the_next_cycle_on_any_feed(loads: bool):
    log = [records(40)]
    with feeding(stream("given up", log), "given up"), penstock.attach("given up", framework="numpy") as loader:
        epoch(loader)
        next(iter(loader))
        if not loads:
            assert sorted(epoch(loader)) == list(range(20, 30))
        state = loader.state_dict()
        assert loads or state["start"] == [3, 0]
    LOGS["given up"] = ListLog(log)
    with feeding(stream("given up", log), "given up"), penstock.attach("given up", framework="numpy") as loader:
        loader.load_state_dict(state)
        if loads:  # the rest of an epoch, which is given up again
            assert {*next(iter(loader))["id"].tolist()} < {*range(10, 20)}
        assert sorted(epoch(loader)) == (list(range(20, 30)) if loads else list(range(30, 40)))


def test_a_trainer_that_resumed_goes_on_behind_an_error_of_its_own():
    log = [records(40)]
    with feeding(stream("own error", log), "own error"), penstock.attach("own error", framework="numpy") as loader:
        epoch(loader)
        state = loader.state_dict()
    state["cycles"] = state["cycles"][:1]
    LOGS["own error"] = ListLog(log)
    fails = [False, True, False]

    def transform(batch: Any) -> Any:
        if fails and fails.pop(0):
            raise ValueError("a transform that failed once")
        return batch

    with (
        feeding(stream("own error", log), "own error"),
        penstock.attach("own error", framework="numpy", transform=transform) as loader,
    ):
        loader.load_state_dict(state)
        batches = iter(loader)
        got = next(batches)["id"].tolist()
        with pytest.raises(ValueError, match="failed once"):
            next(batches)
        got += [id for batch in batches for id in batch["id"].tolist()]
    assert sorted(got) == list(range(10, 20))


@pytest.mark.parametrize("epochs", [None, 40])
def test_many_short_cycles_of_many_partitions_wait_for_nobody_who_reads_no_more(epochs: int | None):
    parts = [[b"%d" % i for i in range(first, 1000, 500)] for first in range(500)]
    source = stream("short", parts, cycle=10, close_after=0.01, batch_size=1, decode=bytes)
    with feeding(source, "short", epochs=epochs), penstock.attach("short") as loader:
        readers = [loader]
        if epochs is not None:
            readers.insert(0, other := penstock.attach("short"))
        for reader in readers:
            cycles = [[int(record) for batch in reader for record in batch] for _ in range(epochs or 80)]
            # On a busy machine a cycle may close before it is full.
            assert all(1 <= len(cycle) <= 10 for cycle in cycles)
            got = [record for cycle in cycles for record in cycle]
            assert len(got) == len({*got})
            assert reader is not readers[0] or {record - 500 for record in got if record >= 500} <= {*got}
        if epochs is not None:
            other.close()


def test_a_feed_whose_last_trainer_leaves_as_a_cycle_closes_waits_for_another(monkeypatch: pytest.MonkeyPatch):
    source = stream("gone", [records(30)])
    loader, left = None, threading.Event()
    take = source._gatherer.take

    def taken(*arguments: Any) -> Any:
        found = take(*arguments)
        if loader is not None and found.begin.parts[0].offset == 10 and not left.is_set():
            loader.close()
            wait_until(lambda: not feeder.statistics().trainers)
            left.set()
        return found

    monkeypatch.setattr(source._gatherer, "take", taken)
    with feeding(source, "gone", linger=None) as feeder:
        loader = penstock.attach("gone", framework="numpy")
        epoch(loader)
        assert left.wait(20)  # before another comes, whom it would wait for, too
        with penstock.attach("gone", framework="numpy") as other:
            assert sorted(epoch(other)) == list(range(10, 20))


def test_trainers_of_a_stream_are_not_moved():
    with feeding(stream("moved", [records(10)]), "moved"), penstock.attach("moved", framework="numpy") as loader:
        epoch(loader)
        with pytest.raises(Refused, match="another feed may have cut elsewhere"):
            move("moved", os.getpid(), "another")


def test_what_lies_between_two_states_is_divided_evenly_and_who_is_ahead_waits():
    log = [records(100)]
    states = []
    with feeding(stream("e", log), "e"), penstock.attach("e", framework="numpy") as loader:
        for _ in range(5):
            states.append(loader.state_dict())
            epoch(loader)
    early, late = states[1], states[4]  # cycles 1 and 4; whoever knew 2 and 3 is gone
    early = {**early, "cycles": early["cycles"][:2]}
    LOGS["e"] = ListLog(log)
    with feeding(stream("e", log), "e", expect=2):
        got: dict[str, list[list[int]]] = {"early": [], "late": []}

        def train(name: str, state: dict[str, Any], epochs: int) -> None:
            with penstock.attach("e", framework="numpy") as loader:
                loader.load_state_dict(state)
                got[name] += [sorted(epoch(loader)) for _ in range(epochs)]

        trainers = [threading.Thread(target=train, args=each) for each in (("early", early, 4), ("late", late, 1))]
        for each in trainers:
            each.start()
        for each in trainers:
            each.join(30)
    assert got["early"][:3] == [list(range(10, 20)), list(range(20, 30)), list(range(30, 40))]
    assert got["late"] == [list(range(40, 50))] == got["early"][3:]


def test_bounds_that_contradict_the_feeds_are_refused_in_one_sentence():
    log = [records(100)]
    with feeding(stream("f", log), "f"), penstock.attach("f", framework="numpy") as loader:
        for _ in range(3):
            epoch(loader)
        state = loader.state_dict()
    LOGS["f"] = ListLog(log)
    with feeding(stream("f", log, cycle=7), "f"), penstock.attach("f", framework="numpy") as loader:
        for _ in range(4):
            epoch(loader)
        with penstock.attach("f", framework="numpy") as other:
            other.load_state_dict(state)
            with pytest.raises(Refused, match="Share its loader under another name") as refused:
                next(iter(other))
    assert "partition 0 record 30" in str(refused.value) and "\n" not in str(refused.value)


def test_a_late_trainer_begins_with_this_cycle_while_its_start_is_in_the_ring_else_with_the_next():
    source = stream("g", [records(40)])
    with feeding(source, "g"), penstock.attach("g", framework="numpy") as loader:
        batches = iter(loader)
        first = next(batches)["id"].tolist()
        with penstock.attach("g", framework="numpy") as late:
            assert next(iter(late))["id"].tolist() == first


def test_raw_records_come_as_they_are():
    source = stream("raw", [[b"one", b"", b"three"]], cycle=3, decode=bytes, shuffle=False)
    with feeding(source, "raw"), penstock.attach("raw") as loader:
        assert list(loader) == [[b"one", b"", b"three"]]


def test_a_log_that_was_cut_below_a_bound_ends_the_feed_and_says_where():
    log = [records(30)]
    with feeding(stream("h", log), "h"), penstock.attach("h", framework="numpy") as loader:
        epoch(loader)
        state = loader.state_dict()
    LOGS["h"] = ListLog(log, [15])
    with feeding(stream("h", log), "h"), penstock.attach("h", framework="numpy") as loader:
        loader.load_state_dict(state)
        with pytest.raises(StreamTruncated, match="partition 0 begins at record 15, and 10 was wanted"):
            epoch(loader)
    LOGS["h"] = ListLog(log, [15])
    with (
        feeding(stream("h", log, on_loss="skip"), "h") as feeder,
        penstock.attach("h", framework="numpy") as loader,
    ):
        loader.load_state_dict({**state, "cycles": state["cycles"][:1]})
        assert sorted(epoch(loader)) == list(range(15, 25))
        report = feeder.statistics().stream
        assert report is not None and report.lost == 5


def test_a_state_of_a_cycle_that_has_fewer_records_by_now_is_refused_amid_it():
    log = [records(30)]
    with feeding(stream("i", log), "i"), penstock.attach("i", framework="numpy") as loader:
        next(iter(loader))
        state = loader.state_dict()
    LOGS["i"] = ListLog(log, [2])
    with (
        feeding(stream("i", log, on_loss="skip"), "i"),
        penstock.attach("i", framework="numpy") as loader,
    ):
        loader.load_state_dict(state)
        with pytest.raises(StreamTruncated, match="had 10 records when it closed, and now 8 lie between"):
            epoch(loader)


@pytest.mark.parametrize("on_bad", ["fail", "skip"])
def test_a_record_that_is_no_json_ends_the_feed_or_is_a_row_that_says_so(on_bad: str):
    source = stream(
        "bad", [[b'{"id": 0}', b"poison", b'{"id": 2}', b'{"id": "x"}']], cycle=4, on_bad=on_bad, shuffle=False
    )
    with feeding(source, "bad"), penstock.attach("bad", framework="numpy") as loader:
        if on_bad == "fail":
            with pytest.raises(SourceError, match="record 1 of list 0 of list: it is no JSON"):
                list(loader)
        else:
            (batch,) = list(loader)
            assert batch["id"].tolist() == [0, 0, 2, 0] and batch["bad"].tolist() == [False, True, False, True]


def test_a_first_record_that_is_no_json_is_named_by_its_place():
    source = stream("first", [[], [b"poison"]], cycle=1)
    says = "record 0 of list 1 of list: the first sample cannot be taken: it is no JSON"
    with (
        feeding(source, "first"),
        penstock.attach("first", framework="numpy") as loader,
        pytest.raises(SourceError, match=says),
    ):
        list(loader)


def test_select_is_refused():
    with feeding(stream("s", [records(10)]), "s"), pytest.raises(Refused, match="cannot leave samples out"):
        penstock.attach("s", select=[1, 2])


@pytest.mark.parametrize("cycles", [[], [[0, [1, "", [[0, -1, "", 0]]], 10]], [[1, [1], 0], [0, [1], 0]], 5])
def test_damaged_states_are_refused(cycles: Any):
    with feeding(stream("j", [records(10)]), "j"), penstock.attach("j", framework="numpy") as loader:
        next(iter(loader))
        state = {**loader.state_dict(), "cycles": cycles}
        with pytest.raises((BadSetting, Refused), match=r"cycles=|where cycle 0 begins"):
            loader.load_state_dict(state)
            next(iter(loader))


def test_ranks_leave_out_what_fills_no_step_and_say_so(capfd: pytest.CaptureFixture[str]):
    source = stream("ranks", [records(13)])
    with feeding(source, "ranks") as feeder:
        got: list[list[list[int]]] = [[], []]
        left, seen = [0, 0], threading.Event()

        def train(rank: int) -> None:
            with penstock.attach(
                "ranks", batch_size=4, shard=(rank, 2), drop_last=True, framework="numpy"
            ) as loader:
                got[rank] = [epoch(loader), epoch(loader)]
                left[rank] = loader.statistics().left_out
                seen.wait(20)

        ranks = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
        for each in ranks:
            each.start()
        wait_until(lambda: sorted(t.left_out for t in feeder.statistics().trainers) == [5, 5])
        seen.set()
        for each in ranks:
            each.join(20)
    assert left == [5, 5], "two of the first cycle's ten, and all of the second's three"
    both = [*got[0][0], *got[1][0]]
    assert len({*both}) == 8 and {*both} < {*range(10)} and got[0][1] == got[1][1] == []
    assert "cycle 1 of feed 'ranks' has 3 rows, fewer than the 8 of a step" in capfd.readouterr().err


def test_a_thousand_partitions_hold_a_feed_back_where_a_message_has_no_room_for_more_cycles():
    parts = [[] for _ in range(1000)]
    source = stream("many", parts, cycle=2, close_after=0.01, batch_size=1, decode=bytes)
    parts[0] += [b"0", b"1"]
    got: list[bytes] = []

    def train() -> None:
        with penstock.attach("many") as fast:
            while len(got) < 120:
                got.extend(record for batch in fast for record in batch)

    with feeding(source, "many") as feeder, penstock.attach("many") as slow:
        batches = iter(slow)
        held = [*next(batches)]
        trainer = threading.Thread(target=train)
        trainer.start()
        for i in range(2, 120):
            parts[i] += [b"%d" % i]
        wait_until(lambda: feeder.statistics().waits_for.startswith("trainers "))
        ahead = len(got)
        assert 10 < ahead < 100, "the feed is as far ahead as a message holds"
        while len(held) < 120:
            held += [record for batch in batches for record in batch]
            batches = iter(slow)
        trainer.join(30)
    assert sorted(map(int, held)) == sorted(map(int, got)) == list(range(120))


@pytest.mark.parametrize("kept", [True, False])
def test_the_types_of_columns_are_those_that_trainers_know_whatever_record_a_feeder_begins_with(kept: bool):
    log = [
        [
            b'{"id": %d, "x": %s}' % (i, x)
            for i, x in enumerate([b"0.5", b"1", b"2", b"3", b"4", b"5", b"6.5", b"7"])
        ]
    ]
    with feeding(stream("types", log, cycle=2), "types"), penstock.attach("types", framework="numpy") as loader:
        assert [batch["x"].dtype for batch in loader] == [np.float64]
        state = json.loads(json.dumps(loader.state_dict()))
    LOGS["types"] = ListLog(log)
    if not kept:  # as of a stream whose records were decoded otherwise
        state["columns"][1][0] = "y"
    with feeding(stream("types", log, cycle=2), "types"), penstock.attach("types", framework="numpy") as loader:
        loader.load_state_dict(state)
        (batch,) = list(loader)
        assert batch["x"].dtype == (np.float64 if kept else np.int64) and sorted(batch["x"]) == [2, 3]
        if kept:
            assert [batch["x"].tolist() for _ in range(2) for batch in loader][1] in ([6.5, 7.0], [7.0, 6.5])


@pytest.mark.parametrize(
    "column", [["x", "fixed", "|O", []], ["x", "fixed", "<f8", [-1]], ["x", "odd", "", []], [1]]
)
def test_a_state_with_damaged_columns_is_refused(column: Any):
    with feeding(stream("damaged", [records(10)]), "damaged"), penstock.attach("damaged") as loader:
        next(iter(loader))
        state = {**loader.state_dict(), "columns": [column]}
        with pytest.raises(BadSetting, match="cycles of a stream begin"):
            loader.load_state_dict(state)
