"""The page in a real browser: what a person sees, clicks and types."""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.fakes.nvml.by_number import by_number
from tests.fakes.nvml.fake_gpus import FakeGpus
from tests.forked import eventually
from tests.web.seeded import add_points, drawn, group
from tests.web.test_selections import reached, read_scores

import penstock
from penstock.runs.record import GroupPlan, RunPlan
from penstock.runs.store.notes import Change

pytestmark = pytest.mark.page


def names(page):
    return page.locator("tbody tr[data-id] td.name:has(.dot)").all_inner_texts()


def saved(page, kind: str, name: str = "loss") -> bytes:
    """What a chart saves now."""
    page.wait_for_timeout(200)  # Chromium drops what exceeds ten downloads in a second
    with page.expect_download() as download:
        page.get_by_role("button", name=f"Save {name} as {kind}").click()
    return Path(download.value.path()).read_bytes()


def saved_rows(page) -> list[list[str]]:
    """What the chart of the loss saves as CSV."""
    return list(csv.reader(io.StringIO(saved(page, "CSV").decode())))


def compared(tab, *runs, more: str = "", **settings):
    """Open the charts of some runs."""
    page = tab(**settings).view("compare?" + "&".join(f"run={run.id}" for run in runs) + more)
    page.locator(".chart canvas").first.wait_for()
    return page


def test_without_runs_every_view_says_how_to_start_one(tab):
    one = tab()
    assert "token" not in one.page.url, "the key does not stay in the address"
    for view in ("now", "runs", "compare", "time"):
        one.view(view).get_by_text("penstock run train.py").wait_for()
    one.view("now").get_by_text("No feed is open").wait_for()
    one.view("schedules").get_by_text("penstock schedule run sweep.yaml").wait_for()


def test_names_are_text_however_long_and_whatever_they_hold(tab, store):
    markup = "<img src=x onerror=alert(1)>&amp;<script>alert(2)</script>"
    runs = group(store, "<b>bold</b>", runs=[markup, "x" * 300])
    store.annotate([runs[0].id], Change(note=markup, tag=("<b>tag</b>", '"><img/src=x>')))
    one = tab(viewport={"width": 390, "height": 800})
    for view in ("runs?group=1", "now", "compare", "time", f"run/{runs[0].id}"):
        page = one.view(view)
        if view.startswith("run"):
            page.get_by_text("<b>tag</b>").first.wait_for()
        page.get_by_text(markup).first.wait_for()
        assert page.locator("main img, main b, main script").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view


def test_runs_are_filtered_sorted_grouped_and_pinned_and_the_address_keeps_it(tab, store):
    first, _ = group(store, "first", runs=["a", "b"], seconds=50)
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
    page.get_by_label("Group by").select_option("group")
    titles = [f"{name} (plain) {run.group_id}" for name, run in (("first", first), ("second", slow))]
    assert page.locator("tr.group").all_inner_texts() == titles
    assert page.locator("tbody tr").filter(has_text=slow.id).locator("td.name").first.inner_text() == "c"
    page.wait_for_url(re.compile("group="))  # written within 100 ms of the last change
    page.reload()
    page.get_by_text("3 of 3 runs").wait_for()
    assert names(page) == ["a", "b", "c"]
    assert page.locator("th[aria-sort=descending]").inner_text() == "time ↓"


def test_keys_choose_runs_and_views(tab, store):
    group(store, "first", runs=["a", "b", "c"])
    page = tab().view("runs")
    page.get_by_text("3 of 3 runs").wait_for()
    page.get_by_role("link", name="Skip to content").press("Enter")
    assert page.evaluate("document.activeElement.id") == "view"
    assert page.get_by_role("table", name="Runs").count() == 1 and page.url.endswith("#/runs")
    for key in "jxjx":
        page.keyboard.press(key)
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


def test_chosen_runs_stay_chosen_from_view_to_view(tab, store):
    runs = group(store, "first", runs=["a", "b", "c"])
    page = tab().view(f"runs?run={runs[0].id}")
    page.get_by_role("link", name="Compare").click()
    page.locator(".chart canvas").first.wait_for()
    assert page.locator(".legend a").all_inner_texts() == ["a (first, plain)"]
    page.keyboard.press("2")
    assert page.get_by_role("checkbox", name="Compare a of first").is_checked()
    page.get_by_role("link", name="Now").click()
    page.get_by_role("link", name="Compare").click()
    page.locator(".legend a").nth(2).wait_for()


