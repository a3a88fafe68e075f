"""Folders of images as a source."""

from __future__ import annotations

import gc
import os
import pickle
import random
import shutil
import signal
import threading
import zlib
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tests.sources.images.pictures import colours, encoded, jpeg, noise, textures

from penstock import ImageSource
from penstock.contracts import Cursor
from penstock.errors import BadSetting, SourceError, Untravelled
from penstock.sources.images.decoders import DECODER, decoder, whole_image
from penstock.testing.source import SourceContract

SIZE = 16


class TestFolder(SourceContract):
    keeps_workers = True

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "images"
        self.colours = colours(self.folder)

    def make(self, seed: int = 0) -> ImageSource:
        return ImageSource(self.folder, size=SIZE, batch_size=7, segments=4, seed=seed, workers=2)

    def expected(self) -> Counter[Any]:
        return Counter((colour, i % 4) for i, colour in enumerate(self.colours))

    def rows_of(self, tree: Any) -> list[Any]:
        images, labels = tree
        assert (images == images[:, :1, :1]).all()
        return list(zip(map(tuple, images[:, 0, 0].tolist()), labels.tolist(), strict=True))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    textures(tmp_path / "images")
    return tmp_path / "images"


def made(folder: Path, **options: Any) -> ImageSource:
    return ImageSource(folder, **{"size": SIZE, "batch_size": 8, "workers": 1, **options})


def pixels_of(source: ImageSource, cycle: int = 0, sample: int = 0, wanted: Any = None) -> dict[int, np.ndarray]:
    """The pixels of each image in a cycle, by its number."""
    found: dict[int, np.ndarray] = {}
    for block in source.open(Cursor(cycle, sample), wanted):
        assert block.ids is not None
        found |= dict(zip(block.ids.tolist(), block.tree[0], strict=True))
    return found


