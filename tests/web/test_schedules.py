"""Schedules as the page is told of them; when their runs ran, it knows from their rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.forked import ForkServer, eventually
from tests.runs.running import launches
from tests.schedule.scheduled import Scheduled as Started
from tests.schedule.scheduled import counted, spec
from tests.web.conftest import Page
from tests.web.scheduled import Scheduled, going_on, sweep, write

from penstock.runs.store import Store
from penstock.schedule.ledger import LedgerFile, once_more

pytestmark = pytest.mark.whole


def test_a_schedule_comes_with_its_first_plan_and_what_is_to_come(page: Page, store: Store) -> None:
    assert page.json("/api/schedules") == []
    ledger = going_on(store)
    [found] = page.json("/api/schedules")
    assert (found["began"], found["gpus"]) == (ledger.began_s, 2)
    runs = dict(found["runs"])
    assert runs["moved"] == [[ledger.entries[2].id, [0]]] and runs["later"] == [[ledger.entries[5].id, []]]
    guesses = {"starts_by_guess": False, "ends_by_guess": False}
    assert found["planned"][2] == {"name": "moved", "gpus": [1], "start_s": 150, "end_s": 400, **guesses}
    assert [each["name"] for each in found["coming"]] == ["both", "beside", "later"]


def test_a_run_that_was_started_again_has_the_gpus_of_each_start(page: Page, store: Store) -> None:
    full = Scheduled("full", (0, 1), (0, 50), (0, 40), (60, 90), status="out_of_memory")
    ledger = write(store, full)
    [entry] = ledger.entries
    first = store.run(entry.id)
    second = once_more(store, entry, first.plan)
    entry.gpus = (1,)
    LedgerFile(store, Path("/sweep.yaml")).write(ledger)
    [found] = page.json("/api/schedules")
    assert found["runs"] == [["full", [[first.id, [0, 1]], [second.id, [1]]]]]


def test_the_newest_come_first_and_what_cannot_be_read_is_passed_over(page: Page, store: Store) -> None:
    for number in range(14):
        write(store, *sweep(), name=str(number), began=1e9 + number)
    (store.folder / "schedules" / "0123456789abcdef.json").write_text("{}")
    assert [each["began"] for each in page.json("/api/schedules")] == [1e9 + i for i in range(13, 2, -1)]


def test_a_run_that_waits_has_a_place_in_the_newest_plan(
    servers: dict[str, ForkServer], tmp_path: Path, open_page: Callable[..., Page]
) -> None:
    with launches(Started, servers, tmp_path) as start:
        one = start(spec(tmp_path, "a 1 0 holds", "b 1 0", gpus=1))
        eventually(lambda: counted(tmp_path, "began")["a"])
        page = open_page()
        page.enter()
        [found] = page.json("/api/schedules")
        assert found["gpus"] == 1 and [starts[-1][1] for _, starts in found["runs"]] == [[0], []]
        a, b = found["coming"]
        assert b["gpus"] == [0] and b["start_s"] >= a["end_s"] > 0
        (tmp_path / "go").touch()
        assert one.wait() == 0, one.errors