def test_a_run_is_shown_without_the_colours_of_its_terminal_and_counters_as_rates(tab, store):
    [run] = group(store, "first", series={"proc.read_bytes": [0, 60 << 20], "proc.rss_bytes": [2 << 20]})
    (store.folder_of(run.id) / "output").write_text("\x1b[31mred\x1b[0m\x1b[2K\n")
    page = tab().view(f"run/{run.id}")
    assert page.locator("pre").inner_text().strip() == "red"
    cells = [row.split("\t")[:4] for row in page.locator("main tbody tr").all_inner_texts()]
    assert cells == [
        ["proc.read_bytes", "1 MiB", "1 MiB", "bytes/s"],
        ["proc.rss_bytes", "2 MiB", "2 MiB", "bytes"],
    ]


def test_a_run_and_a_group_have_one_colour_everywhere_and_neighbours_differ(tab, store):
    runs = group(store, "first", runs=[str(i) for i in range(8)])
    one = tab()
    links = "[...document.querySelectorAll('main a[href*=\"#/run/\"]')]"
    dot = "(link.querySelector('.dot') || link.previousElementSibling).style.background"
    script = f"() => Object.fromEntries({links}.map(link => [link.href.split('/').pop(), {dot}]))"
    chosen = "&".join(f"run={run.id}" for run in runs)
    seen = []
    for view in ("runs", "now", f"time?group={runs[0].group_id}", f"compare?{chosen}"):
        page = one.view(view)
        page.locator("a[href*='#/run/']").nth(4).wait_for()
        seen.append(page.evaluate(script))
    assert len(set(seen[0].values())) == 8
    for colours in seen:
        assert colours.items() <= seen[0].items()
    of_group = set()
    for address, place in (
        ("runs?group=1", "tr.group .dot"),
        (f"compare?{chosen}&group=1", "div.legend .dot"),
        (f"time?group={runs[0].group_id}", "h2 .dot"),
    ):
        dot = one.view(address).locator(f"main {place}").first
        of_group.add(dot.evaluate("each => each.style.background"))
    assert len(of_group) == 1, of_group


def test_series_lie_over_each_other_with_one_cross_hair_and_can_be_saved(tab, store):
    runs = group(store, "first", runs=["a", "b"])
    page = compared(tab, *runs)
    chart = page.locator(".chart[data-name='loss']")
    chart.locator("canvas").wait_for()
    chart.hover(position={"x": 300, "y": 100})
    waits = page.locator(".chart[data-name='feed.wait_s'] .values")
    assert "a " in chart.locator(".values").inner_text() and "b " in waits.inner_text()
    rows = saved_rows(page)
    assert rows[0] == ["seconds", "a", "b"] and len(rows) == 61
    assert [float(row[1]) for row in rows[1:]] == pytest.approx(drawn()["loss"])
    assert len(re.findall(r'id="line \d"', saved(page, "SVG").decode())) == 2
    assert saved(page, "PDF").startswith(b"%PDF") and saved(page, "PNG").startswith(b"\x89PNG")


def pixels(chart, colour):
    """Return how much of a chart is drawn in a colour."""
    return chart.locator("canvas").evaluate(
        """(canvas, wanted) => {
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          let found = 0;
          const near = (at) => wanted.every((each, i) => Math.abs(data[at + i] - each) < 3);
          for (let at = 0; at < data.length; at += 4) found += near(at);
          return found;
        }""",
        colour,
    )


def test_a_value_without_neighbours_is_a_point(tab, store):
    [run] = group(store, "first", series={"lone": [3.0], "gap": [1.0, float("nan"), 2.0]})
    add_points(store, run.id, "run.cpu_s", [12.5], run.began + 60, 0, writer="keeper")
    page = tab().view(f"compare?run={run.id}")
    # Of a dot that was just redrawn, a browser knows no colour.
    colour_of = (
        "() => { const dot = document.querySelector('.dot'); return dot && getComputedStyle(dot).backgroundColor }"
    )
    shown = page.wait_for_function(colour_of).json_value()
    colour = [int(each) for each in shown[4:-1].split(",")]
    for name, points in (("lone", 1), ("gap", 2), ("run.cpu_s", 1)):
        chart = page.locator(f".chart[data-name='{name}']")
        chart.locator("canvas").wait_for()
        eventually(lambda chart=chart: pixels(chart, colour) > 0)
        drawn_alone = saved(page, "SVG", name).decode().partition('id="point 0"')[2].partition("</g>\n  </g>")[0]
        assert drawn_alone.count("<use") == points


