"""Images, histograms and texts on a run's page: as a script logs them, by step, and never as markup."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import pytest
from tests.forked import eventually
from tests.scripts import run_python
from tests.web.seeded import group

from penstock.runs.record import RunRecord

pytestmark = pytest.mark.page
HOSTILE = "<img src=x onerror=alert(1)>/../%2e"
DIGITS = """
import numpy as np, penstock
x = np.linspace(-3, 3, 60)
for step in range(0, 500, 10):
    wave = 127 + 120 * np.sin(x[:, None] * (1 + step / 100)) * np.cos(x[None, :])
    weights = np.random.default_rng(step).normal(step / 200, 1 / (1 + step / 100), 4000)
    if step == 100: weights[:3] = np.nan, np.nan, np.inf
    if step == 200: weights[:] = np.nan
    pixels = np.stack([wave, wave.T, 255 - wave], 2).astype(np.uint8)
    penstock.log({"sample/wave": pixels, "layer 1/weights": weights,
                  "said": f"at step {step}: once upon a time", "loss": 1 / (1 + step)}, step=step)
"""


def script(store: Any, run: RunRecord, text: str) -> None:
    environment = {**os.environ, "PENSTOCK_STORE": str(store.folder), "PENSTOCK_RUN_ID": run.id}
    ran = run_python("-c", text, env=environment)
    assert (ran.returncode, ran.stderr) == (0, "")


def card(page: Any, name: str) -> Any:
    return page.locator("main .logged").filter(has=page.get_by_role("heading", name=name, exact=True))


def test_images_histograms_and_texts_are_shown_by_step(tab, store):
    [run] = group(store, "one")
    script(store, run, DIGITS)
    one = tab()
    page = one.view(f"run/{run.id}")
    wave = card(page, "sample/wave")
    wave.locator("img").scroll_into_view_if_needed()
    assert wave.locator("img").get_attribute("alt") == "sample/wave, step 490"
    eventually(lambda: wave.locator("img").evaluate("each => each.naturalWidth") == 60)
    before = wave.locator("img").get_attribute("src")
    wave.get_by_role("slider").focus()
    page.keyboard.press("ArrowLeft")
    assert wave.locator("img").get_attribute("alt") == "sample/wave, step 480"
    assert wave.locator("img").get_attribute("src") != before
    page.keyboard.press("Home")
    assert wave.get_by_role("slider").get_attribute("aria-valuetext") == "step 0"
    said = card(page, "said")
    said.scroll_into_view_if_needed()
    eventually(lambda: said.locator("pre").inner_text() == "at step 490: once upon a time")
    said.get_by_role("slider").fill("7")
    assert said.locator("pre").inner_text() == "at step 70: once upon a time"
    weights = card(page, "layer 1/weights").locator("canvas")
    eventually(lambda: "steps 0 to 490" in (weights.get_attribute("aria-label") or ""))
    assert card(page, "layer 1/weights").locator("p").inner_text() == "NaN: 4,002, infinite: 1"
    low, high = map(float, re.findall(r"-?\d+\.?\d*", weights.get_attribute("aria-label"))[1:3])
    for step, column in ((0, 5), (490, 795)):
        shades = np.array(
            weights.evaluate(f"c => [...c.getContext('2d').getImageData({column}, 0, 1, c.height).data]")
        )
        shades = shades[3::4] ** 2.0  # opacity is the root of a bin's part
        mean = high - (high - low) * (shades * np.arange(len(shades))).sum() / shades.sum() / len(shades)
        assert mean == pytest.approx(step / 200, abs=0.1)
    assert page.locator("table[aria-label=Files]").count() == 0, "what is shown is not listed again"
    one.picture("logged")


def test_what_comes_while_the_page_is_open_is_followed_unless_somebody_looks_at_another(tab, store):
    [run] = group(store, "one", status=None)
    script(store, run, "import penstock; [penstock.log(said=f'no {i}', step=i) for i in range(3)]")
    page = tab().view(f"run/{run.id}")
    said = card(page, "said")
    eventually(lambda: said.count() and said.locator("pre").inner_text() == "no 2")
    script(store, run, "import penstock; penstock.log(said='no 3', step=3)")
    eventually(lambda: said.locator("pre").inner_text() == "no 3")
    said.get_by_role("slider").fill("1")
    script(store, run, "import penstock; penstock.log(said='no 4', step=4)")
    eventually(lambda: said.get_by_role("slider").get_attribute("max") == "4")
    assert said.locator("pre").inner_text() == "no 1"


def test_names_and_texts_are_text_and_files_of_others_are_no_pictures(tab, store):
    [run] = group(store, "one")
    script(
        store,
        run,
        f"import penstock, numpy as np\nname = {HOSTILE!r}\n"
        "penstock.log({name: '<script>alert(2)</script>'}); penstock.log({name: np.zeros((2, 2, 3), np.uint8)})",
    )
    folder = store.folder_of(run.id) / "files" / "log"
    for name, content in {
        "bad/histogram.0123abcd.jsonl": '{"step": 0, "counts": [1\n[]\nnull\n"text"\n',
        "%zz/text.0123abcd.jsonl": '{"step": 1, "time": 2, "text": "kept"}\n{"step": 2, "te',
        "page/1.0123abcd.0.png": "<script>alert(3)</script>",
        "page/1.0123abcd.0.svg": "<svg onload=alert(4) xmlns='http://www.w3.org/2000/svg'/>",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    one = tab()
    page = one.view(f"run/{run.id}")
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    texts = page.locator("main .logged pre")
    eventually(lambda: sorted(texts.all_inner_texts()) == ["<script>alert(2)</script>", "kept"])
    assert page.locator("main .logged h3").all_inner_texts().count(HOSTILE) == 2
    assert page.locator("main .logged h3 img, main .logged script").count() == 0
    assert "page/1.0123abcd.0.svg" in page.locator("table[aria-label=Files]").inner_text()
    assert not dialogs


def test_images_that_are_not_seen_are_not_loaded(tab, store):
    [run] = group(store, "one")
    script(
        store,
        run,
        "import penstock, numpy as np\n"
        "for i in range(80): penstock.log({f'image {i}': np.zeros((400, 400, 3), np.uint8)}, step=i)",
    )
    one = tab(viewport={"width": 390, "height": 700})
    asked: list[str] = []
    one.page.on("request", lambda request: asked.append(request.url) if ".png" in request.url else None)
    page = one.view(f"run/{run.id}")
    page.locator("main .logged img").first.scroll_into_view_if_needed()
    eventually(lambda: len(asked) > 0)
    assert page.locator("main .logged").count() == 30
    page.wait_for_timeout(500)
    assert len(set(asked)) < 20
    page.get_by_role("button", name=re.compile("Show more of 80")).click()
    assert page.locator("main .logged").count() == 60
