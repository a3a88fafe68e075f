"""The page in a real browser: what a person sees, clicks and types."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.forked import eventually
from tests.web.seeded import add_points, drawn, group

import penstock

pytestmark = pytest.mark.page
LIGHT_AND_DARK = [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)]
AXE = Path(sys.prefix, "axe/package/axe.min.js")


def names(page):
    return page.locator("tbody tr[data-id] td.name:has(.dot)").all_inner_texts()


def test_without_runs_every_view_says_how_to_start_one(tab):
    one = tab()
    for view in ("now", "runs", "compare", "time"):
        one.view(view).get_by_text("penstock run train.py").wait_for()
    one.view("now").get_by_text("No feed is open").wait_for()


def test_a_run_that_failed_says_why(tab, store):
    [run] = group(store, "broken", status="failed", reason="ValueError: boom")
    page = tab().view("runs")
    assert page.get_by_text("failed (1)").get_attribute("title") == "ValueError: boom"
    page.get_by_role("link", name="a", exact=True).click()
    page.get_by_text("failed, exit code 1: ValueError: boom").wait_for()
    page.get_by_text("epoch 0").wait_for()
    assert run.id in page.url


def test_names_are_text_however_long_and_whatever_they_hold(tab, store):
    markup = "<img src=x onerror=alert(1)>&amp;<script>alert(2)</script>"
    group(store, "<b>bold</b>", runs=[markup, "x" * 300])
    one = tab(viewport={"width": 390, "height": 800})
    for view in ("runs?group=1", "now", "compare", "time"):
        page = one.view(view)
        page.get_by_text(markup).first.wait_for()
        assert page.locator("main img, main b, main script").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view


def test_runs_are_filtered_sorted_grouped_and_pinned_and_the_address_keeps_it(tab, store):
    group(store, "first", runs=["a", "b"], seconds=50)
    [slow] = group(store, "second", runs=["c"], seconds=500, parameters={"lr": "0.3"}, status="failed")
    page = tab().view("runs")
    page.get_by_text("3 of 3 runs").wait_for()
    assert names(page) == ["c", "b", "a"]
    page.get_by_role("searchbox").fill("lr=0.3")
    assert names(page) == ["c"]
    page.get_by_role("searchbox").fill("-failed")
    assert names(page) == ["b", "a"]
    page.get_by_role("button", name="Pin a of first").click()
    assert names(page) == ["a", "b"]
    page.get_by_role("searchbox").fill("")
    page.get_by_role("button", name="time", exact=True).click()
    assert names(page) == ["a", "c", "b"]
    page.get_by_role("button", name="Group", exact=True).click()
    assert page.locator("tr.group").all_inner_texts() == ["first (plain)", "second (plain)"]
    page.reload()
    page.get_by_text("3 of 3 runs").wait_for()
    assert names(page) == ["a", "b", "c"]
    assert page.locator("th[aria-sort=descending]").inner_text() == "time ↓"
    assert slow.id


def test_keys_choose_runs_and_views(tab, store):
    group(store, "first", runs=["a", "b", "c"])
    page = tab().view("runs")
    page.get_by_text("3 of 3 runs").wait_for()
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.keyboard.press("j")
    page.keyboard.press("x")
    assert page.locator("tbody input:checked").count() == 2
    page.keyboard.press("/")
    page.keyboard.type("a3")
    assert page.get_by_role("searchbox").input_value() == "a3"
    page.keyboard.press("Control+A")
    page.keyboard.press("Delete")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Compare", exact=True).click()
    page.locator(".legend a").nth(1).wait_for()
    assert page.locator(".legend a").count() == 2
    page.keyboard.press("2")
    page.get_by_text("3 of 3 runs").wait_for()
    page.keyboard.press("?")
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("4")
    page.get_by_text("waits for data", exact=True).wait_for()


def test_a_run_has_one_colour_everywhere_and_neighbours_differ(tab, store):
    runs = group(store, "first", runs=[str(i) for i in range(8)])
    one = tab()
    links = "[...document.querySelectorAll('main a[href*=\"#/run/\"]')]"
    dot = "(link.querySelector('.dot') || link.previousElementSibling).style.background"
    script = f"() => Object.fromEntries({links}.map(link => [link.href.split('/').pop(), {dot}]))"
    chosen = "&".join(f"run={run.id}" for run in runs)
    seen = []
    for view in (
        "runs",
        "now",
        f"time?group={runs[0].group_id}",
        f"compare?{chosen}",
    ):
        page = one.view(view)
        page.locator("a[href*='#/run/']").nth(4).wait_for()
        seen.append(page.evaluate(script))
    assert len(set(seen[0].values())) == 8
    for colours in seen:
        assert colours.items() <= seen[0].items()


def test_series_lie_over_each_other_with_one_cross_hair_and_can_be_saved(tab, store):
    runs = group(store, "first", runs=["a", "b"])
    page = tab().view("compare?" + "&".join(f"run={run.id}" for run in runs))
    chart = page.locator(".chart[data-name='loss']")
    chart.locator("canvas").wait_for()
    chart.hover(position={"x": 300, "y": 100})
    waits = page.locator(".chart[data-name='feed.wait_s'] .values")
    assert "a " in chart.locator(".values").inner_text() and "b " in waits.inner_text()
    with page.expect_download() as saved:
        chart.get_by_role("button", name="Save loss as CSV").click()
    rows = list(csv.reader(io.StringIO(Path(saved.value.path()).read_text())))
    assert rows[0] == ["seconds", "a", "b"] and len(rows) == 61
    assert [float(row[1]) for row in rows[1:]] == pytest.approx(drawn()["loss"])
    for kind, begins in (("SVG", b"<svg"), ("PNG", b"\x89PNG")):
        with page.expect_download() as saved:
            chart.get_by_role("button", name=f"Save loss as {kind}").click()
        assert Path(saved.value.path()).read_bytes().startswith(begins)


def test_a_part_of_the_time_is_looked_at_more_closely(tab, store):
    [run] = group(store, "first", series={"loss": np.arange(100_000.0)}, seconds=1000)
    page = tab().view(f"compare?run={run.id}")
    page.locator(".chart canvas").wait_for()

    def seconds_shown():
        with page.expect_download() as saved:
            page.get_by_role("button", name="Save loss as CSV").click()
        rows = list(csv.reader(io.StringIO(Path(saved.value.path()).read_text())))[1:]
        return float(rows[0][0]), float(rows[-1][0]), len(rows)

    begin, end, points = seconds_shown()
    assert (begin, end) == pytest.approx((0, 1000), abs=1) and points < 5000
    with page.expect_response("**/series?*"):
        page.keyboard.press("+")
    page.wait_for_function("location.hash.includes('range=')")
    page.wait_for_timeout(300)
    begin, end, closer = seconds_shown()
    assert 100 < begin < end < 900 and closer <= 5000
    with page.expect_response("**/series?*"):
        page.keyboard.press("0")
    page.wait_for_timeout(300)
    assert seconds_shown()[0] == pytest.approx(0, abs=1)


def test_a_chart_grows_with_its_run(tab, store):
    [run] = group(store, "goes", status=None)
    page = tab().view(f"compare?run={run.id}&series=loss")
    page.locator(".chart canvas").wait_for()

    def last_value():
        with page.expect_download() as saved:
            page.get_by_role("button", name="Save loss as CSV").click()
        return float(list(csv.reader(io.StringIO(Path(saved.value.path()).read_text())))[-1][1])

    assert last_value() == pytest.approx(drawn()["loss"][-1])
    with page.expect_response("**/newest?*"):
        add_points(store, run.id, "loss", [7.0], run.began + 61, 0)
    eventually(lambda: last_value() == 7)


def test_a_run_that_begins_to_log_gets_its_chart(tab, store):
    [run] = group(store, "goes", status=None)
    page = tab().view(f"compare?run={run.id}&series=accuracy")
    page.get_by_text("No series has these words").wait_for()
    add_points(store, run.id, "accuracy", [0.5, 0.6], run.began + 61, 1)
    page.locator(".chart canvas").wait_for()


def test_groups_stand_beside_each_other_with_the_sentence(tab, store):
    alone = group(store, "small", runs=["a", "b"], mode="alone", seconds=100)
    plain = group(store, "small", runs=["a", "b"], mode="plain", seconds=60)
    page = tab().view(f"time?group={plain[0].group_id}&group={alone[0].group_id}")
    page.get_by_text("sooner than one after the other").wait_for()
    assert page.locator(".bar").first.get_attribute("aria-label").startswith("waits for data 24%")


def test_what_happens_appears_without_a_reload(tab, store):
    page = tab().view("now")
    [run] = group(store, "now", status=None)
    page.get_by_role("link", name="a", exact=True).wait_for()
    page.get_by_text("loss 0.748").wait_for()
    add_points(store, run.id, "loss", [0.125], run.began + 61, 0)
    page.get_by_text("loss 0.125").wait_for()
    store.ended(run.id, "failed", 3, "it broke")
    page.get_by_text("it broke").wait_for()
    store.remove([run.id])
    page.get_by_text("it broke").wait_for(state="detached")


FEEDER = """
import numpy as np, penstock, threading, time
feeder = penstock.Feeder(penstock.ArraySource({"id": np.arange(1000)}, batch_size=10), "seen")
threading.Thread(target=feeder.run, daemon=True).start()
loader = penstock.attach("seen", 10)
for batch in loader:
    time.sleep(0.1)
