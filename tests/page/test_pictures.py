"""What the docs show: the page of a real collocation's size. With PENSTOCK_PICTURES=DIR the pictures lie there."""

from __future__ import annotations

import pytest
from tests.fakes.nvml.by_number import by_number
from tests.fakes.nvml.fake_gpus import FakeGpus
from tests.page.collocation import KINDS, add, going_on
from tests.page.test_parameters import sweep as of_parameters
from tests.web.scheduled import sweep, write

pytestmark = [pytest.mark.page, by_number]


def test_the_pictures_of_the_docs_show_the_page_as_it_is(tab, store, open_page, fake_gpus: FakeGpus):
    groups = [add(store, kind, 1_790_000_000.0 + 3600 * place) for place, kind in enumerate(KINDS)]
    with going_on(store, fake_gpus) as now:
        server = open_page(environment=fake_gpus.environment)
        chosen = "&".join(f"run={run.id}" for run in groups[-1])
        beside = "&".join(f"group={group[0].group_id}" for group in groups)
        one = tab(server, color_scheme="light", viewport={"width": 1280, "height": 800})
        page = one.view("now")
        page.get_by_role("list", name="Runs on it").nth(1).get_by_text(now[3].name).wait_for()
        page.get_by_role("heading", name="imagenet/train").wait_for()
        page.get_by_text("SM active").nth(1).wait_for()
        one.picture("page-now")
        page = one.view(f"runs?group=1&{chosen}")
        page.get_by_text("20 of 20 runs").wait_for()
        page.locator("tbody tr", has_text=groups[0][0].id).get_by_text("7").first.wait_for()
        one.picture("page-runs")
        page = one.view(f"compare?{chosen}")
        page.locator(".chart canvas").nth(3).wait_for()
        page.locator(".chart").first.hover(position={"x": 320, "y": 120})
        one.picture("page-compare")
        all_runs = "&".join(f"run={run.id}" for of_group in groups for run in of_group)
        page = one.view(f"compare?{all_runs}&group=1&first=feed.wait_s&first=gpm.0.sm_active_percent")
        page.locator(".chart canvas").nth(3).wait_for()
        page.locator(".chart").first.hover(position={"x": 200, "y": 120})
        one.picture("page-groups")
        page = one.view(f"time?{beside}")
        page.get_by_role("table", name="Groups compared").wait_for()
        page.set_viewport_size({"width": 1280, "height": 1000})
        one.picture("page-time")
        dark = tab(server, color_scheme="dark", viewport={"width": 1280, "height": 800})
        dark.view(f"compare?{chosen}").locator(".chart canvas").nth(3).wait_for()
        dark.picture("page-dark")
        phone = tab(server, color_scheme="light", viewport={"width": 390, "height": 844})
        phone.view("now").get_by_text("SM active").nth(1).wait_for()
        phone.picture("page-phone")
        write(store, *sweep(1.08))
        last = tab(server, color_scheme="light", viewport={"width": 1280, "height": 560})
        last.view("schedules").locator(".gantt a").nth(11).wait_for()
        last.picture("page-schedules")
        chosen = "&".join(f"run={run.id}" for run in of_parameters(store))
        more = tab(server, color_scheme="light", viewport={"width": 1280, "height": 960})
        more.view(f"parameters?metric=least:loss&{chosen}").locator("main circle").nth(7).wait_for()
        more.page.locator("main circle").nth(3).hover()
        more.picture("page-parameters")
