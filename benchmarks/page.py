"""What the page costs: 1,000 runs and their table, a chart of 20 runs, live updates, pan and zoom; into JSON.

    python -m benchmarks page --json benchmarks/results/page.json

Needs what `make test-page` installs. Times are the browser's own, from the beginning of a navigation.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from benchmarks.claim import ResultsFile, claim, report

from penstock.runs.record import GroupPlan, RunPlan, RunRecord
from penstock.runs.store import SeriesWriter, Store, points_file
from penstock.runs.store.database import this_process

REPEATS = 5
BEGAN = 1_790_000_000.0
LIVE_S = 60
LIVE_BEFORE_S = 3600
NOTE_ROWS = """new MutationObserver((_, observer) => {
  if (document.querySelectorAll("tbody tr[data-id]").length < 50) return;
  observer.disconnect();
  requestAnimationFrame(() => requestAnimationFrame(() => { window.drawn = performance.now(); }));
}).observe(document, { childList: true, subtree: true });"""
"""Notes when the table's first rows have been painted."""
VIEWPORT = {"width": 1280, "height": 900}
NAMES = [f"quantity {i}" for i in range(39)]
PARAMETERS = [f"p{i}" for i in range(30)]
COLUMNS = [f"param:{name}" for name in PARAMETERS] + [f"last:{name}" for name in NAMES[:30]]
PAINTED = """async ([selector, does, value]) => {
  const at = document.querySelector(selector), began = performance.now();
  if (does === "click") at.click();
  else { at.value = value; at.dispatchEvent(new Event(does)); }
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return performance.now() - began;
}"""
"""Milliseconds from what a user does to an element until its effect has been painted."""


def begun(store: Store, name: str, runs: int) -> list[RunRecord]:
    plan = tuple(
        RunPlan(
            command=("true",),
            name=f"{name}-{i:04}",
            directory="/",
            parameters={each: str(i * (k + 3) % 97) for k, each in enumerate(PARAMETERS)},
        )
        for i in range(runs)
    )
    records = store.add(GroupPlan(name=name, runs=plan))
    me = this_process()
    for record in records:
        store.began(record.id, keeper=(me.pid, me.started_ticks), pid=os.getpid(), time_s=BEGAN)
    return records


def ended(store: Store, name: str, runs: int, *, points: int, series: int, seconds: float) -> list[RunRecord]:
    """Add runs that have ended, all with the same series: written once, compacted once, linked for the others."""
    records = begun(store, name, runs)
    first, *others = records
    chance = np.random.default_rng(0)
    with closing(SeriesWriter(points_file(store.folder_of(first.id), "sampler"))) as writer:
        times_s = np.linspace(BEGAN, BEGAN + seconds, points) + chance.normal(0, 1e-3, points)
        for each in ("loss", *NAMES[: series - 1]):
            for time_s, value in zip(
                times_s.tolist(), np.cumsum(chance.normal(size=points)).tolist(), strict=True
            ):
                writer.add(each, round(value, 3), time_s)
    store.compact(first.id)
    for record in others:
        shutil.copytree(
            store.folder_of(first.id) / "series", store.folder_of(record.id) / "series", copy_function=os.link
        )
    for record in records:
        store.ended(record.id, "finished", 0)
    return records


