"""Charts of what a script logs: over steps, smoothed, on a logarithmic scale, on a run's own page."""

from __future__ import annotations

import json
import math
import re
import time

import numpy as np
import pytest
from tests.forked import eventually
from tests.page.test_page import WRITTEN
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


def test_a_run_that_logs_while_it_is_looked_at_is_drawn_further_over_steps(tab, store):
    [run] = group(store, "goes", status=None, series={"loss": [3.0, 2], "step": [0.0, 10]})
    page = tab().view(f"run/{run.id}?over=series%3Astep")
    page.locator(".chart canvas").first.wait_for()
    add_points(store, run.id, "loss", [0.125], run.began + 61, 0)
    add_points(store, run.id, "step", [20.0], run.began + 61, 0)
    eventually(lambda: "last 0.125" in page.locator(".chart .values").first.inner_text())


def test_what_stands_below_a_chart_grows_with_it(tab, store):
    began = time.time() - 60
    [run] = group(store, "goes", status=None, series={"loss": [3.0, 2]}, began=began)
    page = tab().view(f"run/{run.id}")
    page.locator(".chart canvas").first.wait_for()
    eventually(lambda: "last 2" in page.locator(".chart .values").first.inner_text())
    add_points(store, run.id, "loss", [5.0, 0.125], time.time(), 1)
    told = page.locator(".chart .values").first
    eventually(lambda: "last 0.125" in told.inner_text())
    assert "least 0.125" in told.inner_text() and "most 5" in told.inner_text()


def test_two_lines_of_a_chart_never_have_one_colour(tab, store):
    runs = [group(store, f"group {at}")[0] for at in range(15)]  # more than there are colours
    one = tab()
    page = one.view("runs")
    page.get_by_text("15 of 15 runs").wait_for()
    dots = {run.id: page.locator(f"tr[data-id={run.id}] .dot") for run in runs}
    colours = {id: dot.evaluate("it => it.style.background") for id, dot in dots.items()}
    alike = next([a, b] for a in runs for b in runs if a.id < b.id and colours[a.id] == colours[b.id])
    page = one.view("compare?" + "&".join(f"run={run.id}" for run in alike))
    page.locator(".chart canvas").first.wait_for()
    assert len({*page.locator(".legend .dot").evaluate_all("its => its.map((it) => it.style.background)")}) == 2
    page = one.view("compare")
    page.get_by_text("The newest 4 runs: choose others in Runs.").wait_for()


def test_a_name_that_every_object_has_does_not_stop_the_charts_of_runs_that_go_on(tab, store):
    odd, plain = (
        group(store, name, status=None, series={"loss": [1.0, 2.0], **more}, began=time.time() - 60)[0]
        for name, more in (("odd", {"__proto__": [1.0, 2.0]}), ("plain", {}))
    )
    one = tab()
    page = one.view(f"compare?run={odd.id}&run={plain.id}")
    page.locator(".chart canvas").nth(1).wait_for()
    with page.expect_response("**/api/newest*"):
        pass
    with page.expect_response("**/api/newest*"):  # the last did not stop it
        pass


def test_of_a_thousand_series_the_first_are_shown_unless_all_or_others_are_asked_for(tab, store):
    [run] = group(store, "many", series={f"layer {at:03}/norm": [1.0] for at in range(1000)})
    one = tab()
    page = one.view(f"run/{run.id}")
    rows = page.get_by_role("region", name="Series").locator("tbody tr")
    page.get_by_role("button", name="Show all 1000 series").wait_for()
    assert rows.count() == 200
    page.get_by_role("button", name="Show all 1000 series").click()
    eventually(lambda: rows.count() == 1000)
    page = one.view(f"compare?run={run.id}")
    page.get_by_text("The first 300 of 1,000 series").wait_for()
    assert page.locator(".chart").count() == 300
    page.get_by_label("Filter series").fill("999")
    eventually(lambda: page.locator(".chart").count() == 1)


def test_what_differs_between_runs_is_told_with_the_lines_of_their_changes(tab, store):
    runs = [
        group(store, "sweep", runs=[f"run {at}"], parameters={"date": str(at), "lr": f"0.{at}", "seed": "1"})[0]
        for at in (1, 2)
    ]
    for at, (run, line) in enumerate(zip(runs, ("+  dropout = 0.1", "+  dropout = 0.5"), strict=True)):
        git = {"commit": "a" * 40, "diff": f"@@ model.py\n{line}\n+  same", "diff_is_whole": True}
        told = {"git": git, "packages": {"torch": "2.13.0", "numpy": f"2.{line[-1]}"}, "variables": {}}
        told["machine"] = {"cpu": "one", "date": f"2026-11-2{at}", "load_before": at}
        told["code"] = {"train.py": {"digest": "0", "text": "import net\n"}}
        told["code"]["net.py"] = {"digest": str(at), "text": f"import torch\nwidth = {at + 8}\n"}
        told["code"]["large.py"] = {"digest": f"{at}abc", "text": ""}
        (store.folder_of(run.id) / "environment.json").write_text(json.dumps(told))
    one = tab()
    asked: list[str] = []
    one.page.on("request", lambda request: "/api/runs/" in request.url and asked.append(request.url))
    page = one.view("compare?" + "&".join(f"run={run.id}" for run in runs))
    table = page.get_by_role("table", name="What differs")
    table.wait_for()
    page.locator(".chart canvas").first.wait_for()
    assert len(asked) == 2, "each run is asked for once"
    rows = [text.split("\t")[0].strip() for text in table.locator("tbody tr").all_inner_texts()]
    assert rows == [
        "parameter date",
        "parameter lr",
        "changes not committed",
        "code net.py",
        "code large.py",
        "package numpy",
    ], "and neither date nor load of a machine"
    shown = table.inner_text()
    assert "dropout = 0.5" in shown and "width = 9" in shown and "SHA-256 1abc" in shown
    assert "same" not in shown and "import torch" not in shown
    one.picture("differences")