WRITTEN = """
const written = CanvasRenderingContext2D.prototype.fillText;
window.texts = [];
CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
  const { width } = this.measureText(text);
  const left = { right: width, center: width / 2 }[this.textAlign] || 0;
  window.texts.push([text, x - left]);
  return written.call(this, text, x, y, ...rest);
};
"""


def test_the_labels_of_an_axis_are_shown_whole(tab, store):
    gib = [22.03714 + step * 1e-5 for step in range(40)]
    series = {
        "proc.rss_bytes": [each * 2**30 for each in gib],
        "tokens": [1e12 + 1e8 * step for step in range(40)],
    }
    [run] = group(store, "first", series=series)
    one = tab()
    one.page.add_init_script(WRITTEN)
    one.page.reload()
    page = one.view(f"compare?run={run.id}")
    page.locator(".chart canvas").nth(1).wait_for()
    texts = eventually(
        lambda: (
            (found := page.evaluate("texts"))
            and any("GiB" in text for text, _ in found)
            and any("1,00" in text for text, _ in found)
            and found
        )
    )
    assert "22.0371 GiB" in [text for text, _ in texts]
    assert [text for text, begin in texts if begin < 0] == []


def test_all_charts_show_one_part_of_the_time_and_values_only_where_a_run_has_some(tab, store):
    [long] = group(store, "long", seconds=100, series={"early": [1.0, 2.0], "loss": np.arange(101.0)})
    [short] = group(store, "short", runs=["b"], seconds=10, series={"loss": np.arange(11.0)})
    add_points(store, long.id, "late", [5.0, 6.0], long.began + 90, 1)
    one = tab()
    page = one.view(f"compare?run={long.id}&run={short.id}")
    page.locator(".chart canvas").nth(1).wait_for()
    chart = page.locator(".chart[data-name='loss']")
    values = chart.locator(".values")

    def at(part):
        box = chart.locator(".u-over").bounding_box()
        page.mouse.move(box["x"] + part * box["width"], box["y"] + 50)
        return values.inner_text().split()

    eventually(lambda: at(0.5)[:4] == ["50", "s", "a", "50"])
    assert "b" not in at(0.5)
    assert at(0.05)[-2:] == ["b", "5"]
    page = one.view(f"compare?run={long.id}&over=clock")
    page.locator(".chart canvas").first.wait_for()
    page.wait_for_timeout(300)
    eventually(lambda: ":" in (at(0.5) or [""])[1])


def test_what_is_saved_names_its_lines_also_where_two_have_one_name(tab, store):
    first, second = group(store, "first")[0], group(store, "first")[0]
    page = compared(tab, first, second, color_scheme="dark")
    chart = page.locator(".chart[data-name='loss']")
    chart.locator("canvas").wait_for()
    for kind in ("SVG", "CSV"):
        text = saved(page, kind).decode()
        assert f"a {first.id}" in text and f"a {second.id}" in text
    picture = saved(page, "PNG")
    with page.context.expect_page() as opened:
        page.evaluate("() => { open('about:blank') }")
    drawn_on = opened.value.evaluate(
        """async (bytes) => {
          const image = await createImageBitmap(new Blob([new Uint8Array(bytes)]));
          const canvas = new OffscreenCanvas(image.width, image.height);
          const pen = canvas.getContext("2d");
          pen.drawImage(image, 0, 0);
          return [image.width, image.height, ...pen.getImageData(1, 1, 1, 1).data];
        }""",
        list(picture),
    )
    width, height, *corner = drawn_on
    assert width == chart.locator("canvas").evaluate("canvas => canvas.width") and height > 220 + 40
    assert corner == [0x14, 0x18, 0x1D, 255]  # the page's own ground, not a hole


def test_a_part_of_the_time_is_looked_at_more_closely(tab, store):
    [run] = group(store, "first", series={"loss": np.arange(100_000.0)}, seconds=1000)
    page = compared(tab, run)

    def seconds_shown():
        rows = saved_rows(page)[1:]
        return float(rows[0][0]), float(rows[-1][0]), len(rows)

    begin, end, points = seconds_shown()
    assert (begin, end) == pytest.approx((0, 1000), abs=1) and points < 5000
    with page.expect_response("**/chart?*"):
        page.keyboard.press("+")
    page.wait_for_function("location.hash.includes('range=')")
    page.wait_for_timeout(300)
    begin, end, closer = seconds_shown()
    assert 100 < begin < end < 900 and closer <= 5000
    with page.expect_response("**/chart?*"):
        page.keyboard.press("0")
    page.wait_for_timeout(300)
    assert seconds_shown()[0] == pytest.approx(0, abs=1)


