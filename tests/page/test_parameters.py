"""What parameters did to a metric: parallel coordinates and points, of the table's runs or of chosen ones."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from tests.forked import eventually
from tests.web.seeded import group

pytestmark = pytest.mark.page

RATES = ("0.0003", "0.003", "0.03", "0.3")


def sweep(store) -> list:
    """Eight runs whose losses differ, and one without."""
    runs = []
    for place, rate in enumerate(RATES):
        for optimizer in ("adam", "sgd"):
            parameters = {"lr": rate, "optimizer": optimizer, "batch": str(64 << place % 3), "seed": "0"}
            loss = [5.0, 1.0 + place + (optimizer == "sgd") / 2, 4.5]
            runs += group(
                store, "sweep", runs=[f"{optimizer} {rate}"], parameters=parameters, series={"loss": loss}
            )
    group(store, "broken", runs=["without"], parameters={"lr": "0.1"}, series={"proc.rss_bytes": [1.0, 2.0]})
    return runs


def points(page) -> list[tuple[str, float, float]]:
    """The point of each run: what it is called, and where it lies, from the left and from the top."""
    return page.evaluate(
        """() => [...document.querySelectorAll("main circle")].map((each) =>
          [each.parentNode.getAttribute("aria-label").split(":")[0],
           +each.getAttribute("cx"), +each.getAttribute("cy")])"""
    )


def test_points_lie_where_their_values_are_on_a_log_axis_and_runs_without_are_counted(tab, store):
    sweep(store)
    one = tab()
    page = one.view("runs")
    page.get_by_text("9 of 9 runs").wait_for()
    page.get_by_role("button", name="Parameters").click()
    page.get_by_text("8 runs. 1 without loss left out.").wait_for()
    page.get_by_label("Which of its values").select_option("least")
    page.get_by_role("heading", name="least loss over lr").wait_for()
    found = points(page)
    assert len(found) == 8
    columns = sorted({x for _, x, _ in found})
    assert len(columns) == 4, "one for each rate"
    gaps = [after - before for before, after in pairwise(columns)]
    assert gaps == pytest.approx([gaps[0]] * 3, abs=0.2), "powers of ten at equal distances"
    page.get_by_label("Axes of numbers").select_option("linear")
    columns = eventually(lambda: (now := sorted({x for _, x, _ in points(page)})) != columns and now)
    assert columns[1] - columns[0] < (columns[3] - columns[2]) / 50, "numbers at their distances"
    page.wait_for_url(re.compile("axes=linear"))
    linear, heights = ({name: y for name, _, y in each} for each in (points(page), found))
    page.get_by_label("Axes of numbers").select_option("log")
    page.wait_for_url(re.compile("axes=log"))
    eventually(lambda: sorted({x for _, x, _ in points(page)}) == sorted({x for _, x, _ in found}))
    assert {name: y for name, _, y in points(page)} not in (linear, {name: y for name, _, y in found}), (
        "losses, too"
    )
    page.get_by_label("Axes of numbers").select_option("")
    eventually(lambda: points(page) == found)
    for before, after in pairwise(RATES):
        assert heights[f"adam {before}"] > heights[f"sgd {before}"] > heights[f"adam {after}"]
    texts = page.locator("svg").first.locator("text").all_text_contents()
    for wanted in ("lr", "log", "0.0003", "0.3", "optimizer", "adam", "sgd", "least loss"):
        assert any(text.endswith(wanted) for text in texts), wanted
    assert not any("seed" in text for text in texts), "what does not vary has no axis"
    one.picture("parameters")


def test_a_run_is_named_by_pointer_and_keyboard_and_opened(tab, store):
    runs = sweep(store)
    page = tab().view("parameters?metric=least:loss")
    page.locator("main circle").nth(7).wait_for()
    page.locator(f'main a[data-id="{runs[0].id}"] circle').hover()
    said = page.locator("main [role=status]")
    eventually(lambda: said.inner_text() == "adam 0.0003: lr 0.0003, optimizer adam, batch 64, least loss 1")
    assert page.locator("main a.at").count() == 2, "its line and its point"
    page.mouse.move(5, 5)
    page.get_by_text("Point at a run").wait_for()
    page.get_by_label("Parameter of the points").focus()
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('main a[data-id]')"):
            break
    eventually(lambda: "least loss" in said.inner_text())
    name = said.inner_text().split(":")[0]
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("#/run/"))
    page.get_by_role("heading", name=name).wait_for()


def test_only_chosen_runs_are_drawn_and_the_address_keeps_metric_and_parameter(tab, store):
    runs = sweep(store)
    one = tab()
    page = one.view("compare?" + "&".join(f"run={run.id}" for run in runs[:4]))
    page.locator(".chart canvas").first.wait_for()
    page.get_by_role("button", name="Parameters").click()
    eventually(lambda: len(points(page)) == 4)
    page.get_by_label("Metric").select_option("time")
    page.get_by_label("Parameter of the points").select_option("optimizer")
    page.wait_for_url(re.compile("metric=seconds.*x=optimizer"))
    page.reload()
    eventually(lambda: len({x for _, x, _ in points(page)}) == 2)
    assert page.get_by_label("Metric").input_value() == "seconds"


def test_runs_that_begin_and_are_removed_while_they_are_looked_at_come_and_go(tab, store):
    group(store, "one")
    page = tab().view("parameters")
    page.get_by_text("No parameter differs between these runs").wait_for()
    runs = sweep(store)
    eventually(lambda: len(points(page)) == 8)
    store.remove([runs[0].id])
    eventually(lambda: len(points(page)) == 7)
    group(store, "more", status=None, parameters={"lr": "<b>", "optimizer": "adam"}, series={"loss": [0.5]})
    eventually(lambda: len(points(page)) == 8)
    assert "<b>" in page.locator("svg").first.text_content()


ODD = (
    "parameters?metric=name",
    "parameters?metric=last:",
    "parameters?metric=least:nothing",
    "parameters?x=nothing&run=nobody",
    "compare?group=param:nothing&first=nothing&large=nothing",
    "compare?group=nothing",
    "time?group=name:nothing&filter=nothing",
)


def test_addresses_that_nobody_made_are_shown_without_an_error(tab, store):
    sweep(store)
    one = tab()
    for address in ODD:
        page = one.view(address)
        page.locator("main .tools").first.wait_for()
        page.wait_for_timeout(700)
        assert page.locator("#trouble").inner_text() == "", address
