"""What a page lives through: runs and stores that go while they are shown, a second browser."""

from __future__ import annotations

import shutil

import pytest
from tests.web.seeded import group

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
    assert not page.get_by_role("button", name="Add tag").is_visible()
    page = one.view("runs")
    page.get_by_text("1 of 1 runs").wait_for()
    page.get_by_role("link", name="second").click()
    page.locator("main .chart canvas").first.wait_for()


def test_a_store_that_is_deleted_under_an_open_page_is_one_sentence(tab, store):
    (run,) = group(store, "g")
    one = tab()
    one.may_complain = True
    page = one.view(f"run/{run.id}")
    page.locator("main .chart canvas").first.wait_for()
    shutil.rmtree(store.folder)
    page.locator("#link").get_by_text(f"the store {store.folder} is gone").wait_for()