"""


def test_a_feed_is_seen_while_it_lives(tab):
    page = tab().view("now")
    process = subprocess.Popen([sys.executable, "-c", FEEDER])
    try:
        page.get_by_role("heading", name="seen").wait_for()
        page.get_by_role("cell", name=str(process.pid), exact=True).wait_for()
    finally:
        process.kill()
        process.wait()
    page.get_by_role("heading", name="seen").wait_for(state="detached")
    assert penstock.feeds() == []


def test_an_open_page_says_what_its_server_does_and_goes_on_once_it_has_the_new_key(tab, store, open_page):
    server = open_page()
    one = tab(server)
    one.may_complain = True  # the browser tells of each try that nobody answered
    page = one.view("runs")
    server.close()
    page.get_by_text("the server does not answer: trying again").wait_for()
    group(store, "meanwhile")
    again = open_page("--port", str(server.port))
    page.get_by_text("the server was started again: open the URL that it has printed").wait_for()
    other = one.context.new_page()
    other.goto(again.url)
    page.get_by_text("meanwhile").wait_for()
    page.get_by_text("live", exact=True).wait_for()


def test_the_key_does_not_stay_in_the_address(tab):
    assert "token" not in tab().page.url


def test_the_focus_stays_while_the_page_draws_itself_anew(tab, store):
    group(store, "goes", status=None)
    for view, label in (("now", "a"), ("runs", "a")):
        page = tab().view(view)
        page.get_by_role("link", name=label, exact=True).focus()
        before = page.evaluate("document.activeElement.href")
        page.wait_for_timeout(2500)
        assert page.evaluate("document.activeElement.href") == before


def test_a_thousand_runs_are_shown_and_drawn_only_as_far_as_one_looks(tab, store):
    group(store, "many", runs=[f"run-{i:04}" for i in range(1000)], series={"loss": [1.0, 2.0]}, status=None)
    page = tab().view("runs")
    page.get_by_text("1000 of 1000 runs").wait_for()
    assert page.locator("main tbody tr").count() == 100
    page.get_by_role("button", name="Show more").click()
    assert page.locator("main tbody tr").count() == 200
    page.get_by_role("searchbox").fill("run-0007")
    assert names(page) == ["run-0007"]


def test_only_charts_in_sight_are_drawn(tab, store):
    [run] = group(store, "wide", series={f"series {i:02}": [1.0, 2.0] for i in range(60)})
    page = tab().view(f"compare?run={run.id}")
    page.locator(".chart canvas").first.wait_for()
    page.wait_for_timeout(500)
    assert page.locator(".chart").count() == 60
    assert page.locator(".chart canvas").count() < 20


@pytest.mark.parametrize(("scheme", "width"), LIGHT_AND_DARK)
def test_nothing_serious_keeps_anybody_out(tab, store, scheme, width):
    alone = group(store, "small", runs=["a", "b"], mode="alone", seconds=100)
    plain = group(store, "small", runs=["a", "b"], seconds=60)
    group(store, "broken", status="failed", reason="ValueError: boom")
    group(store, "goes", runs=["lr=0.1", "lr=0.3"], status=None)
    one = tab(color_scheme=scheme, viewport={"width": width, "height": 900}, bypass_csp=True)
    chosen = "&".join(f"run={run.id}" for run in alone)
    views = {"now": "now", "runs": "runs?group=1", "compare": f"compare?{chosen}", "run": f"run/{alone[0].id}"}
    views["time"] = f"time?group={plain[0].group_id}&group={alone[0].group_id}"
    for name, address in views.items():
        page = one.view(address)
        page.locator("main a, main canvas").first.wait_for()
        one.picture(f"{name}-{scheme}-{width}")
        page.evaluate(AXE.read_text())
        found = page.evaluate("axe.run().then(result => result.violations)")
        serious = [
            (each["id"], [node["html"] for node in each["nodes"]])
            for each in found
            if each["impact"] in {"serious", "critical"}
        ]
        assert not serious, f"{name}: {serious}"
