"""A page that is left open for a day: it shows what is true, and holds no more than at first."""

from __future__ import annotations

from typing import Any

import pytest
from tests.forked import eventually
from tests.web.seeded import add_points, group

pytestmark = pytest.mark.page
HOURS, AN_HOUR = 24, 3600
KEEP_STREAM = """
const Real = EventSource;
window.EventSource = class extends Real { constructor(path) { super(path); window.stream = this; } };
"""
REFRESH = """async ([times, id]) => {
  const rest = { rows: [], removed: [], feeds: [], gpus: { cards: [], note: "" } };
  const breath = () => new Promise((done) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = done;
    port2.postMessage(0);
  });
  for (let second = 0; second < times; second++) {
    const figures = { cores: second / 7, memory_bytes: 1e9 + second, read_bytes_per_s: second };
    const glance = { ...figures, waiting: (second % 100) / 100, logged: { loss: 1 / (1 + second) } };
    stream.onmessage({ data: JSON.stringify({ ...rest, glances: { [id]: glance } }) });
    if (second % 100 === 0) await breath();
  }
}"""


def held(page: Any) -> dict[str, float]:
    """What the page holds once all garbage is collected."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    for _ in range(3):
        session.send("HeapProfiler.collectGarbage")
        page.wait_for_timeout(50)
    told = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    session.detach()
    return {name: told[name] for name in ("Nodes", "JSEventListeners", "JSHeapUsedSize")}


def listening(one: Any) -> None:
    """Have the page's clock go on until it listens: what is told to a stream that it gave up would open two."""

    def is_live() -> bool:
        one.page.clock.run_for(1000)
        return one.page.get_by_text("live", exact=True).is_visible()

    eventually(is_live)


def restarted(one: Any, open_page: Any) -> None:
    """Start the server again: the page says that it must be opened anew, and goes on once it was elsewhere."""
    assert not one.complaints
    one.server.close()
    again = open_page("--port", str(one.server.port))
    one.page.get_by_text("the server was started again: open the URL that it has printed").first.wait_for()
    other = one.context.new_page()
    other.goto(again.url)
    one.page.get_by_text("live", exact=True).wait_for()
    other.close()
    one.complaints.clear()  # of what the browser tells of a server that is away


@pytest.mark.timeout(400)  # 86,400 of them: on a busy machine, that takes minutes
def test_a_day_of_refreshes_leaves_nothing_behind_and_the_page_shows_what_is_true(tab, store, open_page):
    runs = [
        group(store, "day", runs=[f"run {at}"], status=None, series={"loss": [3.0, 2.0]})[0] for at in range(4)
    ]
    one = tab()
    one.page.add_init_script(KEEP_STREAM)
    one.page.reload()
    one.page.get_by_text("live", exact=True).wait_for()
    one.page.clock.install()
    before: dict[str, float] = {}
    for hour in range(HOURS):
        [new] = group(store, "day", runs=[f"run {len(runs) + hour}"], status=None, series={"loss": [3.0, 2.0]})
        old, *runs = [*runs, new]
        store.ended(old.id, "finished", 0)
        store.remove([old.id])
        add_points(store, new.id, "loss", [hour], new.began + 61, 0)
        views = ["runs", "now", f"run/{new.id}", "compare", "time", "parameters", "schedules"]
        page = one.view(views[hour % len(views)])
        listening(one)
        page.evaluate(REFRESH, [AN_HOUR, new.id])
        page.clock.run_for(1000 * 30)
        page.clock.fast_forward(1000 * AN_HOUR)
        if hour == HOURS // 2:
            restarted(one, open_page)
        if hour in (len(views) - 1, HOURS - 1):
            page = one.view("now")
            page.get_by_role("link", name=new.name, exact=True).wait_for()
            page.clock.fast_forward(1000 * AN_HOUR)  # the view that was left holds what waits for its times
            before = before or held(page)
    most = {
        "Nodes": 1.2 * before["Nodes"] + 200,
        "JSEventListeners": 1.2 * before["JSEventListeners"] + 20,
        "JSHeapUsedSize": before["JSHeapUsedSize"] + (2 << 20),
    }
    for _ in range(20):  # answers may still be on their way
        more = {name: value for name, value in held(page).items() if value >= most[name]}
        if not more:
            break
    assert not more, most
    page = one.view("runs")
    page.get_by_text("4 of 4 runs").wait_for()
    eventually(lambda: f"loss {HOURS - 1}" in page.locator("main tbody").inner_text())
    assert page.locator("main td.name a").all_inner_texts() == [run.name for run in reversed(runs)]


HIDDEN = """(hidden) => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_pages_that_nobody_sees_hold_no_connection_and_one_that_is_seen_again_begins_anew(tab, store):
    [run] = group(store, "one")
    one = tab()
    for _ in range(7):  # a browser has six connections to a server
        page = one.page.context.new_page()
        page.goto(one.server.url)
        page.get_by_text("live", exact=True).wait_for()
        page.goto(f"{page.url.partition('#')[0]}#/run/{run.id}")
        page.locator("main .chart canvas").first.wait_for()
        page.evaluate(HIDDEN, True)
    page.goto(f"{page.url.partition('#')[0]}#/runs")
    group(store, "another")
    one.page.get_by_text("live", exact=True).wait_for()
    page.evaluate(HIDDEN, False)
    page.get_by_text("2 of 2 runs").wait_for()
    page.evaluate(HIDDEN, True)
    group(store, "third")
    page.wait_for_timeout(1500)
    assert page.get_by_text("2 of 2 runs").is_visible()
    page.evaluate(HIDDEN, False)
    page.get_by_text("3 of 3 runs").wait_for()


def test_a_page_whose_computer_slept_shows_what_happened_meanwhile(tab, store):
    [run] = group(store, "goes", runs=["before"], status=None, series={"loss": [3.0, 2.0]})
    one = tab()
    one.page.add_init_script(KEEP_STREAM)
    one.page.reload()
    one.page.clock.install()
    page = one.view("runs")
    page.get_by_role("link", name="before").wait_for()
    page.evaluate("stream.onmessage = () => {}")  # its connection is dead, and nobody tells it
    group(store, "goes", runs=["meanwhile"], status=None)
    store.ended(run.id, "failed", 3)
    page.wait_for_timeout(1500)
    assert page.get_by_text("meanwhile").count() == 0
    page.clock.fast_forward(8 * 3600 * 1000)
    page.get_by_role("link", name="meanwhile").wait_for()
    page.get_by_text("failed (3)").wait_for()
    page.get_by_text("live", exact=True).wait_for()


def test_a_clock_that_is_set_back_hides_no_series(tab, store):
    [run] = group(store, "goes", status=None, series={"loss": [3.0, 2.0]})
    one = tab()
    one.page.clock.install()
    page = one.view(f"compare?run={run.id}")
    page.locator(".chart canvas").first.wait_for()
    page.clock.set_system_time("2020-01-01T00:00:00")
    add_points(store, run.id, "accuracy", [0.5, 0.6], run.began + 61, 1)
    page.clock.run_for(10_000)
    page.locator(".chart[data-name=accuracy]").wait_for()
