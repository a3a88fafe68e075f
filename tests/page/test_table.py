"""The table of runs as one that people work with: columns of parameters and of what is logged, limits, groups."""

from __future__ import annotations

import math
import re
import time

import pytest
from tests.forked import eventually
from tests.web.seeded import group

from penstock.runs.store.notes import Change

pytestmark = pytest.mark.page


def sweep(store, count: int = 6) -> None:
    for at in range(count):
        parameters = {"lr": f"0.{at + 1}", "optimizer": "adam" if at % 2 else "sgd", "seed": "0"}
        series = {"loss": [3.0, 0.5 + abs(at - 3), 1.0 + abs(at - 3)], "accuracy": [0.1, 0.9 - at / 10]}
        group(store, "sweep", runs=[f"run {at}"], parameters=parameters, series=series)


TEXTS = """(heading) => {
  const headings = [...document.querySelectorAll("main thead th")].map((each) => each.innerText);
  const place = headings.findIndex((each) => each.replace(/ [↓↑]$/, "") === heading);
  return [...document.querySelectorAll("main tbody tr[data-id]")].map((row) => row.cells[place].innerText);
}"""


def column(page, heading: str) -> list[str]:
    """The texts of a column, from the top."""
    return page.evaluate(TEXTS, heading)


def test_parameters_that_vary_are_columns_and_sorted_as_numbers(tab, store):
    sweep(store, 10)
    page = tab().view("runs")
    page.get_by_text("10 of 10 runs").wait_for()
    headings = page.locator("main thead th").all_inner_texts()
    assert headings[3:5] == ["lr", "optimizer"] and "seed" not in headings
    page.get_by_role("button", name="lr", exact=True).click()
    page.get_by_role("button", name="lr ↓").click()
    assert column(page, "lr") == ["0.1", "0.10", *(f"0.{at}" for at in range(2, 10))]
    page.get_by_role("searchbox").fill("lr>0.75")
    assert sorted(column(page, "lr")) == ["0.8", "0.9"]


def test_options_of_a_script_are_columns_if_they_have_several_values(tab, store):
    for lr, *more in (["0.1"], ["0.3", "--amp"], ["1"]):
        group(store, "loop", command=["python", "train.py", "--lr", lr, "--width=8", *more])
    page = tab().view("runs")
    page.get_by_text("3 of 3 runs").wait_for()
    assert page.locator("main thead th").all_inner_texts()[3:5] == ["lr", "group"]
    assert sorted(column(page, "lr")) == ["0.1", "0.3", "1"]
    page.get_by_text("Columns", exact=True).click()
    page.get_by_label("Column amp").check()
    assert sorted(column(page, "amp")) == ["", "", "true"]


def test_what_is_logged_is_chosen_as_columns_sorted_filtered_and_kept_in_the_address(tab, store):
    sweep(store)
    one = tab()
    page = one.view("runs")
    page.get_by_text("6 of 6 runs").wait_for()
    eventually(lambda: "loss" in column(page, "logs")[0])
    page.get_by_text("Columns", exact=True).click()
    page.get_by_label("Column last accuracy").check()
    page.get_by_label("Column least loss").check()
    page.get_by_label("Column began").uncheck()
    one.picture("runs columns")
    page.get_by_text("Columns", exact=True).click()
    headings = page.locator("main thead th").all_inner_texts()
    assert headings.index("least loss") == headings.index("run") + 1, "what was chosen last is in sight"
    page.get_by_role("button", name="least loss", exact=True).click()
    page.get_by_role("button", name="least loss ↑").wait_for()
    eventually(lambda: column(page, "least loss")[:1] == ["0.5"])
    assert column(page, "run")[0] == "run 3"
    assert "began" not in page.locator("main thead").inner_text()
    page.get_by_role("searchbox").fill("waits>50")
    eventually(lambda: len(column(page, "run")) == 0)
    page.get_by_role("searchbox").fill("time>59 time<61")
    eventually(lambda: len(column(page, "run")) == 6)
    page.get_by_role("searchbox").fill("accuracy>=0.6")
    eventually(lambda: len(column(page, "accuracy")) == 4)
    page.wait_for_url(re.compile("filter=accuracy"))  # earlier filters were written there, too
    page.reload()
    eventually(lambda: len(column(page, "accuracy")) == 4)
    assert column(page, "run")[0] == "run 3"


def test_a_filter_compares_numbers_and_fields_and_says_why_nothing_is_left(tab, store):
    for lr, status in (("1e-3", "failed"), ("0.01", "finished"), ("0.0011", "finished")):
        group(store, "sweep", runs=[f"at {lr}"], parameters={"lr": lr}, status=status)
    page = tab().view("runs")
    page.get_by_text("3 of 3 runs").wait_for()
    store.annotate([run.id for run in store.runs() if run.name == "at 0.01"], Change(tag=("good",)))
    page.get_by_role("cell", name="good").wait_for()
    for words, runs in {
        "lr=0.001": ["at 0.0011", "at 1e-3"],  # and what begins so
        "lr=.0010": ["at 1e-3"],
        "-lr=0.001": ["at 0.01"],
        "status=fail": ["at 1e-3"],
        "name=0.01 group=sweep": ["at 0.01"],
        "tag=good": ["at 0.01"],
        "tag=goo": [],
        "name=sweep": [],
    }.items():
        page.get_by_role("searchbox").fill(words)
        eventually(lambda runs=runs: sorted(column(page, "run")) == runs, words)
    page.get_by_text("No run fits “name=sweep”: all of its words must.").wait_for()


