"""Charts of what a script logs: over steps, smoothed, on a logarithmic scale, on a run's own page."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from tests.forked import eventually
from tests.web.seeded import add_points, drawn, group

pytestmark = pytest.mark.page


def training(seed: int = 0, points: int = 200) -> dict[str, list[float]]:
    rng = np.random.default_rng(seed)
    loss = 2 * np.exp(-np.arange(points) / 60) + 0.1 * rng.random(points)
    loss[50] = math.nan
    return {
        **drawn(),
        "loss": loss.tolist(),
        "train/accuracy": (1 - loss / 3).tolist(),
        "step": [10.0 * at for at in range(points)],
        "proc.threads": [4.0] * 60,
    }


def titles(page) -> list[str]:
    return [text.split("\n")[0].strip() for text in page.locator(".chart h3 span").all_inner_texts()]


def test_a_runs_page_begins_with_its_charts_what_it_logs_first_and_folds_the_rest(tab, store):
    [run] = group(store, "one", series=training())
    one = tab()
    page = one.view(f"run/{run.id}")
    page.locator(".chart canvas").first.wait_for()
    assert titles(page) == [
        "loss", "train/accuracy", "Waits for data % of the time", "CPU of its processes cores",
        "Memory of its processes bytes",
    ]  # fmt: skip
    chart, output = page.locator(".chart").first, page.get_by_role("heading", name="Output")
    assert chart.bounding_box()["y"] < output.bounding_box()["y"]
    one.picture("run")
    page.get_by_text("3 more series").click()
    page.locator(".chart canvas").nth(7).wait_for()
    assert titles(page)[-3:] == ["In loops over loaders % of the time", "Threads", "step"]


def test_charts_are_drawn_over_steps_smoothed_and_on_a_log_scale_and_the_address_keeps_it(tab, store):
    runs = [group(store, f"lr {at}", series=training(at))[0] for at in range(2)]
    one = tab()
    page = one.view("compare?" + "&".join(f"run={run.id}" for run in runs) + "&series=loss")
    page.locator(".chart canvas").first.wait_for()
    values = page.locator(".chart .values")
    eventually(lambda: "least" in values.inner_text())
    assert "NaN" in values.inner_text() and "a " in values.inner_text()
    page.get_by_label("Horizontal axis").select_option("step")
    page.get_by_role("button", name="Log scale").click()
    page.get_by_label("Smoothing").fill("0.9")
    page.get_by_role("img", name="Chart of loss over step, 2 lines").locator("canvas").wait_for()
    assert "over=series%3Astep" in page.url and "log=1" in page.url and "smooth=0.9" in page.url
    page.wait_for_timeout(300)
    box = page.locator(".chart .u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50)
    eventually(lambda: "step" in values.inner_text())
    step = float(values.inner_text().split("step ")[1].split()[0].replace(",", ""))
    assert step == pytest.approx(995, rel=0.05)
    assert "(" in values.inner_text(), "the moving average stands behind the value"
    one.picture("compare over steps")
    page.reload()
    page.get_by_role("img", name="Chart of loss over step, 2 lines").locator("canvas").wait_for()
    assert page.get_by_role("button", name="Log scale").get_attribute("aria-pressed") == "true"
    with page.expect_download() as download:
        page.get_by_role("button", name="Save loss as CSV").click()
    first, second, *_ = download.value.path().read_text().splitlines()
    assert first.startswith('"step"') and first.count("smoothed") == 2
    assert second.startswith("0,")


@pytest.mark.parametrize(("scheme", "width"), [("dark", 1280), ("light", 390)])
def test_a_runs_page_is_looked_at_dark_and_narrow(tab, store, scheme, width):
    [run] = group(store, "one", series=training(), parameters={"lr": "0.1"})
    one = tab(color_scheme=scheme, viewport={"width": width, "height": 900})
    page = one.view(f"run/{run.id}?over=series%3Astep&smooth=0.95")
    page.locator(".chart canvas").first.wait_for()
    one.picture(f"run {scheme} {width}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_run_that_logs_while_it_is_looked_at_is_drawn_further_over_steps(tab, store):
    [run] = group(store, "goes", status=None, series={"loss": [3.0, 2], "step": [0.0, 10]})
    page = tab().view(f"run/{run.id}?over=series%3Astep")
    page.locator(".chart canvas").first.wait_for()
    add_points(store, run.id, "loss", [0.125], run.began + 61, 0)
    add_points(store, run.id, "step", [20.0], run.began + 61, 0)
    eventually(lambda: "last 0.125" in page.locator(".chart .values").first.inner_text())


def test_thousands_of_names_show_the_first_and_say_so(tab, store):
    [run] = group(store, "one", series={f"layer {at}/norm": [1.0, 2.0] for at in range(3000)})
    page = tab().view(f"compare?run={run.id}")
    page.get_by_text("The first 300 of 3,000 series").wait_for()
    assert page.locator(".chart").count() == 300
    page.get_by_label("Filter series").fill("2999")
    eventually(lambda: page.locator(".chart").count() == 1)


def test_what_differs_between_runs_is_told_with_the_lines_of_their_changes(tab, store):
    runs = [
        group(store, "sweep", runs=[f"run {at}"], parameters={"lr": f"0.{at}", "seed": "1"})[0] for at in (1, 2)
    ]
    for run, line in zip(runs, ("+  dropout = 0.1", "+  dropout = 0.5"), strict=True):
        git = {"commit": "a" * 40, "diff": f"@@ model.py\n{line}\n+  same", "diff_is_whole": True}
        told = {"git": git, "packages": {"torch": "2.13.0", "numpy": f"2.{line[-1]}"}, "variables": {}}
        (store.folder_of(run.id) / "environment.json").write_text(json.dumps(told))
    one = tab()
    page = one.view("compare?" + "&".join(f"run={run.id}" for run in runs))
    page.get_by_text("What differs between them").click()
    table = page.get_by_role("table", name="What differs")
    table.wait_for()
    rows = [text.split("\t")[0].strip() for text in table.locator("tbody tr").all_inner_texts()]
    assert rows == ["parameter lr", "changes not committed", "package numpy"]
    assert "dropout = 0.5" in table.inner_text() and "same" not in table.inner_text()
    one.picture("differences")
