"""The whole demo on a few small images: real runs, real loaders, a real feed."""

from __future__ import annotations

import io
import json
import os
import socket
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
import torch

from penstock.basics.terminal import console
from penstock.bench.demo.images import Crops, find_images
from penstock.bench.demo.job import runs
from penstock.bench.demo.model import small_network
from penstock.bench.demo.report import print_report
from penstock.bench.demo.results import Report
from penstock.bench.demo.session import run
from penstock.bench.demo.synthetic import CLASSES, make_images
from penstock.bench.demo.trainer import as_input
from penstock.bench.measure.family import family
from penstock.errors import BadSetting

pytestmark = pytest.mark.whole

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("data") / "few"
    make_images(root, images=40, side_px=(70, 90))
    return root


def demo(data: Path, report: Path, **settings) -> tuple[Report, str]:
    said = io.StringIO()
    options = {"trainers": 2, "epochs": 1, "images": None, **settings}
    report = run(data, report_path=report, console=console(file=said, width=140), **options)
    return report, said.getvalue()


def test_all_arms_train_the_same_models_on_the_same_images(images, tmp_path):
    before = psutil.Process().children(recursive=True)
    report, said = demo(images, tmp_path / "report.json", epochs=2)
    assert report.source is not None
    for arm in (report.separate, report.shared, report.source):
        assert [run.images for run in arm.runs] == [80, 80]
        assert arm.images == 160
        assert arm.workers == max(len(os.sched_getaffinity(0)) // 2, 1) * 2
        assert arm.images_per_s > 0
        assert arm.wall_s > 0
        assert arm.cpu_s > 0
        assert arm.cpu_s_per_1000_images > 0
        assert arm.peak_pss_bytes > 0
        assert arm.peak_processes >= 2
        assert [run.width for run in arm.runs] == [run.width for run in report.separate.runs]
    assert report.shared.loader == "one Penstock feed (host memfd)"
    assert report.source.loader == "one Penstock feed of an ImageSource (host memfd)"
    times = report.source.images_per_s / report.shared.images_per_s
    assert report.source_over_shared is not None
    assert report.source_over_shared.images_per_s == times
    assert "2 training runs on one feed of an ImageSource" in said
    assert f"ImageSource in its place: {times:.1f} times the images/s" in said
    assert psutil.Process().children(recursive=True) == before


def test_the_report_is_saved_with_a_picture_and_without_names_of_this_machine(images, tmp_path):
    report, _ = demo(images, tmp_path / "report.json")
    text = (tmp_path / "report.json").read_text()
    assert msgspec.json.decode(text, type=Report) == report
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(text)["data"]["name"] == "few"
    for private in (str(images.parent), str(Path.home()), os.getcwd(), socket.gethostname()):
        assert private not in text


@pytest.mark.parametrize("saved", ["demo-default", "demo-imagenet-sample"])
def test_the_tables_fit_80_columns_and_cut_nothing(saved):
    report = msgspec.json.decode((RESULTS / f"{saved}.json").read_text(), type=Report)
    said = io.StringIO()
    print_report(report, console(file=said, width=80))
    lines = [line.rstrip() for line in said.getvalue().splitlines()]
    assert max(map(len, lines)) <= 80
    assert "…" not in said.getvalue()
    shown = [line.split() for line in lines]
    for each in report.shared.runs:
        name = [each.name, str(each.width), f"{each.learning_rate:g}", str(each.batch_size)]
        assert [len(line) for line in shown if line[:4] == name] == [5 + len(report.arms)]


def test_a_folder_of_jpegs_without_class_folders_will_do(images, tmp_path):
    report, said = demo(images / "circle-stripes", tmp_path / "report.json")
    assert report.data.name == "circle-stripes"
    assert "labels are made from file names" in said
    assert (tmp_path / "report.png").exists()


def test_a_bad_jpeg_is_named_and_nobody_is_left(images, tmp_path):
    before = psutil.Process().children(recursive=True)
    bad = images / "circle-stripes" / "99999.jpg"
    whole_file = next(bad.parent.iterdir()).read_bytes()
    bad.write_bytes(whole_file[: len(whole_file) // 2])
    try:
        with pytest.raises(BadSetting, match=r"^\S*99999\.jpg cannot be decoded as a JPEG \([^\n]+$"):
            demo(images, tmp_path / "report.json")
    finally:
        bad.unlink()
    assert psutil.Process().children(recursive=True) == before
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"trainers": 0}, "--trainers 0"),
        ({"epochs": 0}, "--epochs 0"),
        ({"images": -1}, "--images -1"),
    ],
)
def test_settings_out_of_range_are_errors(images, tmp_path, settings, said):
    with pytest.raises(BadSetting, match=said):
        demo(images, tmp_path / "report.json", **settings)


def test_a_report_that_cannot_be_saved_is_an_error_before_anything_is_trained(images, tmp_path):
    with pytest.raises(BadSetting, match="there is no folder"):
        demo(images, tmp_path / "nowhere" / "report.json")


def test_the_demos_own_images_can_be_learnt(tmp_path):
    def made(name: str, images: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        make_images(tmp_path / name, images=images, side_px=(80, 100), seed=seed)
        items = Crops(find_images(tmp_path / name, None).train, 64)
        pixels, labels = zip(*(items[index] for index in range(len(items))), strict=True)
        return torch.from_numpy(np.stack(pixels)), torch.tensor(labels)

    images, truth = made("train", 300, seed=0)
    torch.manual_seed(0)
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


def test_a_family_accounts_for_a_grandchild_whose_parent_has_gone():
    busy = "import time; t = time.process_time()\nwhile time.process_time() < t + 0.3: pass"
    leave = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {busy!r}], start_new_session=True)"
    with family() as members:
        pid = os.posix_spawn(os.sys.executable, [os.sys.executable, "-c", leave], os.environ)
    assert not psutil.pid_exists(pid)
    assert members.cpu_s() >= 0.3


def test_runs_differ():
    assert len({(each.width, each.learning_rate, each.batch_size) for each in runs(8)}) == 8
    assert len(runs(20)) == 20