def test_what_has_diverged_is_shown_and_last_in_any_order(tab, store):
    for name, last in {"a": 0.5, "b": math.nan, "c": -math.inf, "d": 2.0, "e": math.inf}.items():
        group(store, "sweep", runs=[name], parameters={"lr": name}, series={"loss": [1.0, last]})
    group(store, "sweep", runs=["f"], parameters={"lr": "f"}, series={"other": [1.0]})
    one = tab()
    page = one.view("runs?col=name&col=last:loss&sort=last:loss")
    rising = ["0.5", "2", "−∞", "∞", "NaN", ""]
    eventually(lambda: column(page, "loss") == rising, lambda: str(column(page, "loss")))
    page.get_by_role("button", name="loss ↑").click()
    eventually(lambda: column(page, "loss") == ["2", "0.5", "NaN", "∞", "−∞", ""])
    page = one.view("parameters?metric=last:loss")
    page.get_by_role("link", name="b: lr b, last loss NaN").first.wait_for()
    one.picture("parameters diverged")
    places = [page.get_by_role("link", name=f"{run}: lr").locator("circle").get_attribute("cy") for run in "adceb"]
    assert places == sorted(places, key=float, reverse=True)  # what has diverged lies above


def test_what_was_never_a_number_is_shown_as_that_on_a_runs_page_too(tab, store):
    [run] = group(store, "sweep", parameters={"lr": "9"}, series={"loss": [math.nan, math.nan]})
    group(store, "sweep", parameters={"lr": "1"}, series={"loss": [1.0, 2.0]})
    one = tab()
    page = one.view("runs?col=least:loss&sort=least:loss")
    eventually(lambda: column(page, "least loss") == ["1", "NaN"])
    page = one.view("parameters?metric=least:loss")
    page.get_by_role("link", name="lr 9, least loss NaN").last.wait_for()
    page = one.view(f"run/{run.id}")
    page.get_by_role("row", name=re.compile("^loss NaN NaN")).wait_for()


def test_one_run_that_a_filter_leaves_keeps_the_parameters_that_differ(tab, store):
    sweep(store)
    page = tab().view("runs")
    page.get_by_text("6 of 6 runs").wait_for()
    page.get_by_role("searchbox").fill("name=3")
    eventually(lambda: column(page, "run") == ["run 3"])
    assert column(page, "lr") != [""]


def test_the_best_of_those_shown_is_marked(tab, store):
    sweep(store)
    one = tab()
    columns = "col=name&col=least:loss&col=last:accuracy&col=last:loss&col=param:lr"
    page = one.view(f"runs?{columns}")
    best = page.locator("main td.best")
    eventually(lambda: best.all_inner_texts() == ["0.5", "1", "0.9"])
    assert best.first.get_attribute("title") == "the best of those shown"
    one.picture("best")
    page.get_by_role("searchbox").fill("lr<0.35")
    eventually(lambda: best.all_inner_texts() == ["1.5", "2", "0.9"])
    page.get_by_role("searchbox").fill("lr<0.15")
    eventually(lambda: not best.count())


def test_what_goes_on_tells_how_long_it_takes_yet(tab, store):
    began = time.time() - 1000
    logs = {"step": [90_000.0, 90_125.0, 90_250.0], "epoch": [0.0, 1.0, 2.0]}  # it was resumed
    for name, parameters in (("steps", {"max_steps": "91000", "epochs": "3"}), ("none", {"lr": "1"})):
        group(store, name, runs=[name], status=None, began=began, seconds=1000, series=logs, parameters=parameters)
    group(store, "epochs", runs=["epochs"], parameters={"num_train_epochs": "8"}, series=logs)
    one = tab()
    page = one.view("runs")
    page.get_by_text("3 of 3 runs").wait_for()
    eventually(lambda: column(page, "left")[2] == "~50:00")
    assert column(page, "left")[:2] == ["", ""]
    [run] = [run for run in store.runs() if run.name == "steps"]
    page = one.view("now")
    page.locator(f"[data-id={run.id}]").get_by_text("~50:00 (step 90,250 of 91,000)").wait_for()
    page = one.view(f"run/{run.id}")
    page.get_by_text("about 50:00 left (step 90,250 of 91,000) · steps").wait_for()
    one.picture("left")