@contextmanager
def served(store: Store) -> Generator[tuple[str, psutil.Process]]:
    command = [sys.executable, "-m", "penstock", "web", "--port", "0", "--store", str(store.folder)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout
        yield process.stdout.readline().strip(), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def repeated(measure: Callable[[], float]) -> list[float]:
    return [measure() for _ in range(REPEATS)]


def first_page(browser: Any, url: str) -> list[float]:
    """Milliseconds from a navigation until the first of 1,000 runs are painted.

    Returns those of a browser that has nothing yet, and of one that has opened the page before.
    """
    with closing(browser.new_context(viewport=VIEWPORT)) as context:
        page = context.new_page()
        page.add_init_script(NOTE_ROWS)
        found: list[float] = []
        for _ in range(2):
            page.goto("about:blank")
            page.goto(f"{url}#/runs")
            found.append(page.wait_for_function("() => window.drawn", polling=100).json_value())
            page.wait_for_timeout(1000)
        return found


def table(page: Any, base: str) -> dict[str, list[float]]:
    """Milliseconds to sort, filter and group a table of 1,000 runs by 60 columns, once their figures have come."""
    page.goto("about:blank")
    page.goto(f"{base}#/runs?sort=-last:loss&" + "&".join(f"col={each}" for each in COLUMNS))
    page.locator("main tbody tr[data-id]").nth(40).wait_for()
    from playwright.sync_api import TimeoutError as NoneCame

    with suppress(NoneCame):
        while True:  # the figures of all runs are asked for in some requests
            with page.expect_response(lambda answer: "/api/summaries" in answer.url, timeout=5000):
                pass
    filters = ["p3=7", "p5>50", "quantity", "", "p7<20 p9>30"]
    groups = ["param:p1", "param:p2", "1", "", "param:p4"]

    def did(selector: str, does: str, value: str = "") -> float:
        took_ms = page.evaluate(PAINTED, [selector, does, value])
        page.wait_for_timeout(300)
        return took_ms

    return {
        "sort": [did(f"main thead th:nth-of-type({place}) button", "click") for place in (5, 20, 33, 40, 58)],
        "filter": [did("main input[type=search]", "input", each) for each in filters],
        "group": [did("main .tools select", "change", each) for each in groups],
    }


def chart(page: Any, base: str, runs: list[RunRecord]) -> float:
    """Milliseconds from asking for a chart of one series of some runs until it is drawn."""
    page.goto("about:blank")
    page.goto(f"{base}#/now")
    page.get_by_text("live", exact=True).wait_for()
    address = "#/compare?series=loss&" + "&".join(f"run={run.id}" for run in runs)
    page.evaluate(f"() => {{ window.asked = performance.now(); location.hash = {address!r}; }}")
    drawn = "() => document.querySelector('.chart canvas') && performance.now() - window.asked"
    return page.wait_for_function(drawn, polling="raf").json_value()


def frames_per_s(page: Any, base: str, run: RunRecord) -> dict[str, float]:
    """Frames per second over 5 s of moving and zooming a chart of ten hours."""
    page.goto(f"{base}#/compare?series=loss&run={run.id}")
    page.locator(".chart canvas").wait_for()
    page.evaluate(
        """() => {
          window.frames_ = []; const each = (now) => { window.frames_.push(now); requestAnimationFrame(each); };
          requestAnimationFrame(each);
        }"""
    )
    box = page.locator(".chart .u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50)
    page.keyboard.down("Shift")
    end = time.monotonic() + 5
    turn = 0
    while time.monotonic() < end:
        page.mouse.wheel(0, -40 if turn % 40 < 20 else 40)
        turn += 1
    page.keyboard.up("Shift")
    frames = np.array(page.evaluate("() => window.frames_"))
    gaps = np.diff(frames)
    return {
        "frames_per_s": float(len(gaps) / (frames[-1] - frames[0]) * 1000),
        "slowest_frame_ms": float(gaps.max()),
    }


def live(page: Any, base: str, store: Store, server: psutil.Process) -> dict[str, Any]:
    """The server's part of a core over a minute of 8 runs with 40 series each, and how the tab's memory grows.

    A chart's points grow by a quarter before they are reduced again: compared are the smallest heaps of the first
    and the last 20 s.
    """
    runs = begun(store, "live", 8)
    writers = [SeriesWriter(points_file(store.folder_of(run.id), "sampler")) for run in runs]
    now = time.time()
    for writer in writers:  # a chart is full then: of more points it keeps the least and greatest
        for second in range(LIVE_BEFORE_S):
            for name in ("loss", *NAMES):
                writer.add(name, float(second % 7), now - LIVE_BEFORE_S + second)
    chosen = "&".join(f"run={run.id}" for run in runs)
    page.goto(f"{base}#/compare?{chosen}")

    def heap() -> int:
        page.context.new_cdp_session(page).send("HeapProfiler.collectGarbage")
        return page.evaluate("() => performance.memory.usedJSHeapSize")

    def write(seconds: int) -> list[int]:
        heaps: list[int] = []
        for second in range(seconds):
            for writer in writers:
                for name in ("loss", *NAMES):
                    writer.add(name, float(second % 7))
                writer.flush()
            page.wait_for_timeout(1000)
            if second % 5 == 0:
                heaps.append(heap())
        return heaps

    write(10)
    cpu, began = server.cpu_times(), time.monotonic()
    heaps = write(LIVE_S)
    passed_s, after = time.monotonic() - began, server.cpu_times()
    for writer in writers:
        writer.close()
    used_s = after.user + after.system - cpu.user - cpu.system
    return {
        "server_cores": used_s / passed_s,
        "tab_grew_bytes": min(heaps[-4:]) - min(heaps[:4]),
        "tab_bytes": heaps,
        "seconds": passed_s,
    }


def main(file: ResultsFile = None) -> None:
    from playwright.sync_api import sync_playwright

    folder = Path(tempfile.mkdtemp())
    try:
        with Store.open(folder / "store") as store, sync_playwright() as playwright:
            ended(store, "many", 980, points=2500, series=40, seconds=2500)
            long = ended(store, "long", 20, points=36_000, series=40, seconds=36_000)
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"),
                args=["--no-sandbox", "--enable-precise-memory-info"],
                ignore_default_args=["--disable-ipc-flooding-protection"],  # a person's browser has it
            )
            with served(store) as (url, server):
                page = browser.new_context(viewport=VIEWPORT).new_page()
                page.goto(url)
                base = page.url.partition("#")[0]
                first, again = zip(*(first_page(browser, url) for _ in range(REPEATS)), strict=True)
                handled = table(page, base)
                drawn = repeated(lambda: chart(page, base, long))
                moved = frames_per_s(page, base, long[0])
                followed = live(page, base, store, server)
            browser.close()
    finally:
        shutil.rmtree(folder)
    claims = [
        claim("page of 1,000 runs with 10⁸ points, in a browser that has its files", "ms", again, most=300),
        claim("the same in a browser that has nothing yet", "ms", first, most=300),
        *(
            claim(f"table of 1,000 runs of 60 columns: {what}", "ms", took_ms, most=100)
            for what, took_ms in handled.items()
        ),
        claim("a chart of 20 runs of 36,000 points", "ms", drawn, most=500),
        claim("pan and zoom over 10 h", "frames/s", [moved["frames_per_s"]], least=50),
        claim("8 runs of 40 series followed for 60 s: of a core", "%", [100 * followed["server_cores"]], most=3),
        claim("the same: growth of the tab's memory", "MiB", [followed["tab_grew_bytes"] / 2**20], most=0),
    ]
    report(claims, file, pan_and_zoom=moved, live=followed)
