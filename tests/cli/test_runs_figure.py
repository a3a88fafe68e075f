"""``penstock runs figure``: groups beside each other and metrics of runs, as files for a paper."""

from __future__ import annotations

import json
import re
import struct
import xml.etree.ElementTree as ET
from itertools import combinations
from pathlib import Path

import pytest
from tests.cli.conftest import refused, told, without
from tests.page.collocation import KINDS, add
from tests.web.seeded import group

from penstock.runs.compare import each_start, group_figures
from penstock.web.paper.draw import groups_picture
from penstock.web.paper.panels import panels_of
from penstock.web.paper.pictures import runs_picture

pytestmark = pytest.mark.whole
SVG = "{http://www.w3.org/2000/svg}"


def texts(file: Path) -> list[str]:
    return ["".join(each.itertext()).strip() for each in ET.parse(file).iter(f"{SVG}text")]


@pytest.fixture
def study(store):
    added = [add(store, kind, 1.79e9 + 5000 * at, every_s=10) for at, kind in enumerate(KINDS[:3])]
    return [store.runs(runs[0].group_id) for runs in added]


def test_a_study_of_collocation_is_one_picture_with_its_values_and_units(command, store, study, tmp_path):
    file = tmp_path / "fig.svg"
    assert told(command("runs", "figure", "own loaders", "--out", str(file))) == f"Drew 12 runs into {file}.\n"
    found = texts(file)
    for label in ("time an epoch (s)", "throughput (samples/s)", "CPU time (s)", "energy (kJ)", "memory (GiB)"):
        assert label in found
    assert [text for text in found if text in {"alone", "plain", "mps"}][:3] == ["alone", "plain", "mps"]
    groups = [group_figures(runs, lambda run: store.series(run.id)) for runs in study]
    for each in groups:
        assert f"{each.epoch_s:.3g}" in found and f"{each.samples_per_s:,.0f}" in found
        assert f"{sum(each.energy_measured_j.values()) / 1000:,.0f}" in found
        assert f"{each.memory_bytes / 2**30:.3g}" in found
    assert file.read_text().count("<use") > 4 * 12, "each run is a dot in four panels"


@pytest.mark.parametrize(("columns", "points"), [("1", 3.4 * 72), ("2", 7 * 72)])
def test_a_pdf_is_as_wide_as_a_column_and_has_its_text_in_truetype(command, study, tmp_path, columns, points):
    told(command("runs", "figure", "own loaders", "--columns", columns, "--out", str(tmp_path / "fig.pdf")))
    content = (tmp_path / "fig.pdf").read_bytes()
    assert content.startswith(b"%PDF") and b"/FontFile2" in content and b"/Type3" not in content
    assert float(re.search(rb"/MediaBox \[ 0 0 ([\d.]+)", content)[1]) == pytest.approx(points, abs=0.1)
    told(command("runs", "figure", "own loaders", "--columns", columns, "--out", str(tmp_path / "again.pdf")))
    assert (tmp_path / "again.pdf").read_bytes() == content


def test_what_nobody_recorded_is_left_out_and_said(command, store, tmp_path):
    group(store, "bare", mode="alone", series={"proc.cpu_s": [0.0, 6.0]})
    group(
        store, "bare", runs=["a", "b"], status="failed", series={"feed.epoch_s": [2.0], "proc.cpu_s": [0.0, 3.0]}
    )
    ran = command("runs", "figure", "bare", "--out", str(tmp_path / "f.svg"), "--json")
    missing = json.loads(ran.stdout)["missing"]
    assert missing == [
        "time an epoch was not recorded of every run of 'bare' (alone)",
        "throughput is left out: nobody recorded it",
        "energy is left out: nobody recorded it",
        "memory is left out: nobody recorded it",
        "2 of 2 runs of 'bare' (plain) did not finish",
    ]
    assert ran.stderr.splitlines() == [f"penstock: {sentence}" for sentence in missing]
    found = texts(tmp_path / "f.svg")
    assert "time an epoch (s)" in found and "recorded" in found and not any("memory" in text for text in found)
    group(store, "none", series={"loss": [1.0]})
    assert "there is nothing to draw" in refused(
        command("runs", "figure", "none", "--out", str(tmp_path / "n.svg"))
    )