def test_the_part_of_the_time_that_was_asked_for_last_is_drawn(tab, store):
    [run] = group(store, "first", series={"loss": np.arange(100_000.0)}, seconds=1000)
    page = compared(tab, run)
    held = []
    page.route("**/chart?*", lambda route: held.append(route), times=1)  # noqa: PLW0108 - it has to be a function
    with page.expect_request("**/chart?*"):
        page.keyboard.press("+")
    page.keyboard.press("+")
    page.wait_for_timeout(300)  # until nobody moves any more
    asked = page.evaluate("location.hash").partition("range=")[2].split("%2C")
    with page.expect_response(lambda answer: f"begin={asked[0]}&end={asked[1]}" in answer.url):
        held[0].continue_()


def test_who_moves_long_and_fast_gets_there(tab, store):
    [run] = group(store, "first", series={"loss": [1.0, 2.0]}, seconds=1000)
    page = compared(tab, run, more="&range=0,100")
    page.evaluate(
        """() => {
          for (let turn = 0; turn < 300; turn++)
            document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
        }"""
    )
    eventually(lambda: page.evaluate("location.hash").endswith("range=7500%2C7600"))


def test_a_link_shows_the_part_of_the_time_that_it_names_where_a_gap_stays_one(tab, store):
    [run] = group(store, "first", series={"loss": [1.0, 2.0, float("nan"), 3.0, 4.0]}, seconds=600)
    page = compared(tab, run, more="&range=100,500")
    drawn = saved(page, "SVG").decode()
    assert all(text in drawn for text in (">100<", ">500<", ">time (s)<")) and ">0<" not in drawn
    path = re.search(r'id="line 0">\s*<path d="([^"]*)"', drawn)[1]
    assert (path.count("M"), path.count("L")) == (2, 2)


def test_what_a_run_logs_last_is_shown_once_it_has_ended(tab, store):
    [run] = group(store, "goes", status=None)
    page = tab().view(f"compare?run={run.id}&series=accuracy")
    with page.expect_response("**/titles?*"):
        page.get_by_text("No series has these words").wait_for()
    add_points(store, run.id, "accuracy", [0.5, 0.6], run.began + 61, 1)
    store.ended(run.id, "finished", 0)
    page.locator(".chart canvas").wait_for()


def test_what_somebody_holds_stays_while_charts_come_and_no_point_is_left_out(tab, store):
    [run] = group(store, "goes", status=None)
    page = compared(tab, run)
    held = page.get_by_role("button", name="Save loss as CSV")
    held.evaluate("(button) => { button.focus(); button.onblur = () => { window.left = true; }; }")
    add_points(store, run.id, "accuracy", [0.5, 0.6], run.began + 61, 1)
    page.locator(".chart[data-name=accuracy]").wait_for()
    assert page.evaluate("[document.activeElement.textContent, window.left]") == ["CSV", None]
    add_points(store, run.id, "loss", range(60), run.began + 61, 59)
    eventually(lambda: len(saved_rows(page)) == 1 + 120)


def test_groups_stand_beside_each_other_with_the_sentence_above_and_the_best_marked(tab, store):
    alone = group(store, "small", runs=["a", "b"], mode="alone", seconds=100)
    more = {"proc.rss_bytes": [3e9, 4e9], "proc.pss_bytes": [1e9, 2e9], "energy.package0_j": [0, 30_000]}
    plain = group(store, "small", runs=["a", "b"], seconds=60, series=drawn() | more)
    feed = group(store, "one feed", runs=["a", "b"], seconds=40)
    chosen = [each[0].group_id for each in (plain, alone, feed)]
    page = tab().view("time?" + "&".join(f"group={id}" for id in chosen))
    page.get_by_text("sooner than one after the other").first.wait_for()
    table = page.get_by_role("table", name="Groups compared")
    assert [head.split() for head in table.locator("thead th").all_inner_texts()] == [
        ["alone", "small"],
        ["plain", "small"],
        ["plain", "one", "feed"],
    ]
    cells = {
        row.locator("th").inner_text(): [cell.split() for cell in row.locator("td").all_inner_texts()]
        for row in table.locator("tbody tr").all()
    }
    assert cells["runs"] == [["2"], ["2"], ["2"]]
    assert cells["time of all"] == [["1:40"], ["1:00", "0.6×"], ["40.0", "s", "best", "0.4×"]]
    assert cells["energy, measured"] == [["–"], ["30", "kJ"], ["–"]]
    assert cells["waits for data, worst run"][0] == ["24%", "best"]
    assert cells["memory at most, all"][1] == ["3.73", "GiB", "3.6×"]
    assert page.locator(".bar").first.get_attribute("aria-label").startswith("starts 0%, waits for data 24%")
    page.get_by_role("button", name="one feed (plain)").click()
    page.locator("thead th").nth(2).wait_for(state="detached")
    assert page.evaluate("document.activeElement.textContent") == "one feed (plain)"