def assert_equal(one: dict[int, np.ndarray], other: dict[int, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for image, pixels in one.items():
        assert (pixels == other[image]).all(), image


@pytest.mark.usefixtures("each_decoder")
def test_an_image_has_equal_pixels_whoever_decodes_it_and_other_ones_in_each_cycle(folder, make):
    source, alike, other = make(folder), make(folder, workers=2), make(folder, seed=1)
    first = pixels_of(source)
    assert_equal(first, pixels_of(alike))
    later = pixels_of(source, 1)
    assert not any((later[image] == pixels).all() for image, pixels in first.items())
    assert not any((pixels == first[image]).all() for image, pixels in pixels_of(other).items())
    assert_equal(first, pixels_of(source))
    rest = pixels_of(source, 0, 17)
    assert_equal(rest, {image: first[image] for image in rest})


@pytest.mark.usefixtures("each_decoder")
def test_regions_and_whole_images_give_equal_batches(folder, monkeypatch, make):
    by_regions, whole = (make(folder, jitter=(0.4, 0.4, 0.4, 0.1)) for _ in range(2))
    found = pixels_of(by_regions)
    monkeypatch.setenv(DECODER, "simplejpeg")  # workers that start now decode whole images
    assert_equal(found, pixels_of(whole))


@pytest.mark.parametrize("kills", [6, pytest.param(1000, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])])
def test_workers_killed_at_random_change_no_pixel_and_lose_no_image(folder, kills):
    choose, killed, cycle, before = random.Random(kills), 0, 0, set(psutil.Process().children())
    plain, source = made(folder), made(folder, workers=2)
    while killed < kills:
        expected, found = pixels_of(plain, cycle), {}
        for block in source.open(Cursor(cycle, 0)):
            found |= dict(zip(block.ids.tolist(), block.tree[0], strict=True))
            if choose.random() < 0.2:  # rarely thrice amid one block, which would be its fault
                os.kill(choose.choice(source._blocks._pool._workers).pid, signal.SIGKILL)
                killed += 1
        assert_equal(expected, found)
        cycle += 1
    plain.close()
    source.close()
    assert set(psutil.Process().children()) <= before  # other tests' servers


def dies(_data: bytes) -> np.ndarray:
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError


@pytest.mark.whole
def test_a_block_that_kills_three_workers_is_an_error(folder, make):
    source = make(folder, decode=dies)
    with pytest.raises(
        SourceError,
        match=r"3 worker processes died at one block, rows 0 to 7 of cycle 0: .*SIGSEGV",
    ):
        list(source)


def spoilt(folder: Path) -> Path:
    whole = jpeg(noise(64, 64))
    huge = bytearray(jpeg(noise(16, 16), "444"))
    at = huge.index(b"\xff\xc0")
    huge[at + 5 : at + 9] = (30_000).to_bytes(2) * 2
    (folder / "class-0" / "bomb.jpg").write_bytes(huge)
    (folder / "class-0" / "cut.jpg").write_bytes(whole[: len(whole) // 3])
    (folder / "class-1" / "empty.jpg").touch()
    (folder / "class-1" / "text.png").write_text("no image")
    (folder / "class-2" / "gone.jpg").symlink_to("nowhere")
    return folder


def test_what_libpng_says_of_an_image_names_it(tmp_path, capfd):
    folder = tmp_path / "images"
    (folder / "a").mkdir(parents=True)
    png = encoded(noise(20, 20), ".png")
    chunk = b"gAMA" + bytes(3)  # which has 4
    odd = (3).to_bytes(4) + chunk + zlib.crc32(chunk).to_bytes(4)
    (folder / "a" / "plain.png").write_bytes(png)
    (folder / "a" / "odd.png").write_bytes(png[:33] + odd + png[33:])
    source = made(folder, batch_size=2)
    with closing(source), closing(source.open(Cursor(0, 0))) as blocks:
        assert sum(len(block.ids) for block in blocks) == 2
    said = [line for line in capfd.readouterr().err.splitlines() if "libpng" in line]
    assert said and all(line.startswith(f"penstock: {folder}/a/odd.png: libpng") for line in said), said


@pytest.mark.usefixtures("each_decoder")
def test_bad_images_end_the_cycle_with_their_name_or_come_black_without_a_label(folder, capfd, make):
    fails = make(spoilt(folder), shuffle=False)
    with pytest.raises(SourceError, match=r"bomb.jpg cannot be decoded: .*30,000 x 30,000 pixels.*on_bad="):
        list(fails)
    source = make(folder, on_bad="skip")
    batches = list(source)
    images, labels = (np.concatenate(leaves) for leaves in zip(*batches, strict=True))
    assert len(images) == len(source._data.records.names) == 45
    assert (labels == -100).sum() == 5
    assert not images[labels == -100].any()
    assert images[labels >= 0].any(axis=(1, 2, 3)).all()
    assert "5 bad ones came as black images" in source.description
    said = capfd.readouterr().err
    assert said.count("is skipped") == 3


@pytest.mark.whole
def test_formats_and_functions_of_the_users_are_cropped_alike(tmp_path, make):
    pixels = noise(40, 40)
    for name, data in {
        "a.png": encoded(pixels, ".png"),
        "b.webp": encoded(pixels, ".webp"),
        "c.jpg": jpeg(pixels, "444"),
    }.items():
        (tmp_path / name).write_bytes(data)
    source = make(tmp_path, augment="center", size=35, batch_size=3, shuffle=False)
    (images,) = source
    assert images.shape == (3, 35, 35, 3)
    for image in images:
        assert np.abs(image - pixels[2:37, 2:37].astype(float)).mean() < 25
    assert (images[0] == pixels[2:37, 2:37]).all()
    own = make(
        tmp_path,
        augment="center",
        size=35,
        batch_size=3,
        decode=lambda data: np.full((40, 40, 3), len(data) % 256, np.uint8),
    )
    mine = {
        int(i): image for block in own.open(Cursor(0, 0)) for i, image in zip(block.ids, block.tree, strict=True)
    }
    for i, name in enumerate(("a.png", "b.webp", "c.jpg")):
        assert (mine[i] == len((tmp_path / name).read_bytes()) % 256).all()
    wrong = make(tmp_path, decode=lambda data: np.zeros((4, 4)))
    with pytest.raises(SourceError, match=r"decode= returned float64 of shape \(4, 4\)"):
        list(wrong)
    raises = make(tmp_path, decode=lambda data: 1 // 0)
    with pytest.raises(SourceError, match="ZeroDivisionError") as raised:
        list(raises)
    assert "<lambda>" in raised.value.traceback_text


def test_several_crops_of_an_image_come_together(folder, make):
    source, one = make(folder, crops=3), make(folder)
    for images, labels in source:
        assert images.shape == (len(labels), 3, SIZE, SIZE, 3)
        assert not (images[:, 0] == images[:, 1]).all(axis=(1, 2, 3)).any()
    assert source.slot_bytes > 2 * one.slot_bytes


def test_images_of_which_others_are_left_out_have_the_same_pixels(folder, make):
    source = make(folder, segments=5)
    for cycle in range(2):
        found = pixels_of(source, cycle, wanted=lambda _, ids: ids % 2 == 0)
        every = pixels_of(source, cycle)
        assert_equal(found, {image: every[image] for image in range(0, 40, 2)})
    assert decoder().name in source.description


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"size": 0}, "size=0"),
        ({"augment": "rcc"}, "augment='rcc': it must be one of rrc, center, whole, padded"),
        ({"padding": 4}, 'padding=4: only with augment="padded"'),
        ({"augment": "padded", "padding": -1}, "padding=-1"),
        ({"shard": (2, 2)}, "rank=2: it must be"),
        ({"shard": 2}, "shard=2: it must be"),
        ({"suffixes": None}, "suffixes=None: give endings of names"),
        ({"suffixes": (".jpg", "")}, "give endings of names"),
        ({"labels": [2**63] * 40}, f"the label {2**63} is neither"),
        ({"scale": (0.5, 2)}, "above 0 and at most 1"),
        ({"ratio": (2, 1)}, r"ratio=\(2, 1\)"),
        ({"flip": 2}, "flip=2"),
        ({"flip": "a"}, "flip=.*give 1 number"),
        ({"jitter": 0.4}, "jitter=0.4: give 4 numbers"),
        ({"scale": 0.5}, "scale=0.5: give 2 numbers"),
        ({"jitter": (0, 0, 0, 0.7)}, "jitter="),
        ({"on_bad": "ignore"}, "on_bad='ignore'"),
        ({"workers": 0}, "workers=0"),
        ({"crops": 0}, "crops=0"),
    ],
)
def test_what_cannot_be_is_refused_in_words(folder, options, match):
    with pytest.raises(BadSetting, match=match):
        made(folder, **options)


