"""What a page lives through: runs and stores that go while they are shown, very long series, a second browser."""

from __future__ import annotations

import math
import shutil

import pytest
from tests.forked import eventually
from tests.web.seeded import add_points, group

pytestmark = pytest.mark.page


def test_a_run_that_is_removed_while_it_is_shown_says_so_and_the_page_goes_on(tab, store):
    (first,) = group(store, "gone", runs=["first"])
    group(store, "stays", runs=["second"])
    one = tab()
    one.may_complain = True  # of an answer that says that it is gone
    page = one.view(f"run/{first.id}")
    page.locator("main .chart canvas").first.wait_for()
    store.remove([first.id])
    page.reload()
    page.get_by_text(f"has no run '{first.id}'").wait_for()
    page = one.view("runs")
    page.get_by_text("1 of 1 runs").wait_for()
    page.get_by_role("link", name="second").click()
    page.locator("main .chart canvas").first.wait_for()


def test_runs_that_are_removed_vanish_from_two_browsers(tab, store):
    records = group(store, "some", runs=["a", "b", "c"])
    pages = [tab().view("runs"), tab().view("runs")]
    for page in pages:
        page.get_by_text("3 of 3 runs").wait_for()
    store.remove([records[1].id])
    for page in pages:
        page.get_by_text("2 of 2 runs").wait_for()
        assert page.locator("main tbody tr[data-id]").count() == 2


def test_a_store_that_is_deleted_under_an_open_page_is_one_sentence(tab, store):
    (run,) = group(store, "g")
    one = tab()
    one.may_complain = True
    page = one.view(f"run/{run.id}")
    page.locator("main .chart canvas").first.wait_for()
    shutil.rmtree(store.folder)
    page.locator("#link").get_by_text(f"the store {store.folder} is gone").wait_for()


def test_a_series_of_a_million_points_is_drawn_with_its_peaks(tab, store):
    (run,) = group(store, "long", status=None, series={"few": [1.0, 2.0]})
    values = [math.sin(i / 1e5) for i in range(1_000_000)]
    values[654_321] = 99.0
    add_points(store, run.id, "million", values, 1_790_000_000.0, 36_000.0)
    store.ended(run.id, "finished", 0)
    store.compact(run.id)
    page = tab().view(f"compare?run={run.id}&series=million")
    page.locator("main .chart canvas").wait_for()
    page.locator("main").get_by_text("99", exact=False).first.wait_for()


def test_one_point_a_gap_and_a_metric_that_was_renamed_are_shown_side_by_side(tab, store):
    (old,) = group(store, "old", runs=["old"], series={"train_loss": [3.0, math.nan, 1.0], "single": [5.0]})
    (new,) = group(store, "new", runs=["new"], series={"train/loss": [2.0, 1.0], "single": [math.nan]})
    one = tab()
    page = one.view(f"compare?run={old.id}&run={new.id}")
    eventually(lambda: page.locator("main .chart canvas").count() == 3)
    text = page.locator("main").inner_text()
    assert "train_loss" in text and "train/loss" in text
    one.picture("renamed")
