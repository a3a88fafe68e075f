"""Which loader of images is the fastest: measured in turns, on one's own images."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import simplejpeg
from rich.console import Console
from tests.sources.images.pictures import textures

import penstock
from penstock.bench.load import run
from penstock.bench.load.command import shown
from penstock.bench.load.run import Measured, Report, Settings
from penstock.runs.machine import describe
from penstock.sources.images.decoders import decoder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    textures(tmp_path / "images")
    (tmp_path / "images" / "root.jpg").write_bytes(next((tmp_path / "images").rglob("*.jpg")).read_bytes())
    (tmp_path / "images" / "none.png").touch()
    return tmp_path / "images"


def settings(folder: Path, **changes: Any) -> Settings:
    common: dict[str, Any] = {"size": 32, "batch_size": 8, "workers": 1, "seconds": 0.2, "repeats": 1}
    return Settings(folder=str(folder), **{**common, **changes})


@pytest.mark.whole
def test_loaders_that_are_installed_are_measured_and_shown(folder, command, tmp_path):
    words = [
        "--seconds",
        "0.2",
        "--repeats",
        "2",
        "--size",
        "32",
        "--batch-size",
        "8",
        "--json",
        str(tmp_path / "x.json"),
    ]
    ran = command("bench", "load", str(folder), "--loaders", "simplejpeg,tf.data,dali", *words)
    assert ran.returncode == 0, ran.stderr
    assert "Penstock ImageSource" in ran.stdout
    assert "tf.data, decode and crop in one: not installed (tensorflow)" in ran.stdout
    report = json.loads((tmp_path / "x.json").read_text())
    assert set(report["measured"]) == {"penstock", "simplejpeg"}
    for measured in report["measured"].values():
        assert len(measured) == 2
        assert all(one["images_per_s"] > 10 and one["cpu_ms_per_image"] > 0 for one in measured)
    (used,) = {one["decoder"] for one in report["measured"]["simplejpeg"]}
    assert used == f"simplejpeg {simplejpeg.__version__}"
    assert {one["decoder"] for one in report["measured"]["penstock"]} == {decoder().name}
    assert used in ran.stdout and decoder().name in ran.stdout


def test_a_loader_that_fails_is_named_with_its_reason(folder, monkeypatch):
    there = {"penstock": "", "dali": ""}
    monkeypatch.setattr(run, "_missing", lambda arm, _python: there.get(arm, "not installed"))
    figures = Measured(images_per_s=10.0, cpu_ms_per_image=1.0, first_batch_s=0.1)
    true = run._measured
    monkeypatch.setattr(run, "_measured", lambda arm, *rest: figures if arm == "penstock" else true(arm, *rest))
    report = run.measure(settings(folder), ["penstock", "dali", "spdl"], {}, describe(), lambda what: None)
    assert "No module named 'nvidia" in report.absent["dali"]
    assert report.absent["spdl"] == "not installed"
    assert report.images_per_s("penstock") == 10


def test_the_table_has_the_fastest_first_and_ratios_turn_by_turn(folder, capsys):
    def measured(*speeds: float) -> list[Measured]:
        return [Measured(images_per_s=each, cpu_ms_per_image=1.5, first_batch_s=0.5) for each in speeds]

    loaders = {"pillow": measured(100, 250), "penstock": measured(200, 500)}
    report = Report(
        settings=settings(folder, repeats=2), measured=loaders, absent={"dali": "why"}, machine=describe()
    )
    Console(width=120).print(shown(report), soft_wrap=True)
    lines = capsys.readouterr().out.splitlines()[-4:]
    assert [line.split("  ")[0] for line in lines[1:3]] == ["Penstock ImageSource", "torch DataLoader, Pillow"]
    assert "2.00 x (2.00 to 2.00)" in lines[2]
    assert lines[3] == "NVIDIA DALI on the CPU: why"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nowhere",), "nowhere: no JPEGs"),
        ((".", "--loaders", "fastest"), "--loaders fastest: choose of penstock, pillow"),
        ((".", "--peer", "tf.data"), "--peer tf.data: give LOADER=PYTHON"),
        ((".", "--json", "nowhere/x.json"), "its directory does not exist"),
    ],
)
def test_mistakes_are_said_in_words(command, tmp_path, words, says):
    ran = command("bench", "load", *words, cwd=tmp_path)
    assert ran.returncode == 2
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_peer_is_looked_for_in_its_own_environment(folder):
    assert run._missing("penstock", sys.executable) == ""
    assert "no-python: No such file" in run._missing("penstock", str(folder / "no-python"))
    with pytest.raises(penstock.BadSetting, match="no JPEGs"):
        run.measure(settings(folder / "none"), ["penstock"], {}, describe(), lambda what: None)
