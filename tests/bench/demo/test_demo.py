"""The whole demo on a few small images: real runs, real loaders, a real feed."""

from __future__ import annotations

import io
import os
import random
import socket
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
import torch

from penstock.basics.terminal import console
from penstock.bench.demo import EACH, FEED, DemoReport
from penstock.bench.demo_images import CLASSES, Crops, find_images, make_images, runs
from penstock.bench.demo_trainer import as_input, small_network
from penstock.cli import demo as command
from penstock.errors import BadSetting

# Each run of the demo starts a dozen processes that import torch, on a machine that may be busy.
pytestmark = [pytest.mark.whole, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("data") / "few"
    make_images(root, images=40, side_px=(70, 90))
    return root


def demo(data: Path, report: Path, monkeypatch, **settings) -> tuple[DemoReport, str]:
    said = io.StringIO()
    monkeypatch.setattr(command, "console", lambda: console(file=said, width=80))
    command.demo(**{"data": data, "report": report, "trainers": 2, "epochs": 1, "images": 0, **settings})
    return msgspec.json.decode(report.read_bytes(), type=DemoReport), said.getvalue()


def test_all_arms_train_the_same_models_on_the_same_images(images, tmp_path, monkeypatch):
    before = psutil.Process().children(recursive=True)
    report, said = demo(images, tmp_path / "report.json", monkeypatch, epochs=2)
    assert report.arms == [EACH, FEED]
    for arm in report.figures:
        assert [run.images for run in arm.runs] == [80, 80]
        assert arm.workers == max(len(os.sched_getaffinity(0)) // 2, 1) * 2
        for name in ("images_per_s", "wall_s", "cpu_s", "cpu_s_per_1000_images", "peak_pss_bytes"):
            assert getattr(arm, name) > 0
        assert [run.width for run in arm.runs] == [8, 16]
    times = report.figures[1].images_per_s / report.figures[0].images_per_s
    assert f"2 training runs on one feed: {times:.1f} times the images/s" in said
    assert psutil.Process().children(recursive=True) == before
    assert max(map(len, said.splitlines()[:-2])) <= 80 and "…" not in said
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    assert report.settings.data == "few"
    for private in (str(images.parent), str(Path.home()), os.getcwd(), socket.gethostname()):
        assert private not in (tmp_path / "report.json").read_text()
    shown = [line.split() for line in said.splitlines()]
    for each in report.figures[0].runs:
        name = [each.name, str(each.width), f"{each.learning_rate:g}", str(each.batch_size)]
        assert [len(line) for line in shown if line[:4] == name] == [7]


def test_a_bad_jpeg_is_named_and_nobody_is_left(images, tmp_path, monkeypatch):
    before = psutil.Process().children(recursive=True)
    bad = images / "circle-stripes" / "99999.jpg"
    whole_file = next(bad.parent.iterdir()).read_bytes()
    bad.write_bytes(whole_file[: len(whole_file) // 2])
    try:
        with pytest.raises(BadSetting, match=r"^\S*99999\.jpg cannot be decoded as a JPEG \([^\n]+$"):
            demo(images, tmp_path / "report.json", monkeypatch)
    finally:
        bad.unlink()
    assert psutil.Process().children(recursive=True) == before
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"report": Path("nowhere/report.json")}, "its directory does not exist"),
        ({"report": Path("report.png")}, "the report is JSON"),
    ],
)
def test_settings_out_of_range_are_errors(images, tmp_path, monkeypatch, settings, said):
    with pytest.raises(BadSetting, match=said):
        demo(**{"data": images, "report": tmp_path / "report.json", "monkeypatch": monkeypatch, **settings})


def test_the_demos_own_images_can_be_learnt(tmp_path):
    def made(name: str, images: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        make_images(tmp_path / name, images=images, side_px=(80, 100), seed=seed)
        items = Crops(find_images(tmp_path / name, None).train, 64)
        pixels, labels = zip(*(items[index] for index in range(len(items))), strict=True)
        return torch.from_numpy(np.stack(pixels)), torch.tensor(labels)

    random.seed(0)  # crops
    torch.manual_seed(0)
    images, truth = made("train", 300, seed=0)
    model = small_network(8, len(CLASSES), 64)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(30):
        for some in torch.randperm(len(truth)).split(20):
            loss = torch.nn.functional.cross_entropy(model(as_input(images[some], "cpu")), truth[some])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    unseen, labels = made("test", 100, seed=1)
    model.eval()
    assert (model(as_input(unseen, "cpu")).argmax(1) == labels).float().mean() > 0.3  # chance is 0.1


def test_runs_differ():
    assert len({(each.width, each.learning_rate, each.batch_size) for each in runs(8)}) == 8
    assert len(runs(20)) == 20
