"""Images that a far side makes beside the workers: the same, whatever becomes of it."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import far_side
from tests.fakes.far_side import Behaviour
from tests.forked import eventually
from tests.sources.images.pictures import encoded, jpeg, labelled, noise
from tests.sources.images.test_fields import shards

from penstock import Cache, ImageSource
from penstock.contracts import Cursor
from penstock.errors import BadSetting, SourceError
from penstock.sources.images import gpu
from penstock.sources.images.batches import frame_of
from penstock.sources.samples import worker
from penstock.sources.workers import far as far_module
from penstock.sources.workers.far import FarSide
from penstock.sources.workers.pool import WorkerPool

IMAGES = 320


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    kinds = ("444", "420", "422", "Gray")
    images = (jpeg(noise(40, 30 + number % 7, number), kinds[number % 4]) for number in range(IMAGES))
    labelled(folder, images)
    return folder


def made(folder: Path, share: float | None = None, *, far: bool = True, **options: Any) -> ImageSource:
    source = ImageSource(folder, **{"size": 16, "batch_size": 64, "workers": 2, "seed": 5, **options})
    if far:
        side = FarSide(far_side.__name__, "the stand-in", share)
        source._blocks._workers = partial(WorkerPool, source.workers, worker.__name__, side)
        source._blocks._forget()
    return source


def blocks(source: ImageSource, at: Cursor = Cursor(0, 0), wanted: Any = None) -> list[Any]:  # noqa: B008
    with closing(source.open(at, wanted)) as found:
        return [(each.sample, each.ids.tolist(), [leaf.copy() for leaf in each.tree]) for each in found]


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        mine[:2] == its[:2] and all(map(np.array_equal, mine[2], its[2]))
        for mine, its in zip(one, other, strict=True)
    )


@pytest.fixture
def behaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have far sides behave so."""

    def behave(**how: Any) -> Behaviour:
        behaviour = Behaviour(**{"counter": str(tmp_path / "batches"), **how})
        monkeypatch.setenv(*behaviour.environment())
        return behaviour

    return behave


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("how", [{}, {"writes_early": True}, {"refuses": 3}, {"stops": {2: "full"}}], ids=str)
def test_a_share_of_a_far_sides_is_the_same_pixels(folder, behaves, share, how):
    behaviour = behaves(**how)
    with closing(made(folder, far=False)) as alone, closing(made(folder, share)) as source:
        assert same(blocks(source), blocks(alone))
        assert source._blocks._pool.far.done == round(10 * share) or share == 0.5
        assert (far_side.batches(behaviour) > 0) == (share > 0)


def test_beside_workers_that_are_late_it_makes_parts(folder, behaves):
    behaves()
    with closing(made(folder, far=False)) as alone, closing(made(folder)) as source:
        expected, far = blocks(alone), source._blocks._pool.far
        eventually(lambda: same(blocks(source), expected) and far.done)


@pytest.mark.parametrize(
    "options", [{"crops": 3}, {"augment": "center"}, {"size": 50}, {"batch_size": 33}], ids=str
)
@pytest.mark.parametrize("wanted", [None, lambda _, ids: ids % 3 == 0])
def test_whatever_is_asked_for_comes_as_from_workers(folder, behaves, options, wanted):
    behaves()
    with closing(made(folder, far=False, **options)) as alone, closing(made(folder, 0.7, **options)) as source:
        assert same(blocks(source, Cursor(1, 0), wanted), blocks(alone, Cursor(1, 0), wanted))
        assert source._blocks._pool.far.done


@pytest.mark.parametrize("kind", ["tar", "mds", "parquet"])
def test_labels_that_lie_beside_images_come_with_them(tmp_path, behaves, kind):
    behaves()
    images, options = shards(tmp_path / "shards", kind)
    with closing(made(images, far=False, **options)) as alone, closing(made(images, 1.0, **options)) as source:
        assert same(blocks(source), blocks(alone))
        assert source._blocks._pool.far.done == 1


@pytest.mark.parametrize("kept", ["bytes", "pixels"])
def test_kept_samples_come_as_without_it_and_are_counted_once(folder, behaves, tmp_path, kept):
    behaves()
    with closing(made(folder, 1.0, far=False)) as alone:
        expected = blocks(alone)
    for path in folder.rglob("*.jpg"):
        os.utime(path, (1e9, 1e9))
    time.sleep(0.15)  # files that were written just now are not kept
    cache = Cache(tmp_path / "cache", "64MiB", keep=kept)
    with closing(made(folder, 1.0, cache=cache)) as source:
        assert same(blocks(source), expected) and same(blocks(source), expected)
        assert (source.cached.missed, source.cached.hits) == (IMAGES, IMAGES)