def test_a_folder_without_images_is_refused(tmp_path):
    with pytest.raises(BadSetting, match="no such folder"):
        made(tmp_path / "none")
    with pytest.raises(BadSetting, match="or in folders below, end in"):
        made(tmp_path)
    for name in ("x.tar.gz", "1.jpg"):
        (tmp_path / name).touch()
        with pytest.raises(BadSetting, match=f"{name} is neither a folder nor a tar file"):
            made(tmp_path / name)
    for images in ([], (), ["a", "b.tar"], None, 5, ""):
        with pytest.raises(BadSetting, match="give one folder, or tar files"):
            made(images)


@pytest.mark.parametrize(("augment", "mirrored"), [("whole", 0), ("padded", 20)])
def test_images_come_whole_or_shifted_as_cifars_do(tmp_path, augment, mirrored, make):
    pixels = noise(32, 32)
    for i in range(40):
        (tmp_path / f"{i}.png").write_bytes(encoded(pixels, ".png"))
    images = np.concatenate([*make(tmp_path, augment=augment, size=32)])
    padded = np.pad(pixels, ((4, 4), (4, 4), (0, 0))) if augment == "padded" else pixels
    windows = np.lib.stride_tricks.sliding_window_view(padded, (32, 32, 3)).reshape(-1, 32, 32, 3)
    as_it_was = [(image == windows).all((1, 2, 3)).any() for image in images]
    flipped = [(image[:, ::-1] == windows).all((1, 2, 3)).any() for image in images]
    assert all(one or other for one, other in zip(as_it_was, flipped, strict=True))
    assert sum(flipped) == pytest.approx(mirrored, abs=12 if mirrored else 0)


def test_a_source_travels_as_long_as_it_has_nothing_open_and_then_says_why_not(folder, make):
    source = make(folder)
    alike = pickle.loads(pickle.dumps(source))
    assert_equal(pixels_of(alike), pixels_of(source))
    with pytest.raises(Untravelled, match="images cannot be pickled: it has files or processes"):
        pickle.dumps(source)
    alike.close()