def seeds(store) -> dict[str, list]:
    """Of two learning rates two runs each, of which one ends early."""
    made = {}
    for rate, losses in {"0.1": ([4.0, 3, 2, 1], [4.0, 1]), "0.3": ([8.0, 6, 4, 2], [6.0, 4, 2, 0])}.items():
        made[rate] = [
            group(
                store,
                "seeds",
                runs=[f"seed {at}"],
                parameters={"lr": rate},
                series={"loss": loss, "step": [10.0 * step for step in range(len(loss))]},
            )[0]
            for at, loss in enumerate(losses)
        ]
    return made


def test_groups_are_means_with_a_band_that_say_how_many_runs_they_are_of(tab, store):
    made = seeds(store)
    [lone] = group(store, "lone", series={"loss": [5.0, 5, 5, 5], "step": [0.0, 10, 20, 30]})
    ids = [run.id for runs in made.values() for run in runs] + [lone.id]
    one = tab()
    page = one.view("compare?" + "&".join(f"run={id}" for id in ids) + "&series=loss&over=series%3Astep")
    page.locator(".chart canvas").first.wait_for()
    page.get_by_role("button", name="Groups").click()
    page.get_by_label("Group by").select_option("lr")
    legend = page.locator("main div.legend")
    eventually(lambda: "lr = 0.1, 2 runs" in legend.inner_text())
    assert "lr = –, 1 run" in legend.inner_text() and "Band: from the least" in legend.inner_text()
    page.get_by_role("img", name="Chart of loss over step, 3 lines").locator("canvas").wait_for()
    values = page.locator(".chart .values")
    eventually(lambda: "lr = 0.1: last, on average, 1, least 1, most 4" in values.inner_text())
    box = page.locator(".chart .u-over").bounding_box()
    page.mouse.move(box["x"] + 1, box["y"] + 50)
    eventually(lambda: "lr = 0.3 7, 6 to 8 in 2 runs" in values.inner_text())
    page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 50)
    eventually(lambda: "lr = 0.3 1, 0 to 2 in 2 runs" in values.inner_text())
    assert "lr = 0.1 1, 1 to 1 in 1 run " in values.inner_text(), "the other has ended"
    assert "in 1 run" not in values.inner_text().split("lr = –")[1], "a run alone is no mean"
    one.picture("compare groups")
    page.wait_for_url(re.compile("group=param%3Alr"))
    page.reload()
    page.get_by_role("img", name="Chart of loss over step, 3 lines").locator("canvas").wait_for()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save loss as CSV").click()
    lines = download.value.path().read_text().splitlines()
    assert lines[0].endswith('"lr = 0.3, least","lr = 0.3, greatest","lr = 0.3, runs"')
    assert lines[1] == "0,4,7,5,4,4,2,6,8,2" and lines[4] == "30,1,1,5,1,1,1,0,2,2"
    with page.expect_download() as download:
        page.get_by_role("button", name="Save loss as SVG").click()
    assert download.value.path().read_text().count('id="band ') == 2
    page.get_by_role("button", name="Leave out lr = 0.1").click()
    page.get_by_role("img", name="Chart of loss over step, 2 lines").locator("canvas").wait_for()
    page.get_by_role("button", name="Runs", exact=True).click()
    page.get_by_role("img", name="Chart of loss over step, 3 lines").locator("canvas").wait_for()


def test_all_runs_of_a_group_are_chosen_at_once(tab, store):
    group(store, "both", runs=["a", "b"])
    group(store, "other", runs=["c"])
    page = tab().view("runs?group=1")
    box = page.get_by_label("Compare all of both (plain)")
    box.check()
    assert page.locator("tbody tr:not(.group) input:checked").count() == 2
    page.get_by_label("Compare a of both").uncheck()
    assert not box.is_checked()
    page.get_by_role("button", name="Compare").click()
    page.locator("main div.legend a").wait_for()
    assert page.locator("main div.legend a").all_inner_texts() == ["b (both, plain)"]