def test_the_groups_that_are_chosen_at_first_can_be_left_out(tab, store):
    for name in ("oldest", "older", "newest"):
        group(store, name)
    group(store, "of two runs", runs=["a", "b"], status="failed")
    page = tab().view("time")
    page.get_by_role("heading", name="older (plain)").wait_for()
    assert not page.get_by_role("button", name="oldest (plain)", pressed=True).count()
    page.get_by_role("button", name="newest (plain)", pressed=True).click()
    page.get_by_role("button", name="older (plain)", pressed=True).click()
    page.get_by_text("No group is chosen").wait_for()
    page.get_by_role("button", name="older (plain)", pressed=False).click()
    page.get_by_role("heading", name="older (plain)").wait_for()
    assert not page.get_by_role("button", name="newest (plain)", pressed=True).count()


def test_repeats_of_two_names_are_compared_at_first_and_a_group_that_is_deleted_goes(tab, store):
    for at in range(2):
        for name, seconds in (("own", 100.0), ("shared", 40.0)):
            group(store, name, seconds=seconds + at, began=1_790_000_000.0 + 1000 * at)
    one = tab()
    page = one.view("time")
    for name in ("own", "shared"):
        page.get_by_role("button", name=f"{name} (plain) all 2 groups, 2 runs", pressed=True).wait_for()
    for run in store.runs():
        if run.group == "own":
            store.delete([run.id])
    page.get_by_role("heading", name="own (plain)").wait_for(state="detached")
    page.get_by_role("heading", name="shared (plain)").wait_for()
    assert not page.locator("#trouble").text_content()


def test_what_a_selection_costs_and_saves_stands_below_the_groups(tab, store, monkeypatch):
    full = group(store, "noisy/full 100%", runs=["a", "b"], seconds=120, series=reached(100, 80))
    half = group(store, "noisy/sketch 50%", runs=["a", "b"], seconds=60, series=reached(55, 82.25))
    for record in half:
        read_scores(store, record.id, monkeypatch)
    one = tab(color_scheme="dark", viewport={"width": 390, "height": 1100})
    page = one.view(f"time?group={full[0].group_id}&group={half[0].group_id}")
    page.get_by_role("heading", name="Was selecting worth it?").wait_for()
    table = page.get_by_role("table", name="What the selection of noisy/sketch 50% costs and saves")
    rows = [row.locator("th, td").all_inner_texts() for row in table.locator("tbody tr").all()]
    assert rows[:2] == [["minutes", "1.5", "2", "1", "2 runs"], ["CPU-seconds", "60", "100", "55", "2 runs"]]
    heads = table.locator("thead th").all_inner_texts()
    assert heads == ["scoring", "a run of noisy/full 100%", "a run of noisy/sketch 50%", "paid after"]
    assert rows[3] == ["accuracy", "", "80 (80 to 80)", "82.25 (82.25 to 82.25)", ""]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    one.picture("selecting-dark-390")
    page.get_by_role("button", name="noisy/full 100% (plain)").click()
    page.get_by_text("Choose a group of runs on all samples, too").wait_for()
    assert "Scoring took 1:30." in page.locator("main").inner_text()


def test_advice_for_runs_that_go_on_is_given_once_and_names_the_run_that_waits_most(tab, store):
    series = {"loss": [1.0, 2.0]}
    runs = group(store, "goes", runs=["a", "b"], status=None, series=series, began=time.time() - 60)
    for run, wait_s in zip(runs, (30.0, 45.0), strict=True):
        add_points(store, run.id, "feed.wait_s", [0.0, wait_s], time.time() - 60, 60)
    page = tab().view(f"time?group={runs[0].group_id}")
    page.locator(".verdict").first.wait_for()
    [said] = page.locator(".verdict").all_inner_texts()
    assert said.startswith("b waits ") and said.endswith("(2 of the runs do, this one the most).")


