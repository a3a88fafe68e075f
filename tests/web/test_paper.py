"""Pictures of the page's charts and bars: asked of the server, and shown in a notebook."""

from __future__ import annotations

import math
import re
import threading
import warnings
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import pytest
from tests.cli.conftest import without
from tests.web.seeded import group

import penstock
from penstock.errors import BadSetting, NoSuchRun
from penstock.runs.store import Store
from penstock.web.lines import chart, line_over, smoothed
from penstock.web.paper.panels import PARTS
from penstock.web.paper.pictures import runs_picture

pytestmark = pytest.mark.whole


def figure(page, **asked) -> str:
    answer = page.ask("/api/figure?" + urlencode({"format": "svg", **asked}, doseq=True))
    assert answer.status == 200, answer
    return answer.body.decode()


def points(svg: str, id: str) -> np.ndarray:
    """Return the points of a line, in the picture's units, up where values are greater."""
    path = re.search(rf'id="{id}">\s*<path d="([^"]*)"', svg)[1]
    return np.array([[float(x), -float(y)] for x, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", path)])


def test_a_chart_is_drawn_as_the_page_draws_it(page, store):
    loss = [2 / (1 + at) for at in range(30)]
    [run] = group(store, "one", series={"loss": loss, "step": [100.0 * at for at in range(30)]})
    svg = figure(page, name="loss", id=run.id, over="series:step", smoothing=0.9)
    assert ">step<" in svg and ">loss<" in svg and ">2,500<" in svg
    for id, values in (("values 0", np.array(loss)), ("line 0", smoothed(np.array(loss), 0.9))):
        drawn = points(svg, id)
        where = np.linspace(0, 1, 30)
        assert (drawn[:, 0] - drawn[0, 0]) / np.ptp(drawn[:, 0]) == pytest.approx(where, abs=1e-3)
        assert np.corrcoef(drawn[:, 1], values)[0, 1] > 0.99999
    first = figure(page, name="loss", id=run.id, over="", begin=10, end=20)
    assert ">10<" in first and ">20<" in first and ">time (s)<" in first and ">60<" not in first
    assert "UTC" in figure(page, name="loss", id=run.id, over="clock", log="true")


@pytest.mark.parametrize("over", ["time", "clock"])
def test_values_that_are_no_numbers_are_within_the_picture(store, over):
    nothing = group(store, "nothing", series={"loss": [math.nan] * 3})
    diverged = group(store, "diverged", series={"loss": [1.0, 2.0, math.nan]})
    for runs in (nothing, diverged):
        picture = runs_picture(store, runs, ["loss"], over=over, smoothing=0, log=False, columns=1)
        picture.content("png")  # which lays it out
        [axes] = picture.axes
        signs = [each for each in axes.texts if each.get_text() == "×"]
        assert len(signs) == {"nothing": 3, "diverged": 1}[runs[0].group]
        low, high = axes.get_xlim()
        assert all(low < axes.convert_xunits(sign.get_position()[0]) < high for sign in signs)


def test_groups_of_several_starts_have_their_mean_and_deviation(page, store):
    starts = [group(store, "again", series={"proc.cpu_s": [0.0, cpu_s]})[0].group_id for cpu_s in (6.0, 12.0)]
    both, one = figure(page, group=",".join(starts)), figure(page, group=starts[0])
    assert ">9<" in both and ">standard deviation<" in both
    assert ">6<" in one and "deviation" not in one


def test_the_time_of_groups_is_drawn_run_by_run(page, store):
    one, other = group(store, "first", runs=["a", "b"]), group(store, "second", mode="mps", series={"loss": [1.0]})
    ids = [one[0].group_id, other[0].group_id]
    svg = figure(page, group=ids, of="parts")
    for text in (
        "a, first plain",
        "b, first plain",
        "a, second mps",
        "not recorded",
        *(text for _, text, _, _ in PARTS),
    ):
        assert f">{text}<" in svg
    assert ">CPU time (s)<" in figure(page, group=ids, of="groups")
    content = page.ask("/api/figure?" + urlencode({"format": "pdf", "group": ids, "of": "parts"}, doseq=True))
    assert content.headers["Content-Type"] == "application/pdf" and b"/FontFile2" in content.body


ABSENT = [
    ("format=gif", 400, "give one of pdf, svg, png"),
    ("format=pdf&group=absent", 404, "no run of the groups absent has begun"),
    ("format=pdf&name=loss&id=absent", 404, "has no run 'absent'"),
    ("format=pdf&name=loss&over=clock&begin=1e300", 400, "s since 1970: give moments up to 2e+11"),
    (
        "format=pdf&name=loss&over=step&begin=-1e308&end=1e308",
        400,
        "from -1e+308 to 1e+308: give places up to 1e+100",
    ),
    ("format=pdf&name=loss&begin=3&end=2", 400, "from 3 to 2: give a begin below an end"),
    ("format=pdf&name=loss&band=wide", 400, "band='wide': give one of range, deviation, error"),
]


def test_several_ask_at_once_and_a_picture_that_is_not_there_is_one_sentence(page, store):
    for asked, status, says in ABSENT:
        answer = page.ask(f"/api/figure?{asked}")
        assert answer.status == status and says in answer.body.decode()
    [run] = group(store, "one")
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(figure(page, name="loss", id=run.id))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6 and len(set(found)) == 1


def test_a_server_without_matplotlib_says_what_is_missing(open_page, store, tmp_path):
    [run] = group(store, "one")
    page = open_page(environment=without(tmp_path, "matplotlib"))
    page.enter()
    assert page.ask(f"/api/chart?name=loss&id={run.id}").status == 200
    answer = page.ask(f"/api/figure?name=loss&id={run.id}&format=pdf")
    assert 'penstock web needs matplotlib: pip install \\"penstock[paper]\\"' in answer.body.decode()


def test_a_notebook_shows_what_a_runs_page_begins_with_or_what_is_named(store, tmp_path):
    series = {f"loss {at}": [3.0, math.nan, 1.0] for at in range(8)}
    group(store, "sweep", runs=["a", "b"], series={**series, "feed.loop_s": [0.0, 1.0]})
    store.close()
    folder = tmp_path / "store"
    shown = penstock.show("sweep", store=folder)
    assert [axes.get_ylabel() for axes in shown.axes] == [f"loss {at}" for at in range(6)]
    assert shown._repr_png_().startswith(b"\x89PNG")
    named = penstock.show("sweep", "feed.loop_s", "loss 7", over="clock", log=True, store=str(folder))
    assert [axes.get_ylabel().replace("\n", " ") for axes in named.axes] == [
        "In loops over loaders (% of the time)", "loss 7",
    ]  # fmt: skip
    assert [axes.get_yscale() for axes in named.axes] == ["log", "log"]
    named.savefig(tmp_path / "x.svg")
    for wrong, error in ((("absent",), NoSuchRun), (("sweep", "absent"), BadSetting)):
        with pytest.raises(error):
            penstock.show(*wrong, store=folder)
    with pytest.raises(BadSetting, match="smoothing 2: give a weight"):
        penstock.show("sweep", smoothing=2, store=folder)


def test_a_notebook_is_told_what_a_font_lacks_and_of_other_warnings(store, monkeypatch):
    runs = group(store, "sweep", runs=["訓練", "b"], series={"loss": [2.0, 1.0]})
    picture = runs_picture(store, runs, ["loss"], over="time", smoothing=0, log=False, columns=1)
    with pytest.warns(UserWarning, match="boxes stand for what the font lacks: 訓, 練"):
        picture._repr_png_()
    monkeypatch.setattr(picture, "savefig", lambda *_, **__: warnings.warn("something else", stacklevel=1))
    with pytest.warns(UserWarning, match="something else"):
        picture.content("png")
    assert not picture.lacks


def test_a_million_points_become_a_small_picture_with_its_peaks(tmp_path: Path):
    with Store.open(tmp_path / "store") as store:
        values = np.zeros(1_000_000)
        values[333_333] = 5.0
        [run] = group(store, "long", series={"loss": values.tolist()})
        drawn = chart([[line_over("loss", store.series(run.id), "", run.began)]], -math.inf, math.inf, 2000, 0.0)
        assert max(drawn["lines"][0][1]) == 5.0 and len(drawn["times"]) <= 2000
        assert len(penstock.show("long", store=store.folder).content("pdf")) < 100_000