BAD = {
    "cut short": jpeg(noise(40, 40), "420")[:-200],
    "no JPEG": b"no image",
    "progressive": cv2.imencode(".jpg", noise(40, 40), [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1].tobytes(),
    "empty": b"",
    "a frame of no pixels": jpeg(noise(40, 40), "444").replace(
        b"\x08\x00\x28\x00\x28\x03", b"\x08\x00\x00\x00\x28\x03"
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_the_device_does_not_take_is_the_cpus_also_in_errors(tmp_path, behaves, name, capfd):
    behaves()
    for number in range(40):
        (tmp_path / f"{number:02}.jpg").write_bytes(
            BAD[name] if number == 17 else jpeg(noise(40, 40, number), "420")
        )
    options = {"batch_size": 40, "shuffle": False, "on_bad": "skip"}
    with closing(made(tmp_path, far=False, **options)) as alone, closing(made(tmp_path, 1.0, **options)) as source:
        assert same(blocks(source), blocks(alone))
        assert (
            source.description.count("bad ones") == alone.description.count("bad ones") == (name != "progressive")
        )
    if name != "progressive":
        with closing(made(tmp_path, 1.0, **{**options, "on_bad": "fail"})) as source:
            for _ in range(2):
                with pytest.raises(SourceError, match=r"17\.jpg cannot be decoded"):
                    blocks(source)
            assert not source._blocks._pool.far.lost


def test_an_error_of_the_drivers_or_three_times_no_memory_means_the_cpu_for_good(folder, behaves, capfd):
    with closing(made(folder, far=False)) as alone:
        expected = blocks(alone)
    for stops, why in (
        ({2: "raise"}, "an error of the driver's"),
        ({1: "full", 2: "full", 3: "full"}, "no memory"),
    ):
        behaves(stops=stops, counter=str(folder.parent / why))
        with closing(made(folder, 1.0)) as source:
            assert same(blocks(source), expected) and same(blocks(source), expected)
            assert source._blocks._pool.far.lost
        assert [why in line for line in capfd.readouterr().err.splitlines()] == [True]


@pytest.mark.parametrize(
    "times", [pytest.param(12, marks=pytest.mark.whole), pytest.param(1000, marks=pytest.mark.soak)]
)
def test_killed_or_stopped_at_any_batch_nothing_is_wrong_lost_or_twice(folder, behaves, monkeypatch, times):
    monkeypatch.setattr(far_module, "_HANGS_S", 0.3)
    with closing(made(folder, far=False)) as alone:
        expected = blocks(alone)
    for turn in range(times):
        draw = random.Random(turn)
        stops = {draw.randrange(1, 8): draw.choice(["KILL", "STOP", "SEGV", "sleep 0.4"]) for _ in range(3)}
        signals = {draw.randrange(1, 20): draw.choice(["KILL", "STOP"])} if turn % 2 else {}
        behaves(stops=stops, signals=signals, counter=str(folder.parent / f"{times}-{turn}"))
        with closing(made(folder, draw.choice([None, 0.5, 1.0]))) as source:
            assert same(blocks(source), expected) and same(blocks(source), expected)
    assert not [each for each in psutil.Process().children() if each.status() == psutil.STATUS_STOPPED]


@pytest.mark.parametrize("marked", [True, False])
def test_a_fixed_share_is_the_same_after_resumes_and_kills(folder, behaves, marked):
    """A marked one leaves its mark in pixels: after a resume it has the same parts."""
    behaves(marks=marked)
    with closing(made(folder, 0.5)) as source:
        expected = [*blocks(source), *blocks(source, Cursor(1, 0))]
    draw = random.Random(3)
    for _ in range(30):
        with closing(made(folder, 0.5)) as source:
            number = draw.randrange(10)
            with closing(source.open(Cursor(number // 5, number % 5 * 64))) as found:
                its = next(found)
                assert same(
                    [(its.sample, its.ids.tolist(), [leaf.copy() for leaf in its.tree])], [expected[number]]
                )
                if not marked and source._blocks._pool.far.worker is not None:
                    os.kill(source._blocks._pool.far.worker.pid, signal.SIGKILL)
                rest = [(each.sample, each.ids.tolist(), [leaf.copy() for leaf in each.tree]) for each in found]
                assert same(rest, expected[number + 1 : number // 5 * 5 + 5])


def test_passes_that_are_left_amid_its_parts_leave_nothing_behind(folder, behaves):
    behaves(stops=dict.fromkeys(range(1, 100), "sleep 0.05"))
    with closing(made(folder, far=False)) as alone, closing(made(folder, 0.6)) as source:
        expected = blocks(alone)
        for count in range(5):
            with closing(source.open(Cursor(0, 0))) as found:
                for _ in range(count):
                    next(found)
        assert same(blocks(source), expected)


def test_damage_that_only_a_whole_scan_shows_is_not_the_engines():
    whole = jpeg(noise(40, 40), "420")
    assert frame_of(whole) == (40, 40)
    for kind in ("444", "422", "440", "Gray"):
        assert frame_of(jpeg(noise(8, 9), kind)) == (8, 9)
    assert frame_of(jpeg(noise(8, 9), "411")) is None
    adobe = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00"
    at, scan = whole.index(b"\xff\xc0"), whole.index(b"\xff\xda")
    assert frame_of(whole[:at] + adobe + whole[at:]) is frame_of(whole[:scan] + adobe + whole[scan:]) is None
    red, one = bytearray(whole), bytearray(whole)
    assert red[at + 10 : at + 19 : 3] == b"\1\2\3" and one[scan + 4] == 3
    red[at + 10 : at + 19 : 3] = b"RGB"
    assert frame_of(bytes(red)) is None  # which libjpeg takes for what it says
    one[scan + 4] = 1
    assert frame_of(bytes(one)) is None  # a scan for each colour
    for bad in (b"", whole[:-2], whole[:2], b"\xff\xd8\xff\xd9", whole[2:], b"\xff\xd8" + bytes(30) + b"\xff\xd9"):
        assert frame_of(bad) is None


@given(st.binary(max_size=200), st.integers(0, 400), st.binary(max_size=8))
def test_no_bytes_are_an_error_of_the_look_at_them(tail, cut, middle):
    whole = jpeg(noise(9, 9), "420")
    frame_of(whole[:cut] + middle + whole[cut:])
    frame_of(b"\xff\xd8" + tail + b"\xff\xd9")


def test_gpu_auto_without_a_gpu_is_told_once_and_changes_nothing(folder, capfd, monkeypatch):
    monkeypatch.setattr(gpu, "GPU_SIDE", gpu.GPU_SIDE._replace(share=1.0))
    monkeypatch.setattr(gpu, "lacks", str)
    with closing(made(folder, far=False)) as alone, closing(made(folder, far=False, gpu="auto")) as source:
        assert same(blocks(source), blocks(alone)) and same(blocks(source), blocks(alone))
        assert "the GPU is left out: " in source.description and alone._blocks.beside is None
    assert capfd.readouterr().err.count("left out, and the workers do all") == 1


def test_a_package_that_lacks_is_told_at_once(folder, capfd, monkeypatch):
    monkeypatch.setattr(gpu, "lacks", lambda: "torchvision is not installed")
    with closing(made(folder, far=False, gpu="auto")) as source:
        said = capfd.readouterr().err
        assert said.count("the GPU is left out, and the workers do all: torchvision is not installed") == 1
        assert "the GPU is left out: torchvision is not installed" in source.description


@pytest.fixture
def stands_in(behaves, monkeypatch):
    """Have ``gpu="auto"`` be the stand-in."""
    behaves()
    monkeypatch.setattr(gpu, "lacks", str)
    monkeypatch.setattr(gpu, "GPU_SIDE", FarSide(far_side.__name__, "the GPU", 1.0))


@pytest.mark.parametrize("rows", [8, 64])
def test_what_a_gpu_did_is_told_whatever_is_lost_later(folder, stands_in, rows):
    with closing(made(folder, far=False, gpu="auto", batch_size=rows)) as source:
        assert "the GPU was not needed yet" in source.description
        first = blocks(source)
        assert re.search(
            r"the GPU made 100% of them, at [\d,]+ images/s, where a worker makes", source.description
        )
        assert source._caching._measured.beside == len(first) * rows == IMAGES
        for _ in range(2):
            os.kill(source._blocks._pool.far.worker.pid, signal.SIGKILL)
            assert same(blocks(source), first) and same(blocks(source), first)
            if not source._blocks.beside.lost:
                assert "1 of its processes died" in source.description
        assert re.search(r"made \d+% of them.*; the GPU is left out: 2 of its processes died", source.description)


def test_images_that_a_gpu_does_not_decode_are_told(tmp_path, stands_in, capfd):
    for number in range(400):
        (tmp_path / f"{number:03}.png").write_bytes(encoded(noise(9, 9, number), ".png"))
    with closing(made(tmp_path, far=False, gpu="auto")) as source, closing(made(tmp_path, far=False)) as alone:
        assert same(blocks(source), blocks(alone))
        assert "% of them" not in source.description
        assert re.search(r"left out: none of \d+ images is a JPEG that it decodes", source.description)
    assert capfd.readouterr().err.count("left out") == 1


@pytest.mark.parametrize(
    "options", [{"jitter": (0.1, 0, 0, 0)}, {"augment": "padded"}, {"shrink": "area"}], ids=str
)
def test_what_only_the_cpu_does_is_told(folder, capfd, options):
    with closing(made(folder, far=False, gpu="auto", **options)) as source:
        asked, value = next(iter(options.items()))
        name = f'{asked}="{value}"' if isinstance(value, str) else f"{asked}="
        assert f"{name} is done by the CPU alone" in capfd.readouterr().err and source._blocks.beside is None


def test_another_word_for_a_gpu_is_refused(folder):
    with pytest.raises(BadSetting, match=r"gpu='cuda': it must be .auto., or None"):
        made(folder, gpu="cuda")