def test_groups_of_one_name_are_told_apart_and_short_epochs_too(tab, store):
    series = [drawn() | {"feed.epoch_s": [epoch_s, epoch_s]} for epoch_s in (0.048, 0.0131)]
    both = [group(store, "small", series=each, began=1_790_000_000 + 60 * at)[0] for at, each in enumerate(series)]
    page = tab().view("time?" + "&".join(f"group={run.group_id}" for run in both))
    row = page.get_by_role("row", name="time of an epoch")
    row.wait_for()
    assert row.inner_text().split() == ["time", "of", "an", "epoch", "0.048", "s", "0.013", "s", "best", "0.27×"]
    names = page.get_by_role("group", name="Groups").get_by_role("button").all_inner_texts()
    assert len(set(names)) == 3 and sum(":" in name for name in names) == 2
    assert "small (plain) all 2 groups, 2 runs" in names


def test_a_search_among_many_groups_of_one_name_looks_at_each_once(tab, store):
    for _ in range(120):
        group(store, "train.py", series={"loss": [1.0]})
    page = tab().view("time")
    search = page.get_by_role("searchbox", name="Search groups")
    search.wait_for()
    page.evaluate(
        """() => {
          window.looked = 0;
          const own = Array.prototype.map;
          Array.prototype.map = function (...how) { window.looked += this.length; return own.apply(this, how); };
        }"""
    )
    search.fill("train")
    page.get_by_text("the newest 12 of 121 groups: search for others").wait_for()
    assert page.evaluate("window.looked") < 60 * 120, "at all of them for each"


def test_which_of_groups_is_best_is_not_said_where_nobody_knows(tab, store):
    alone = group(store, "small", runs=["a", "b"], mode="alone", seconds=100)
    other = group(store, "small", seconds=60)
    broken = group(store, "small", runs=["a", "b"], status="failed", mode="mps", seconds=10)
    one = tab()
    page = one.view(f"time?group={other[0].group_id}&group={alone[0].group_id}")
    row = page.get_by_role("row", name="time of all")
    assert row.inner_text().split() == ["time", "of", "all", "1:40", "1:00"]  # of two runs, and of one
    assert page.get_by_role("row", name="time of each run").inner_text().split()[-3:] == ["1:00", "best", "0.6×"]
    page = one.view(f"time?group={broken[0].group_id}&group={alone[0].group_id}")
    page.get_by_text("cannot be compared: 2 of their runs did not finish").wait_for()
    assert page.get_by_text("best", exact=True).count() == 0


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
    group(store, "first", runs=["later"], seconds=500)
    group(store, "second", runs=["sooner"], seconds=50)
    page.get_by_role("heading", name="Ended last").wait_for()
    eventually(lambda: page.locator("main li a").all_inner_texts() == ["later", "sooner"])


STAND_IN = """<!doctype html><title>Perfetto</title><script>
  addEventListener("message", ({ data, source }) => {
    if (data === "PING") setTimeout(() => source.postMessage("PONG", "*"), 300);
    else document.body.textContent = data.perfetto.title + ": " + new TextDecoder().decode(data.perfetto.buffer);
  });
</script><body>loads</body>"""


def test_a_runs_files_are_downloaded_and_its_trace_goes_to_perfetto_within_the_browser(tab, store):
    [run] = group(store, "one")
    files = store.folder_of(run.id) / "files"
    files.mkdir()
    (files / "model.pt").write_bytes(b"weights")
    (files / "torch-7.json").write_text('{"traceEvents": []}')
    one = tab()
    sent = []
    one.context.route(
        "https://ui.perfetto.dev/**",
        lambda route: (sent.append(route.request), route.fulfill(body=STAND_IN, content_type="text/html")),
    )
    page = one.view(f"run/{run.id}")
    with page.expect_download() as saved:
        page.get_by_role("link", name="model.pt").click()
    assert Path(saved.value.path()).read_bytes() == b"weights"
    assert page.get_by_role("button", name="Open model.pt in Perfetto").count() == 0
    assert page.get_by_text("nothing is uploaded").count() == 1
    with page.expect_popup() as opened:
        page.get_by_role("button", name="Open torch-7.json in Perfetto").click()
    opened.value.get_by_text('torch-7.json: {"traceEvents": []}').wait_for()
    assert all(request.method == "GET" for request in sent)