def test_a_metric_is_drawn_over_steps_with_its_runs_named_as_they_are(command, store, tmp_path):
    for at, name in enumerate(("lr_$1$ <a>", "lr_2")):
        series = {"train/loss": [4.0 - at, 2.0, float("nan"), 1.0], "step": [0.0, 1000, 2000, 3000]}
        group(store, f"lr {at}", runs=[name], series={**series, "proc.rss_bytes": [2.0**30, 2.0**31]})
    file = tmp_path / "fig.svg"
    words = ["--series", "train/loss", "--over", "step", "--smoothing", "0.5", "--log"]
    told(command("runs", "figure", "lr 0", "lr 1", *words, "--out", str(file)))
    found = texts(file)
    assert {"train/loss", "step", "lr_$1$ <a>", "lr_2", "3,000", "×"} <= set(found)
    drawn = {each.get("id"): each for each in ET.parse(file).iter(f"{SVG}g") if each.get("id")}
    assert {"values 0", "values 1", "line 0", "line 1"} <= drawn.keys(), "the values stand behind their average"
    told(command("runs", "figure", "lr 0", "--series", "proc.rss_bytes", "--out", str(file)))
    assert "Memory of its processes (GiB)" in " ".join(texts(file)) and {"time (s)", "60"} <= set(texts(file))


def test_runs_without_a_line_are_named_and_stand_in_no_legend(command, store, tmp_path):
    group(store, "sweep", runs=["has epochs"], series={"loss": [2.0, 1.0], "epoch": [0.0, 1.0]})
    group(store, "sweep", runs=["has none"], series={"loss": [2.0, 1.0]})
    group(store, "sweep", runs=["also has"], series={"loss": [3.0, 1.0], "epoch": [0.0, 1.0]})
    file = tmp_path / "fig.svg"
    ran = command("runs", "figure", "sweep", "--all", "--series", "loss", "--over", "epoch", "--out", str(file))
    assert ran.returncode == 0 and "nothing to draw over epoch was recorded of has none" in ran.stderr
    assert {"has epochs", "also has"} <= set(texts(file)) and "has none" not in texts(file)


