"""The examples run, several at once, as their first lines say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.ports import free_port

import penstock
from penstock.bench.demo_images import make_images

pytestmark = pytest.mark.whole

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*commands: list[str]) -> list[str]:
    """What these say, all started at once."""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [
        subprocess.Popen([sys.executable, "-W", "error", str(EXAMPLES / name), *arguments], **pipes)
        for name, *arguments in commands
    ]
    said: list[str] = []
    for process in processes:
        output, errors = process.communicate(timeout=100)
        assert process.returncode == 0, errors
        said.append(output)
    for feed in penstock.feeds():  # they would wait half a minute for other trainers
        penstock.stop(feed.name)
    return said


def test_classifiers_share_a_feed() -> None:
    wide, narrow = run(
        ["train.py", "--width", "64", "--epochs", "2"], ["train.py", "--width", "16", "--epochs", "2"]
    )
    assert wide.count("4000 images") == narrow.count("4000 images") == 2


def test_five_folds_train_on_one_feed() -> None:
    folds = run(*(["folds.py", "--fold", str(fold), "--epochs", "2"] for fold in range(5)))
    for said in folds:
        assert said.count("3200 images") == 2


def test_heads_train_on_what_an_encoder_gives_once() -> None:
    feed, *heads = run(
        ["frozen_encoder.py", "feed"], ["frozen_encoder.py", "head"], ["frozen_encoder.py", "head", "--lr", "0.01"]
    )
    for said in heads:
        assert said.count("4000 embeddings") == 2
    encoded = int(feed.split()[1])
    assert encoded < 3 * 4000, "two epochs, and what the later head caught up"


@pytest.mark.parametrize("data", [[], ["--data", str(EXAMPLES.parent / "README.md")]])
def test_language_models_share_a_feed(data: list[str]) -> None:
    for said in run(["language_model.py", "--width", "16", *data], ["language_model.py", "--width", "8", *data]):
        assert "epoch 0, loss" in said


def test_recommenders_share_a_table_that_one_of_them_writes(tmp_path: Path) -> None:
    table = ["--data", str(tmp_path / "clicks.parquet"), "--rows", "30000", "--batch-size", "256"]
    for said in run(["recommender.py", *table], ["recommender.py", "--lr", "0.01", "--width", "8", *table]):
        areas = [float(area) for area in re.findall(r"30000 rows, .* AUC (.*)", said)]
        assert len(areas) == 3 and areas[0] > 0.6 and areas[2] > areas[0]
    assert [path.name for path in tmp_path.iterdir()] == ["clicks.parquet"]


def test_trainings_of_a_stream_come_leave_and_come_back() -> None:
    (said,) = run(["stream.py"])
    losses = [float(loss) for loss in re.findall(r"lr 0.05: 1000 clicks, loss before learning (.*)", said)]
    assert len(losses) == 6 and losses[5] < losses[0] and said.count("lr 0.01: 1000 clicks") == 6
    assert "lr 0.05: goes on with epoch 3" in said


@pytest.mark.timeout(300)
def test_a_sweep_is_scheduled(tmp_path: Path) -> None:
    make_images(tmp_path / "images", images=128, side_px=(70, 90))
    (tmp_path / "sweep.py").write_text((EXAMPLES / "sweep.py").read_text())
    text = (EXAMPLES / "sweep.yaml").read_text()
    text = text.replace(", 0.01, 0.003, 0.001, 0.0003", "").replace("epochs: 15", "epochs: 2")
    (tmp_path / "sweep.yaml").write_text(text.replace("--epochs 15", f"--epochs 2 --images {tmp_path}/images"))
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "schedule", "run", str(tmp_path / "sweep.yaml"), "--json"],
        env={**os.environ, "PENSTOCK_STORE": str(tmp_path / "store")},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epoch 1: 64 images") == 4, done.stdout
    runs = json.loads(done.stdout[done.stdout.index("\n{\n") :])["runs"]
    assert [(run["status"], len(run["gpus"])) for run in runs] == [("finished", 1)] * 4


@pytest.mark.timeout(300)
def test_a_spec_compares_runs_alone_together_and_on_one_feed(tmp_path: Path) -> None:
    make_images(tmp_path / "images", images=64, side_px=(70, 90))
    (tmp_path / "photos.py").write_text((EXAMPLES / "photos.py").read_text())
    text = re.sub(
        r".*(name: [cd],|name: draw|photos.py --epochs 0).*\n", "", (EXAMPLES / "collocation.yaml").read_text()
    )
    (tmp_path / "spec.yaml").write_text(text.replace("--width", f"--epochs 1 --data {tmp_path}/images --width"))
    said = [
        subprocess.run(
            [sys.executable, "-m", "penstock", *words],
            env={**os.environ, "PENSTOCK_STORE": str(tmp_path / "store"), "XDG_CACHE_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=250,
            check=True,
        ).stdout
        for words in (
            ["run", "--store", str(tmp_path / "store"), str(tmp_path / "spec.yaml")],
            ["runs", "compare", "own loaders", "one feed", "--json"],
        )
    ]
    groups = json.loads(said[1])["groups"]
    assert [(group["name"], group["mode"]) for group in groups] == [
        ("own loaders", "alone"),
        ("own loaders", "plain"),
        ("one feed", "plain"),
    ]
    for group in groups:
        assert all(run["samples"] == 64 and run["parts"]["computing"] is not None for run in group["runs"]), group


def test_ranks_on_two_machines_see_each_sample_once(tmp_path: Path) -> None:
    ranks, port = [], str(free_port())
    for rank in range(2):
        machine = tmp_path / f"machine {rank}"
        machine.mkdir(mode=0o700)
        group = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {**os.environ, **group, "PENSTOCK_DIR": str(machine)}
        command = [sys.executable, str(EXAMPLES / "machines.py")]
        ranks.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    said = [rank.communicate(timeout=100)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert said[0].count("2000 of 2000 samples once") == 2
    for machine in tmp_path.iterdir():
        penstock_of = {**os.environ, "PENSTOCK_DIR": str(machine)}
        subprocess.run([sys.executable, "-m", "penstock", "stop", "points"], env=penstock_of, check=True)
