"""What the page saves for a paper: tables as CSV and LaTeX, bars and charts as the server draws them."""

from __future__ import annotations

import csv

import pytest
from tests.cli.test_runs_tables import NASTY
from tests.cli.test_terminal import without
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
    assert {row[2] for row in rows[1:]} == {NASTY} and {row[1] for row in rows[1:]} == {
        f"r {at}" for at in range(60)
    }
    lines = saved(page, "runs as LaTeX", "utf-8").splitlines()
    assert lines[0].startswith(r"\begin{tabular}{ll") and lines[1] == r"\toprule" and len(lines) == 60 + 6
    assert r"a\_b \%\&\#\{\}\textbackslash{}\textasciicircum{}\textasciitilde{}\$ {[}c] \textless{}d" in lines[4]
    one.picture("runs to save")


def test_a_latex_table_shows_names_as_they_are_and_says_which_need_more_than_pdflatex(tab, store):
    """pdflatex stopped at what is not seen, and at accents beside their letters."""
    group(store, "--lr --- cafe\u0301 \u200bb\u00ad", runs=["latin"])
    group(store, "Привет", runs=["other"])
    one = tab()
    one.view("runs?filter=latin").get_by_text("1 of 2 runs").wait_for()
    lines = saved(one.page, "runs as LaTeX", "utf-8").splitlines()
    assert lines[0].startswith("\\begin") and " & -{}-lr -{}-{}- café b & " in lines[4]
    one.view("runs?filter=other").get_by_text("1 of 2 runs").wait_for()
    lines = saved(one.page, "runs as LaTeX", "utf-8").splitlines()
    assert lines[0].startswith("% With letters that pdflatex lacks") and " & Привет & " in lines[5]


def test_groups_beside_each_other_and_where_their_time_goes_are_saved(tab, store):
    groups = [group(store, "first", mode="alone", seconds=100)[0], group(store, "first", seconds=50)[0]]
    one = tab()
    page = one.view(f"time?group={groups[0].group_id}")
    assert ">a<" in saved(page, "where the time goes as SVG"), "of one group, it needs no name"
    page.locator(f"main button[data-id='{groups[1].group_id}']").click()
    page.get_by_role("table", name="Groups compared").wait_for()
    rows = list(csv.reader(saved(page, "groups as CSV").splitlines()))
    assert rows[0] == ["", "alone first", "plain first"]
    assert ["time of all", "1:40", "50.0 s"] in rows, "without what is said beside the values"
    assert r"time of all & 1:40 & 50.0 s \\" in saved(page, "groups as LaTeX").splitlines()
    assert ">CPU time (s)<" in saved(page, "groups as SVG")
    svg = saved(page, "where the time goes as SVG")
    assert ">alone<" not in svg and ">a, alone<" in svg and ">waits for data<" in svg
    assert saved(page, "where the time goes as PDF").startswith("%PDF")
    one.picture("time to save")


def test_a_page_whose_server_has_no_matplotlib_says_so(tab, open_page, store, tmp_path):
    [run] = group(store, "one")
    one = tab(open_page(environment=without(tmp_path, "matplotlib")))
    one.may_complain = True  # of the status
    page = one.view(f"run/{run.id}")
    page.locator(".chart canvas").first.wait_for()
    page.get_by_role("button", name="Save loss as PDF").click()
    page.get_by_text('penstock web needs matplotlib: pip install "penstock[paper]"').wait_for()


def test_what_saves_fits_on_a_phone(tab, store):
    runs = [*group(store, "first", mode="alone"), *group(store, "first")]
    one = tab(viewport={"width": 390, "height": 900})
    asked = "&".join(f"group={run.group_id}&run={run.id}" for run in runs)
    for view in ("runs", "time", "compare"):
        page = one.view(f"{view}?{asked}")
        page.get_by_role("button", name="Save").first.wait_for()
        one.picture(f"{view} narrow")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, view
