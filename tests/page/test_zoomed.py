"""At 200 % zoom every view is there, whole: a window of 1280x800 has room for 640x400 of its pixels."""

from __future__ import annotations

import pytest
from tests.page.test_logged import DIGITS, script
from tests.page.test_page import what_keeps_people_out
from tests.page.test_parameters import sweep
from tests.web.scheduled import going_on
from tests.web.seeded import group

pytestmark = pytest.mark.page
CUT = """() => [...document.querySelectorAll("body *")].filter((each) => {
  const box = each.getBoundingClientRect();
  if (!box.width || !box.height || each.closest(".skip, .scroll, pre, .u-wrap, .lane")) return false;
  const cuts = getComputedStyle(each).overflowX !== "visible" && !each.matches(".name, input, select");
  if (cuts && each.scrollWidth > each.clientWidth + 1) return true;
  return box.right > innerWidth + 1 || box.left < -1;
}).map((each) => each.outerHTML.slice(0, 200))"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_at_200_percent_and_only_what_is_wide_is_scrolled(tab, store, scheme):
    runs = sweep(store)
    alone = group(
        store, "a group with a long name", runs=["seed=0 lr=0.3", "seed=1 lr=0.1"], mode="alone", seconds=100
    )
    plain = group(store, "a group with a long name", runs=["seed=0 lr=0.3", "seed=1 lr=0.1"], seconds=60)
    group(store, "broken", status="failed", reason="ValueError: boom")
    group(store, "goes", runs=["lr=0.1", "lr=0.3"], status=None)
    script(store, alone[0], DIGITS)
    going_on(store)
    one = tab(color_scheme=scheme, viewport={"width": 640, "height": 400}, device_scale_factor=2, bypass_csp=True)
    chosen = "&".join(f"run={run.id}" for run in [*alone, *plain])
    views = {
        "runs": f"runs?group=1&{chosen}",
        "run": f"run/{alone[0].id}",
        "compare": f"compare?{chosen}",
        "groups": f"compare?{chosen}&group=1&first=loss&large=loss",
        "parameters": f"parameters?metric=least:loss&{'&'.join(f'run={run.id}' for run in runs)}",
        "time": f"time?group={plain[0].group_id}&group={alone[0].group_id}",
        "now": "now",
        "schedules": "schedules",
    }
    for name, address in views.items():
        page = one.view(address)
        page.locator("main a, main canvas, main circle").first.wait_for()
        page.wait_for_timeout(300)
        one.picture(f"zoomed {name} {scheme}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        assert page.evaluate(CUT) == [], name
        assert what_keeps_people_out(page) == [], name
        if name == "runs":
            page.get_by_text("Columns", exact=True).click()
            page.get_by_label("Column most loss").wait_for()
            one.picture(f"zoomed columns {scheme}")
            assert page.evaluate(CUT) == [], "columns"
