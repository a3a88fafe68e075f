"""What the page saves for a paper: tables as CSV and LaTeX, bars and charts as the server draws them."""

from __future__ import annotations

import csv

import pytest
from tests.cli.test_runs_tables import NASTY
from tests.web.seeded import group

pytestmark = pytest.mark.page


def saved(page, name: str, encoding: str = "latin-1") -> str:
    with page.expect_download() as download:
        page.get_by_role("button", name=f"Save {name}", exact=True).click()
    return download.value.path().read_bytes().decode(encoding)


def test_all_runs_that_the_filter_lets_through_are_saved_as_they_are_shown(tab, store):
    group(store, NASTY, runs=[f"r {at}" for at in range(60)], parameters={"lr": "0.1"})
    group(store, "hidden")
    one = tab()
    page = one.view("runs?filter=lr=0.1")
    page.get_by_text("60 of 61 runs").wait_for()
    rows = list(csv.reader(saved(page, "runs as CSV").splitlines()))
    assert len(rows) == 61 and rows[0][:3] == ["id", "run", "group"]
    time = rows[0].index("time, s")
    assert {row[time] for row in rows[1:]} == {"60"}, "numbers as they are, not as they are shown"
    assert {row[2] for row in rows[1:]} == {NASTY} and {row[1] for row in rows[1:]} == {
        f"r {at}" for at in range(60)
    }
    lines = saved(page, "runs as LaTeX", "utf-8").splitlines()
    assert lines[0].startswith(r"\begin{tabular}{ll") and lines[1] == r"\toprule" and len(lines) == 60 + 6
    assert r"a\_b \%\&\#\{\}\textbackslash{}\textasciicircum{}\textasciitilde{}\$ {[}c] \textless{}d" in lines[4]
    one.picture("runs to save")


def test_groups_beside_each_other_and_where_their_time_goes_are_saved(tab, store):
    groups = [group(store, "first", mode="alone", seconds=100)[0], group(store, "first", seconds=50)[0]]
    one = tab()
    page = one.view(f"time?group={groups[0].group_id}")
    assert ">a<" in saved(page, "where the time goes as SVG"), "of one group, it needs no name"
    page.locator(f"main button[data-id='{groups[1].group_id}']").click()
    page.get_by_role("table", name="Groups compared").wait_for()
    rows = list(csv.reader(saved(page, "groups as CSV").splitlines()))
    assert rows[0] == ["", "alone first", "plain first"]
    assert ["time of all, s", "100", "50"] in rows, "numbers, without what is said beside the values"
    third = group(store, "third", seconds=70)[0]
    page.locator(f"main button[data-id='{third.group_id}']").click()
    page.get_by_role("columnheader", name="third").wait_for()
    assert ["time of all, s", "100", "50", "70"] in [*csv.reader(saved(page, "groups as CSV").splitlines())]
    page.locator(f"main button[data-id='{third.group_id}']").click()
    page.get_by_role("columnheader", name="third").wait_for(state="detached")
    assert r"time of all & 1:40 & 50.0 s \\" in saved(page, "groups as LaTeX").splitlines()
    assert ">CPU time (s)<" in saved(page, "groups as SVG")
    svg = saved(page, "where the time goes as SVG")
    assert ">alone<" not in svg and ">a, alone<" in svg and ">waits for data<" in svg
    assert saved(page, "where the time goes as PDF").startswith("%PDF")
    one.picture("time to save")
