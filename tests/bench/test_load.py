"""Which loader of images is the fastest: measured in turns, on one's own images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import simplejpeg
from rich.console import Console
from tests.sources.images.pictures import textures

import penstock
from penstock.bench import load as run
from penstock.bench.experiment import ArmFailed
from penstock.bench.load import LoadFigures, LoadReport, LoadSettings, shown
from penstock.bench.load_images import ARMS
from penstock.runs.machine import describe
from penstock.sources.images.decoders import decoder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    textures(tmp_path / "images")
    (tmp_path / "images" / "root.jpg").write_bytes(next((tmp_path / "images").rglob("*.jpg")).read_bytes())
    (tmp_path / "images" / "none.png").touch()
    return tmp_path / "images"


def settings(folder: Path, **changes: Any) -> LoadSettings:
    common: dict[str, Any] = {"size": 32, "batch_size": 8, "workers": 1, "seconds": 0.2, "repeats": 1}
    return LoadSettings(folder=str(folder), **{**common, **changes})


@pytest.mark.whole
def test_loaders_that_are_installed_are_measured_and_shown(folder, command, tmp_path):
    words = ["--loaders", "simplejpeg", "--seconds", "0.6", "--repeats", "2", "--size", "32", "--batch-size", "8"]
    ran = command("bench", "load", str(folder), *words, "--json", str(tmp_path / "x.json"))
    assert ran.returncode == 0, ran.stderr
    assert "Penstock ImageSource" in ran.stdout
    report = json.loads((tmp_path / "x.json").read_text())
    used = f"simplejpeg {simplejpeg.__version__}"
    found = [(each["arm"], each["repeat"], each["figures"]["decoder"]) for each in report["results"]]
    assert sorted(found) == [
        *(("penstock", repeat, decoder().name) for repeat in range(2)),
        *(("simplejpeg", repeat, used) for repeat in range(2)),
    ]
    for figures in (each["figures"] for each in report["results"]):
        assert figures["samples_per_s"] > 10 and figures["cpu_ms_per_sample"] > 0
    assert used in ran.stdout and decoder().name in ran.stdout


def test_a_loader_that_fails_is_named_with_its_reason(folder, monkeypatch):
    figures = LoadFigures(samples_per_s=10.0, cpu_ms_per_sample=1.0, first_batch_s=0.1)
    true = run._figures
    monkeypatch.setattr(run, "_figures", lambda arm, *rest: figures if arm == "penstock" else true(arm, *rest))
    absent = ARMS["pillow"]._replace(modules=("no_such.module",))
    monkeypatch.setitem(run.IMAGES.loaders, "pillow", absent)

    def fails(repeat: int) -> LoadFigures:
        raise ArmFailed("its driver is missing")

    report = run.measure(settings(folder), ["penstock", "pillow"], lambda *_: None, {"dali": fails})
    assert report.absent == {"pillow": "not installed (no_such.module)", "dali": "its driver is missing"}
    assert report.of("penstock") == {0: figures}


def test_the_table_has_the_fastest_first_and_ratios_turn_by_turn(folder, capsys):
    loads = settings(folder, repeats=2)
    report = LoadReport(benchmark="", settings=loads, absent={"dali": "why"}, machine=describe())
    for arm, speeds in {"pillow": (100, 250), "penstock": (200, 500)}.items():
        for repeat, speed in enumerate(speeds):
            report.add(arm, repeat, LoadFigures(samples_per_s=speed, cpu_ms_per_sample=1.5, first_batch_s=0.5))
    Console(width=120).print(shown(report), soft_wrap=True)
    lines = capsys.readouterr().out.splitlines()[-4:]
    assert [line.split("  ")[0] for line in lines[1:3]] == ["Penstock ImageSource", "torch DataLoader, Pillow"]
    assert lines[2].split()[-3] == "2"
    assert lines[3] == "dali: why"


@pytest.mark.parametrize("kind", [run.IMAGES, run.TABLES])
def test_no_word_of_the_table_is_cut_in_a_narrow_terminal(folder, capsys, kind):
    loads = settings(Path("x/*.parquet") if kind is run.TABLES else folder)
    report = LoadReport(benchmark="", settings=loads, machine=describe())
    for arm in kind.loaders:
        figures = LoadFigures(
            samples_per_s=1234567, cpu_ms_per_sample=9, first_batch_s=12, decoder="pyarrow 26.0.1"
        )
        report.add(arm, 0, figures)
    Console(width=80).print(shown(report), soft_wrap=True)
    _, *lines = capsys.readouterr().out.splitlines()
    names = " ".join(loads.name for loads in kind.loaders.values()).split()
    assert max(map(len, lines)) <= 80
    assert {*names} <= {*" ".join(lines).split()}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nowhere",), "nowhere: no JPEGs"),
        ((".", "--loaders", "fastest"), "--loaders fastest: choose of penstock, pillow"),
        ((".", "--json", "nowhere/x.json"), "its directory does not exist"),
    ],
)
def test_mistakes_are_said_in_words(command, tmp_path, words, says):
    ran = command("bench", "load", *words, cwd=tmp_path)
    assert ran.returncode == 2
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr


def test_data_without_what_is_asked_for_is_refused(folder):
    with pytest.raises(penstock.errors.BadSetting, match="--columns id: only tables have columns"):
        run.measure(settings(folder, columns=("id",)), ["penstock"], lambda *_: None)
    with pytest.raises(penstock.errors.BadSetting, match="no JPEGs"):
        run.measure(settings(folder / "none"), ["penstock"], lambda *_: None)