def test_a_pass_that_is_open_is_not_opened_again_and_one_that_is_closed_leaves_no_worker_writing(folder, make):
    source = make(folder)
    blocks = source.open(Cursor(0, 0))
    next(blocks)
    with pytest.raises(BadSetting, match="still open"):
        next(source.open(Cursor(0, 0)))
    blocks.close()
    assert not source._blocks._pool._tasks
    shutil.rmtree(folder)
    with pytest.raises(SourceError, match="cannot be read: No such file"):
        list(source.open(Cursor(1, 0)))


def test_a_forked_child_has_workers_of_its_own_and_they_end_with_their_source_and_not_with_its_copy(folder):
    source = made(folder, workers=2)
    first = pixels_of(source)
    pids = [worker.pid for worker in source._blocks._pool._workers]
    child = os.fork()
    if not child:
        try:
            assert_equal(pixels_of(source), first)
            del source
            gc.collect()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert_equal(pixels_of(source), first)
    assert [worker.pid for worker in source._blocks._pool._workers] == pids
    del source
    gc.collect()
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a socket that was just made
@pytest.mark.usefixtures("new_pythons")  # which no interrupt leaves half begun
def test_a_source_goes_on_after_an_interrupt_at_any_instant(folder, no_gc_callbacks):
    """As it was found: slots were lost one by one, until an epoch came empty and in silence."""
    source, choose = made(folder, workers=1), random.Random(0)
    expected = set(range(40))

    def ring(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, ring)
    try:
        interrupted = 0
        while interrupted < 12:
            try:
                signal.setitimer(signal.ITIMER_REAL, choose.uniform(0.0005, 0.03))
                for _ in source:
                    pass
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    for cycle in range(2):
        assert pixels_of(source, cycle).keys() == expected
    source.close()
    gc.collect()


def test_a_source_that_is_closed_amid_a_pass_says_so_and_begins_again(folder, make):
    source = make(folder)
    batches = iter(source)
    next(batches)
    source.close()
    with pytest.raises(BadSetting, match="was closed while a pass"):
        next(batches)
    assert len(pixels_of(source)) == 40


def fails(_data: bytes) -> np.ndarray:
    raise OSError("cannot identify image file")


class CannotTravel:
    def __call__(self, data: bytes) -> np.ndarray:
        return whole_image(data)

    def __setstate__(self, state: Any) -> None:
        raise RuntimeError("no such thing here")

    def __getstate__(self) -> dict[str, int]:
        return {"some": 1}


def test_a_users_decoder_may_fail_for_an_image_or_for_all(folder, make):
    images, labels = next(iter(make(folder, decode=fails, on_bad="skip")))
    assert not images.any()
    assert (labels == -100).all()
    source = make(folder, decode=CannotTravel())
    with pytest.raises(SourceError, match="a worker process cannot start: RuntimeError: no such thing here"):
        list(source)
    with pytest.raises(BadSetting, match="decode= cannot be sent"):
        list(made(folder, decode=partial(fails, threading.Lock())))


def test_other_formats_are_read_by_functions_of_the_users(tmp_path, make):
    (tmp_path / "a.raw").write_bytes(noise(20, 20).tobytes())
    source = make(
        tmp_path, decode=lambda data: np.frombuffer(data, np.uint8).reshape(20, 20, 3), suffixes=(".raw",)
    )
    assert [len(images) for images in source] == [1]


def test_links_that_lead_round_in_a_circle_are_refused(folder):
    (folder / "loop").symlink_to(folder)
    with pytest.raises(BadSetting, match="is a link to a folder that it lies in"):
        made(folder)


def test_a_large_block_of_bad_images_comes_through(tmp_path, make):
    """As it was found: a worker and its source waited for each other to read."""
    deep = tmp_path / ("x" * 150)
    deep.mkdir()
    for i in range(3000):
        (deep / f"{i}.jpg").touch()
    source = make(tmp_path, batch_size=1000, workers=1, on_bad="skip", size=2)
    assert [len(images) for images, _ in source] == [1000] * 3


def test_a_relative_path_means_where_the_source_was_made(folder, monkeypatch, make):
    monkeypatch.chdir(folder.parent)
    source = make(Path(folder.name))
    monkeypatch.chdir("/")
    assert len(pixels_of(source)) == 40
