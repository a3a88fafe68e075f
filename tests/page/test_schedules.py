"""The chart of a schedule in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.web.scheduled import Scheduled, going_on, sweep, write

from penstock.schedule.ledger import LedgerFile, once_more

pytestmark = pytest.mark.page


def lane(page, gpu: int):
    return page.locator(".lane").nth(gpu)


def test_runs_lie_on_their_gpus_where_they_were_planned_and_where_they_ran(tab, store):
    ledger = going_on(store)
    page = tab().view("schedules")
    page.get_by_text("2 finished, 1 failed, 2 running, 1 waiting").wait_for()
    assert page.locator("dd").all_inner_texts()[1:] == ["15:00", "18:20"]
    assert sorted(lane(page, 0).locator("a").all_inner_texts()) == ["both", "first", "moved"]
    assert lane(page, 1).locator("a").filter(has_text="second").inner_text() == "second, failed"
    moved = lane(page, 0).get_by_role("link", name="moved")
    assert moved.get_attribute("title") == "moved: ran 5:01 to 9:50"
    assert "first plan 2:30 to 6:40" in lane(page, 1).get_by_role("link", name="moved").get_attribute("title")
    later = lane(page, 1).get_by_role("link", name="later")
    assert later.locator(".coming").count() == 1 and later.locator(".ran").count() == 0
    boxes = [lane(page, 1).get_by_text(name, exact=True).bounding_box() for name in ("beside", "later")]
    assert boxes[0]["x"] < boxes[1]["x"]
    later.click()
    page.wait_for_url(re.compile(f"run/{ledger.entries[-1].id}"))


def test_a_run_that_was_started_again_lies_where_each_start_was(tab, store):
    ledger = write(store, Scheduled("full", (0, 1), (0, 50), (0, 40), (60, 90), status="out_of_memory"))
    [entry] = ledger.entries
    once_more(store, entry, store.run(entry.id).plan)
    LedgerFile(store, Path("/sweep.yaml")).write(ledger)
    page = tab().view("schedules")
    page.get_by_text("1 out of memory, 1 waiting").wait_for()
    for gpu in range(2):
        names = [row.inner_text() for row in lane(page, gpu).locator("a").all()]
        assert names == ["full, out of memory", "full"]
        assert [lane(page, gpu).locator(f".{kind}").count() for kind in ("ran", "coming", "planned")] == [1, 1, 1]


def test_what_is_a_guess_looks_like_one(tab, store):
    known = Scheduled("known", (0,), (0, 60), coming=(0, 60), status=None)
    write(store, known, Scheduled("unknown", (1,), (0, 90), coming=(0, 90), status=None, is_guess=True))
    page = tab().view("schedules")
    title = lane(page, 1).get_by_role("link", name="unknown").get_attribute("title")
    assert title == "unknown, waiting: to come, by the newest plan 0.0 s to ~1:30; first plan 0.0 s to ~1:30"
    assert "~" not in lane(page, 0).get_by_role("link", name="known").get_attribute("title")
    assert page.locator("dd").all_inner_texts()[1:] == ["~1:30", "~1:30"]


def test_what_happens_to_a_schedule_appears_without_a_reload(tab, store):
    ledger = going_on(store)
    page = tab().view("schedules")
    page.get_by_text("now expected to take").wait_for()
    for entry in ledger.entries:
        store.ended(entry.id, "finished", 0)
    page.get_by_text("took", exact=True).wait_for()
    assert page.locator(".coming:not(.swatch)").count() == 0
    store.remove([entry.id for entry in ledger.entries])
    page.get_by_text("No schedule yet").wait_for()


def test_a_first_plan_that_was_far_off_leaves_room_for_what_ran(tab, store):
    write(store, *sweep(0.01))
    page = tab().view("schedules")
    page.locator(".ran:not(.swatch)").last.wait_for()
    width = lane(page, 0).bounding_box()["width"]
    ends = [bar.bounding_box() for bar in page.locator(".lane .ran").all()]
    assert max(box["x"] + box["width"] for box in ends) - lane(page, 0).bounding_box()["x"] > width / 3
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