def test_files_are_listed_again_only_once_they_have_changed(tab, store):
    [run] = group(store, "one", status=None)
    files = store.folder_of(run.id) / "files"
    files.mkdir()
    (files / "first.pt").write_bytes(b"weights")
    one = tab()
    listed: list[int] = []
    one.page.on("response", lambda answer: answer.url.endswith("/files") and listed.append(answer.status))
    page = one.view(f"run/{run.id}")
    row = page.get_by_role("row", name="first.pt")
    row.wait_for()
    eventually(lambda: page.wait_for_timeout(100) or len(listed) > 2)
    assert set(listed[1:]) == {304}, "what has not changed was sent again"
    (files / "second.pt").write_bytes(b"more")
    page.get_by_role("row", name="second.pt").wait_for()
    assert row.count() == 1


@by_number
def test_gpus_are_shown_with_the_runs_that_are_on_them(tab, store, open_page, fake_gpus: FakeGpus):
    [run] = group(store, "goes", runs=["lr=0.1"], status=None)  # kept by this process
    fake_gpus.add(utilisation=97, used_bytes=20 << 30, power_mw=412_000, processes=[[os.getpid(), 5 << 30]])
    fake_gpus.add(processes=[[1, 1 << 30]], reasons=0x4)
    page = tab(open_page(environment=fake_gpus.environment)).view("now")
    first, second = (page.locator("section.card", has_text=f"GPU {index}") for index in (0, 1))
    first.get_by_text("20 GiB of 80 GiB").wait_for()
    assert first.get_by_role("img", name="busy 97%").count() == 1
    assert first.get_by_text("412 W").count() == 1
    its = first.get_by_role("list", name="Runs on it")
    assert its.inner_text().split() == ["lr=0.1", "5", "GiB"]
    assert its.get_by_role("link").get_attribute("href") == f"#/run/{run.id}"
    assert second.get_by_text("1 process of no run").count() == 1
    second.get_by_text("held down by").wait_for()
    fake_gpus.set(0, power_mw=100_000)
    first.get_by_text("100 W").wait_for()


def test_what_somebody_holds_stays_while_the_page_of_now_goes_on(tab, store):
    first, second = group(store, "goes", runs=["a", "b"], status=None)
    page = tab().view("now")
    page.get_by_text("loss 0.748").nth(1).wait_for()
    link = page.get_by_role("link", name="b", exact=True)
    link.focus()
    link.evaluate(
        "(link) => { getSelection().selectAllChildren(link); link.onblur = () => { window.left = true; }; }"
    )
    add_points(store, second.id, "loss", [0.125], second.began + 61, 0)
    page.get_by_text("loss 0.125").wait_for()
    store.ended(first.id, "failed", 1, "boom")
    page.get_by_text("boom").wait_for()
    assert page.evaluate("[getSelection().toString(), document.activeElement.textContent, window.left]") == [
        "b",
        "b",
        None,
    ]


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
    [run] = group(store, "goes", status=None)
    page = one.view(f"compare?run={run.id}")
    page.locator(".chart canvas").first.wait_for()
    server.close()
    page.locator("#link", has_text="the server does not answer: trying again").wait_for()
    one.view("runs")
    group(store, "meanwhile")
    again = open_page("--port", str(server.port))
    page.get_by_text("the server was started again: open the URL that it has printed").first.wait_for()
    other = one.context.new_page()
    other.goto(again.url)
    page.get_by_text("meanwhile").first.wait_for()
    page.get_by_text("live", exact=True).wait_for()
    assert page.locator("#trouble").text_content() == ""


def test_an_open_chart_says_once_that_its_server_is_away(tab, store, open_page):
    [run] = group(store, "goes", status=None)
    server = open_page()
    one = tab(server)
    one.may_complain = True  # of the server that is away
    page = one.view(f"compare?run={run.id}&series=loss")
    page.locator(".chart canvas").wait_for()
    page.context.route("**/api/**", lambda route: route.abort())
    for _ in range(2):
        with page.expect_event("requestfailed", lambda request: "/newest" in request.url):
            pass
    assert page.get_by_role("alert").count() == 0


WATCH = """() => {
  const body = document.querySelector("main tbody");
  window.changed = [];
  const id = ({ target }) => (target.closest("tr") || target).dataset.id;
  const told = (seen) => window.changed.push(...seen.map(id));
  new MutationObserver(told).observe(body, { childList: true, subtree: true, attributes: true });
}"""