def test_characters_that_the_font_lacks_are_one_sentence(command, store, tmp_path):
    group(store, "sweep", runs=["訓練", "b"], series={"loss": [2.0, 1.0]})
    for kind, lacks in (("pdf", True), ("png", True), ("svg", False)):
        ran = command("runs", "figure", "sweep", "--series", "loss", "--out", str(tmp_path / f"fig.{kind}"))
        assert ran.returncode == 0
        assert ("boxes stand for what the font lacks: 訓, 練" in ran.stderr) == lacks
    assert "訓練" in texts(tmp_path / "fig.svg")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--out x.gif", "its name ends in .pdf, .svg, .png"),
        ("--out nowhere/x.pdf --series loss", "cannot be written: No such file"),
        (
            "--out x.pdf --series lss",
            "no run that was asked for (1) has a series 'lss'. They have loss, feed.wait_s",
        ),
        ("--out x.pdf --series loss --over turn", "over 'turn': give time, clock, step, epoch, or series:NAME"),
        ("--out x.pdf --series loss --over epoch", "has logged 'epoch'"),
        ("--out x.pdf --series loss --smoothing 1", "smoothing 1: give a weight from 0 to below 1"),
        ("--out x.pdf --log", "give its --series, too"),
    ],
)
def test_a_picture_that_cannot_be_is_one_error(command, store, tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    group(store, "one")
    assert says in refused(command("runs", "figure", "one", *words.split()))
    assert not list(tmp_path.glob("*.pdf"))


def test_without_matplotlib_pictures_are_one_error_that_names_the_extra(piped, store, tmp_path):
    group(store, "one")
    words = ["runs", "figure", "one", "--series", "loss", "--out", str(tmp_path / "x.pdf")]
    failed = piped(*words, PENSTOCK_STORE=str(store.folder), **without(tmp_path, "matplotlib"))
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.strip().endswith('penstock runs figure needs matplotlib: pip install "penstock[paper]"')


def test_a_picture_has_the_pixels_that_print_needs(command, study, tmp_path):
    told(command("runs", "figure", "own loaders", "--columns", "1", "--out", str(tmp_path / "x.png")))
    assert struct.unpack(">I", (tmp_path / "x.png").read_bytes()[16:20])[0] == 1020


def test_several_starts_of_a_run_are_one_line_their_mean(command, store, tmp_path):
    for first in (2.0, 4.0, 6.0):
        group(store, "again", runs=["a", "b"], series={"loss": [first, 1.0], "step": [0.0, 1.0]})
    group(store, "again", mode="mps", runs=["a"], series={"loss": [9.0, 9.0], "step": [0.0, 1.0]})
    file = tmp_path / "fig.svg"
    words = ("runs", "figure", "again", "--series", "loss", "--over", "step", "--out", str(file))
    assert command(*words).returncode == 0
    assert sum(each.get("id", "").startswith("line ") for each in ET.parse(file).iter(f"{SVG}g")) == 7
    assert command(*words, "--all").returncode == 0
    ids = [each.get("id", "") for each in ET.parse(file).iter(f"{SVG}g")]
    assert {each for each in ids if each.startswith(("line ", "band "))} == {
        *("line 0", "line 1", "line 2"),
        *("band 0", "band 1"),
    }
    found = " ".join(texts(file))
    assert "a of again (plain), mean of 3" in found and "a of again (mps)" in found
    runs = store.named(["again"])
    its = {"over": "step", "smoothing": 0.0, "log": False, "columns": 1, "means": True}
    [axes] = runs_picture(store, runs, ["loss"], **its).axes
    [line] = [each for each in axes.lines if each.get_gid() == "line 0"]
    assert [*line.get_ydata()] == [4.0, 1.0]
    [band] = [each for each in axes.patches if each.get_gid() == "band 0"]
    assert band.get_xy()[:, 1].min() == 1.0 and band.get_xy()[:, 1].max() == 6.0, "4 and 2 around it"


def test_repeats_of_one_command_are_one_line_their_mean(command, store, tmp_path):
    series = {"loss": [2.0, 1.0]}
    group(store, "one", runs=["a#0", "a#1", "b#0", "c"], series=series)
    group(store, "one", runs=["b#0"], series=series, command=("python", "other.py"))
    file = tmp_path / "fig.svg"
    told(command("runs", "figure", "one", "--all", "--series", "loss", "--out", str(file)))
    [first, other] = sorted(each for each in texts(file) if each.startswith("b#0"))
    assert {"a of one (plain), mean of 2", "c of one (plain)"} <= {*texts(file)} and first != other
    assert sum(each.get("id", "").startswith("line ") for each in ET.parse(file).iter(f"{SVG}g")) == 4


def test_several_starts_are_one_bar_with_their_deviation(command, store, tmp_path):
    for cpu_s in (6.0, 9.0, 12.0):
        group(store, "again", runs=["a", "b"], series={"feed.epoch_s": [cpu_s / 3], "proc.cpu_s": [0.0, cpu_s]})
    group(store, "once", series={"feed.epoch_s": [2.0], "proc.cpu_s": [0.0, 6.0]})
    file = tmp_path / "fig.svg"
    assert command("runs", "figure", "again", "once", "--all", "--out", str(file)).returncode == 0
    found = texts(file)
    assert {"3", "18", "6", "2"} <= {*found}, "means of starts: epochs of 2, 3, 4 s; CPU time of 12, 18, 24 s"
    assert "of several starts, their mean and standard deviation" in " ".join(found)
    of = lambda run: store.series(run.id)  # noqa: E731
    groups = [group_figures(store.runs(name), of) for name in ("again", "once")]
    starts = each_start({name: store.runs(name) for name in ("again", "once")}, of)
    assert {id: len(its) for id, its in starts.items()} == {groups[0].id: 3}
    panels = {panel.title: panel for panel in panels_of(groups, starts)[0]}
    assert panels["CPU time"].values == [18.0, 6.0] and panels["CPU time"].deviations == [6.0, 0.0]
    assert panels["time an epoch"].deviations == [1.0, 0.0]
    assert command("runs", "figure", "again", "--out", str(file)).returncode == 0
    assert "standard deviation" not in " ".join(texts(file))


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("count", [2, 5, 9, 14, 40])
def test_no_two_figures_or_names_of_a_panel_overlap(store, count, columns):
    for at in range(count):
        series = {"feed.epoch_s": [1234.5 + at], "proc.cpu_s": [0.0, 98765.0 + at], "proc.rss_bytes": [3e9 + at]}
        series |= {"feed.samples": [0.0, 654321.0 + at]} if at % 3 else {}
        group(store, f"a long name {at}", series=series)
    groups = [group_figures(store.runs(name), lambda run: store.series(run.id)) for name in names(store)]
    figure = groups_picture(groups, columns)
    figure.canvas.draw()
    shown = 0
    for axes in figure.axes:
        for some in (axes.texts, axes.get_xticklabels() if axes.xaxis.get_tick_params()["labelbottom"] else []):
            boxes = [each.get_window_extent() for each in some if each.get_visible() and each.get_text()]
            shown += len(boxes)
            assert not [1 for one, other in combinations(boxes, 2) if one.overlaps(other)]
    assert shown >= min(count, 20)
    assert bool(figure.crowded) == (count == 40 or (count, columns) == (14, 1))


def names(store) -> list[str]:
    return list(dict.fromkeys(run.group for run in store.runs()))
