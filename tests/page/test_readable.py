"""Every view is there for everybody, whole: light and dark, wide and narrow, at 200 % zoom, read by a machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.page.test_logged import DIGITS, script
from tests.page.test_parameters import sweep
from tests.web.scheduled import going_on
from tests.web.seeded import group

from penstock.runs.store.notes import Change

pytestmark = pytest.mark.page
AXE = Path(sys.prefix, "axe/package/axe.min.js")
CUT = """() => [...document.querySelectorAll("body *")].filter((each) => {
  const box = each.getBoundingClientRect();
  if (!box.width || !box.height || each.closest(".skip, .scroll, pre, .u-wrap, .lane")) return false;
  const cuts = getComputedStyle(each).overflowX !== "visible" && !each.matches(".name, input, select");
  if (cuts && each.scrollWidth > each.clientWidth + 1) return true;
  return box.right > innerWidth + 1 || box.left < -1;
}).map((each) => each.outerHTML.slice(0, 200))"""
SIZES = {  # of the window; at 200 % zoom one of 1280x800 has room for 640x400 of its pixels
    "wide": {"viewport": {"width": 1280, "height": 900}},
    "narrow": {"viewport": {"width": 390, "height": 900}},
    "zoomed": {"viewport": {"width": 640, "height": 400}, "device_scale_factor": 2},
}


def what_keeps_people_out(page):
    """What axe-core calls serious or critical: its rule, and the elements."""
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run().then(result => result.violations)")
    return [
        (each["id"], [node["html"] for node in each["nodes"]])
        for each in found
        if each["impact"] in {"serious", "critical"}
    ]


def views_of(store) -> dict[str, str]:
    """Fill a store with what every view can show; return their addresses."""
    runs = sweep(store)
    store.annotate([runs[1].id, runs[4].id], Change(tag=("good", "paper"), note="the one for the paper, " * 12))
    store.annotate([runs[2].id], Change(tag=("long-" * 8,), archived=True))
    seeds = ["seed=0 lr=0.3", "seed=1 lr=0.1"]
    alone = group(store, "a group with a long name", runs=seeds, mode="alone", seconds=100)
    plain = group(store, "a group with a long name", runs=seeds, seconds=60)
    group(store, "broken", status="failed", reason="ValueError: boom")
    group(store, "goes", runs=["lr=0.1", "lr=0.3"], status=None)
    script(store, alone[0], DIGITS)
    going_on(store)
    chosen = "&".join(f"run={run.id}" for run in [*alone, *plain])
    return {
        "runs": f"runs?group=1&archived=1&{chosen}",
        "run": f"run/{alone[0].id}",
        "run over steps": f"run/{alone[0].id}?over=series%3Astep&smooth=0.95",
        "notes of a run": f"run/{runs[1].id}",
        "compare": f"compare?{chosen}",
        "groups": f"compare?{chosen}&group=1&first=loss&large=loss",
        "parameters": f"parameters?metric=least:loss&{'&'.join(f'run={run.id}' for run in runs)}",
        "time": f"time?group={plain[0].group_id}&group={alone[0].group_id}",
        "now": "now",
        "schedules": "schedules",
    }


@pytest.mark.parametrize(("scheme", "size"), [("light", "wide"), ("dark", "narrow"), ("dark", "zoomed")])
def test_nothing_serious_keeps_anybody_out_and_only_what_is_wide_is_scrolled(tab, store, scheme, size):
    views = views_of(store)
    one = tab(color_scheme=scheme, bypass_csp=True, **SIZES[size])
    for name, address in views.items():
        page = one.view(address)
        page.locator("main a, main canvas, main circle").first.wait_for()
        page.wait_for_timeout(300)
        one.picture(f"{name} {scheme} {size}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        assert size != "zoomed" or page.evaluate(CUT) == [], name
        if name == "run":  # as far as it is drawn only once it is looked at
            page.locator("main .logged pre").first.scroll_into_view_if_needed()
        assert what_keeps_people_out(page) == [], name
        if size == "wide":
            page.emulate_media(color_scheme="dark")
            assert what_keeps_people_out(page) == [], f"{name} in dark"
            page.emulate_media(color_scheme=scheme)
        if name == "runs" and size == "zoomed":
            page.get_by_text("Columns", exact=True).click()
            page.get_by_label("Column most loss").wait_for()
            one.picture(f"zoomed columns {scheme}")
            assert page.evaluate(CUT) == [], "columns"