def test_what_changes_in_the_table_changes_nothing_else(tab, store):
    [goes] = group(store, "goes", status=None, series={"loss": [1.0]})
    ended = group(store, "first", runs=["a", "b", "c"])
    page = tab().view("runs")
    page.locator("tbody tr", has_text=ended[0].id).get_by_text("loss").wait_for()  # all that is known has come
    page.evaluate(WATCH)
    add_points(store, goes.id, "loss", [0.125], goes.began + 1, 0)
    page.get_by_text("loss 0.125").wait_for()
    assert set(page.evaluate("window.changed")) == {goes.id}


def test_what_somebody_holds_stays_where_it_is_while_rows_come_and_go_around_it(tab, store):
    first = group(store, "first", runs=["a", "b", "c"], status=None, series={"loss": [1.0]})
    page = tab().view("runs?sort=status")
    page.get_by_role("button", name="Pin b of first").focus()
    page.get_by_text("b", exact=True).evaluate(
        "(link) => { link.closest('tr').id = 'kept'; getSelection().selectAllChildren(link); }"
    )
    page.evaluate("document.querySelector('#kept button').addEventListener('blur', () => { window.left = true; })")
    group(store, "second", runs=["d", "e"])
    store.ended(first[0].id, "failed", 1, "boom")
    store.ended(first[2].id, "killed", 137, "")
    store.remove([first[2].id])
    page.get_by_text("4 of 4 runs").wait_for()
    page.get_by_text("failed (1)").wait_for()
    assert names(page) == ["a", "d", "e", "b"]
    assert page.evaluate("[getSelection().toString(), window.left]") == ["b", None]
    page.get_by_role("button", name="Pin b of first").press("Enter")
    assert names(page) == ["b", "a", "d", "e"]
    assert page.locator("#kept td.name").first.inner_text() == "b"


def test_ten_thousand_runs_are_filtered_and_sorted_like_three(tab, store):
    plan = [
        RunPlan(command=("python", "train.py"), name=f"run-{i:05}", directory="/", parameters={"lr": str(i)})
        for i in range(10_000)
    ]
    store.add(GroupPlan(name="many", mode="plain", runs=tuple(plan)))
    with store._lock:
        sql = "UPDATE runs SET status = 'finished', began = position, ended = 2 * position + 1"
        store._connection.execute(sql)
    page = tab().view("runs")
    page.get_by_text("10000 of 10000 runs").wait_for()
    assert page.locator("main tbody tr").count() == 50, "as far as one looks"
    page.get_by_role("button", name="Show more").click()
    assert page.locator("main tbody tr").count() == 100
    page.get_by_role("searchbox").fill("lr=7777")
    assert names(page) == ["run-07777"]
    page.get_by_role("searchbox").fill("")
    assert names(page)[:2] == ["run-09999", "run-09998"]
    page.get_by_role("button", name="run", exact=True).click()
    page.get_by_role("button", name="run ↓", exact=True).click()
    assert names(page)[:2] == ["run-00000", "run-00001"]


def test_hundreds_of_runs_that_go_on_do_not_keep_the_page_busy(tab, store):
    group(store, "many", runs=[f"run-{i:03}" for i in range(300)], series={"loss": [1.0, 2.0]}, status=None)
    page = tab().page
    page.get_by_text("… and 200 more, in the table of runs.").wait_for()
    assert page.locator("main .cards .card").count() == 100
    browser = page.context.new_cdp_session(page)
    browser.send("Performance.enable")

    def layouts() -> int:
        return next(
            each["value"]
            for each in browser.send("Performance.getMetrics")["metrics"]
            if each["name"] == "LayoutCount"
        )

    page.evaluate(
        """() => {
          window.made = 0;
          const own = Number.prototype.toLocaleString;
          Number.prototype.toLocaleString = function (...how) { window.made += 1; return own.apply(this, how); };
        }"""
    )
    before = layouts()
    page.wait_for_timeout(3000)
    assert layouts() - before < 60, "the page is laid out for each card, where once a second is enough"
    assert page.evaluate("window.made") == 0, "a formatter is made for each number"
    page.get_by_role("link", name="table of runs").click()
    page.get_by_text("300 of 300 runs").wait_for()


def test_only_charts_in_sight_are_drawn(tab, store):
    [run] = group(store, "wide", series={f"series {i:02}": [1.0, 2.0] for i in range(60)})
    page = compared(tab, run)
    page.wait_for_timeout(500)
    assert page.locator(".chart").count() == 60
    assert page.locator(".chart canvas").count() < 20
    page.locator(".chart").last.scroll_into_view_if_needed()
    page.locator(".chart").last.locator("canvas").wait_for()