def test_charts_are_pinned_moved_and_enlarged_by_keyboard_and_a_link_shows_the_same(tab, store):
    [run] = group(store, "one", series=training())
    one = tab()
    page = one.view(f"compare?run={run.id}")
    page.locator(".chart canvas").nth(3).wait_for()
    for name in ("proc.cpu_s", "train/accuracy"):
        button = page.get_by_role("button", name=f"Show {name} first")
        button.focus()
        page.keyboard.press("Enter")
        assert button.get_attribute("aria-pressed") == "true"
    assert titles(page)[:3] == ["CPU of its processes cores", "train/accuracy", "loss"]
    page.get_by_role("button", name="Move train/accuracy earlier").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert titles(page)[:3] == ["train/accuracy", "CPU of its processes cores", "loss"]
    assert page.evaluate("document.activeElement.ariaLabel") == "Move train/accuracy earlier"
    page.get_by_role("button", name="Enlarge train/accuracy").click()
    widths = page.locator(".chart canvas").evaluate_all("all => all.map((each) => each.clientWidth)")
    assert widths[0] > 1.8 * widths[1]
    one.picture("compare pinned")
    page.wait_for_url(re.compile("first=train%2Faccuracy&first=proc.cpu_s.*large=train%2Faccuracy"))
    again = tab(one.server)
    there = again.view(page.url.partition("#/")[2])
    there.locator(".chart canvas").nth(3).wait_for()
    assert titles(there)[:3] == ["train/accuracy", "CPU of its processes cores", "loss"]
    assert there.locator(".chart.large").count() == 1
    page.get_by_role("button", name="Show proc.cpu_s first").click()
    assert titles(page)[:3] == ["train/accuracy", "loss", "Waits for data % of the time"]
    page = again.view(f"run/{run.id}?first=proc.threads")
    page.locator(".chart[data-name='proc.threads'] canvas").wait_for()
    # One that is folded otherwise; the chart that was waited for may have been that of the view before.
    eventually(lambda: titles(page)[:2] == ["Threads", "loss"])


def test_any_group_is_found_and_single_runs_of_a_name_are_one_group(tab, store):
    for at in range(9):
        group(store, "by hand", runs=[f"run {at}"], began=1_790_000_000.0 + 100 * at)
    group(store, "by hand", runs=["together"], mode="mps")
    for at in range(15):
        group(store, f"other {at}")
    one = tab()
    page = one.view("time")
    page.get_by_text("the newest 12 of 26 groups: search for others").wait_for()
    page.get_by_label("Search groups").fill("hand plain all")
    choice = page.get_by_role("group", name="Groups").get_by_role("button")
    eventually(lambda: choice.count() == 3)  # and the two that are shown
    page.get_by_role("button", name="by hand (plain) all 9 groups, 9 runs").click()
    table = page.get_by_role("table", name="Where the time of by hand goes")
    eventually(lambda: table.locator("tr").count() == 9)
    told = page.locator("section p.soft").all_inner_texts()
    assert any(text.startswith("9 runs of 9 groups, begun from ") for text in told), told
    assert any("1 run of other groups of this name does not count" in text for text in told), told
    one.picture("time by name")
    page.wait_for_url(re.compile("name%3Aby"))
    page.reload()
    eventually(lambda: table.locator("tr").count() == 9)
    page.get_by_label("Search groups").fill("nothing such")
    page.get_by_text("no group has these words").wait_for()


def test_the_mean_of_runs_that_go_on_is_drawn_further(tab, store):
    runs = group(store, "goes", runs=["a", "b"], status=None, series={"loss": [3.0, 2], "step": [0.0, 10]})
    chosen = "&".join(f"run={run.id}" for run in runs)
    page = tab().view(f"compare?{chosen}&group=name&series=loss")
    values = page.locator(".chart .values").first
    eventually(lambda: "last, on average, 2," in values.inner_text())
    for run, value in zip(runs, (1.0, 0.5), strict=True):
        add_points(store, run.id, "loss", [value], run.began + 61, 0)
    eventually(lambda: "last, on average, 0.75, least 0.5," in values.inner_text())


EDGES = {"huge": 1e36, "tiny": 1e-36, "vast": 1e300, "faint": 1e-300}


def test_axes_of_values_of_any_size_have_labels(tab, store):
    ramp = np.linspace(1, 9, 30)
    series = {name: (size * ramp).tolist() for name, size in EDGES.items()} | {"step": (1e40 * ramp).tolist()}
    [run] = group(store, "one", series=series)
    one = tab()
    one.page.add_init_script(WRITTEN)
    one.page.reload()
    for log, over, more in (("", "", [" s"]), ("&log=1", "&over=series%3Astep", ["e+40"])):
        one.page.evaluate("window.texts = []")
        page = one.view(f"compare?run={run.id}{log}{over}")
        ends = [f"e{math.log10(size):+.0f}" for size in EDGES.values()]

        def labels(end: str, page=page) -> list[str]:
            return sorted({text for text, _ in page.evaluate("texts") if text.endswith(end)})

        for end in [*ends, *more]:
            eventually(lambda end=end: len(labels(end)) > 1, f"no labels with {end}")
        one.picture(f"sizes{log}{over[:5]}")