def test_columns_are_searched_reach_all_and_close(tab, store):
    group(store, "many", series={f"metric {at:03}": [float(at)] for at in range(150)})
    page = tab().view("runs")
    page.get_by_text("1 of 1 runs").wait_for()
    eventually(lambda: "metric" in column(page, "logs")[0])
    page.get_by_text("Columns", exact=True).click()
    page.get_by_text("… and 50 more: search for them").wait_for()
    page.get_by_label("Search columns").fill("metric 149")
    page.get_by_label("Column last metric 149").check()
    eventually(lambda: column(page, "metric 149") == ["149"])
    page.keyboard.press("Escape")
    page.get_by_label("Search columns").wait_for(state="hidden")
    page.get_by_text("Columns", exact=True).click()
    page.get_by_text("1 of 1 runs").click()
    page.get_by_label("Search columns").wait_for(state="hidden")


def test_columns_reach_what_only_runs_log_that_are_not_shown(tab, store):
    group(store, "old", series={"rare": [7.0]})
    group(store, "new", runs=[f"run {at}" for at in range(60)], began=1_790_000_100.0, series={"usual": [1.0]})
    page = tab().view("runs")
    page.get_by_text("61 of 61 runs").wait_for()
    page.get_by_text("Columns", exact=True).click()
    page.get_by_label("Column last rare").check()
    page.locator("main thead").get_by_role("button", name="rare", exact=True).wait_for()


def test_numbers_that_are_equal_are_one_value_however_they_are_written(tab, store):
    for at, lr in enumerate(("1e-3", "0.001", "0.01")):
        group(
            store,
            "sweep",
            runs=[f"lr={lr}"],
            parameters={"lr": lr, "seed": f"1234567890123456789{at}", "id": f"00{at}"},
        )
    one = tab()
    rows = one.page.locator("main tbody tr")
    for name, groups in {"lr": 2, "seed": 3, "id": 3}.items():
        one.view(f"runs?group=param:{name}")
        eventually(lambda n=groups: rows.count() == 3 + n)


@pytest.mark.parametrize("address", ["__proto__", "constructor", "%"])
def test_an_address_that_nobody_has_made_shows_what_runs_now_and_says_so(tab, store, address):
    group(store, "one")
    page = tab().view(address)
    page.get_by_role("alert").get_by_text("There is no view").wait_for()
    page.locator("nav a[aria-current]", has_text="Now").wait_for()


def test_the_band_around_a_mean_is_what_was_asked_for(tab, store):
    for at in range(4):
        group(
            store, "seeds", runs=[f"seed {at}"], parameters={"lr": "0.1"}, series={"loss": [float(at), 2.0 * at]}
        )
    one = tab()
    page = one.view("compare?group=name")
    page.get_by_text("Band: from the least to the greatest.").wait_for()
    with page.expect_request(lambda request: "/api/chart" in request.url and "band=error" in request.url):
        page.get_by_label("Band", exact=True).select_option("error")
    page.get_by_text("Band: error of the mean.").wait_for()
    page.wait_for_url(re.compile("band=error"))
    page.locator("canvas").first.wait_for()
    one.picture("compare error of the mean")


def test_runs_are_grouped_by_a_parameter(tab, store):
    sweep(store)
    page = tab().view("runs")
    page.get_by_text("6 of 6 runs").wait_for()
    page.get_by_label("Group by").select_option("optimizer")
    assert page.locator("tr.group").all_inner_texts() == ["optimizer = adam", "optimizer = sgd"]
    assert column(page, "optimizer") == ["adam"] * 3 + ["sgd"] * 3


def test_the_table_and_what_chooses_its_columns_fit_on_any_screen(tab, store):
    sweep(store)
    one = tab()
    for width in (1280, 640, 390):
        one.page.set_viewport_size({"width": width, "height": 700})
        page = one.view("runs?group=param:optimizer")
        page.reload()
        page.get_by_text("6 of 6 runs").wait_for()
        one.picture(f"runs {width}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if width > 600:  # a phone has no room for what is logged unless it is asked for
            eventually(lambda page=page: "loss" in (page.locator("main tbody").text_content() or ""))
        page.get_by_text("Columns", exact=True).click()
        page.get_by_label("Column most accuracy").wait_for()
        one.picture(f"runs {width} columns")
        box = page.locator(".columns").bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    # The phone shows the columns that are ticked, and those that are asked for.
    labels = "boxes => boxes.map(each => each.getAttribute('aria-label'))"
    names = [label.split()[-1] for label in page.locator(".columns input:checked").evaluate_all(labels)]
    shown = page.locator("main thead th button").all_inner_texts()
    assert sorted(names) == sorted(shown) and "began" not in shown
    page.get_by_label("Column began").check()
    page.get_by_role("button", name="began", exact=True).wait_for()


def test_a_name_that_every_object_has_is_like_any_other(tab, store):
    group(
        store, "odd", runs=["a"], series={"loss": [1.0], "constructor": [2.0, 3.0]}, parameters={"toString": "1"}
    )
    group(store, "plain", runs=["b"], series={"loss": [1.0]})
    page = tab().view("runs?col=name&col=last:constructor&col=param:toString")
    eventually(lambda: column(page, "constructor") == ["", "3"])
    assert column(page, "toString") == ["", "1"]
    page.get_by_role("searchbox").fill("constructor>2")
    page.get_by_text("1 of 2 runs").wait_for()
