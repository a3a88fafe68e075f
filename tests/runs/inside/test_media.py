"""Images, histograms and texts that a script logs are files of its run, whatever the script does."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tests.runs.inside.test_run import Script, script  # noqa: F401 - a fixture

from penstock.runs.inside.media import BINS, MOST, folder_name, media_of

pytestmark = pytest.mark.whole


def logged(script: Script) -> Path:  # noqa: F811
    return script.store.folder_of(script.id) / "files" / "log"


def lines(script: Script, name: str, kind: str) -> list[dict[str, Any]]:  # noqa: F811
    files = (logged(script) / name).glob(f"{kind}.*.jsonl")
    return [json.loads(line) for file in sorted(files) for line in file.read_text().splitlines()]


def images(script: Script, name: str) -> list[Path]:  # noqa: F811
    return sorted((logged(script) / name).glob("*.png"), key=lambda path: float(path.name.split(".")[0]))


def pixels_of(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


def histogram(values: Any) -> dict[str, Any]:
    media = media_of(values)
    assert media.kind == "histogram"
    return json.loads(media.content)


def test_arrays_images_figures_and_texts_are_kept_beside_numbers(script: Script):  # noqa: F811
    said = script.run(
        """
import numpy as np
from PIL import Image
for step in range(3):
    pixels = np.full((4, 5, 3), 10 * step, np.uint8)
    penstock.log({"loss": step, "weights": np.arange(100) + step}, step=100 * step, sample=pixels, said=str(step))
    pixels[:] = 255  # too late
penstock.log(photo=Image.new("CMYK", (7, 6)), epoch=2)
"""
    )
    assert not said
    assert set(script.store.series(script.id)) == {"loss", "step", "epoch"}
    drawn = images(script, "sample")
    assert [path.name.split(".")[0] for path in drawn] == ["0", "100", "200"]
    assert [np.unique(pixels_of(path)).tolist() for path in drawn] == [[0], [10], [20]]
    (photo,) = images(script, "photo")
    assert pixels_of(photo).shape == (6, 7, 3) and photo.name.startswith("2.")
    assert [(each["step"], each["text"]) for each in lines(script, "said", "text")] == [
        (step, str(step // 100)) for step in (0, 100, 200)
    ]
    found = lines(script, "weights", "histogram")
    assert [(each["low"], each["high"], sum(each["counts"])) for each in found] == [
        (i, 99 + i, 100) for i in range(3)
    ]


def test_a_figure_of_matplotlib_s_is_an_image_of_its_size(script: Script):  # noqa: F811
    pytest.importorskip("matplotlib")
    said = script.run(
        "from matplotlib.figure import Figure\n"
        "figure = Figure(figsize=(3, 2), dpi=50); figure.subplots().plot([1, 2])\n"
        "penstock.log(figure=figure)\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    (path,) = images(script, "figure")
    assert pixels_of(path).shape[:2] == (100, 150) and not said


def test_tensors_are_histograms_and_images(script: Script):  # noqa: F811
    said = script.run(
        """
import torch
penstock.log(gradient=torch.linspace(0, 1, 50, requires_grad=True), half=torch.ones(9, dtype=torch.bfloat16))
penstock.log(first=torch.zeros(3, 8, 9, dtype=torch.uint8), last=torch.zeros(8, 9, 3, dtype=torch.uint8))
"""
    )
    assert not said
    assert sum(lines(script, "gradient", "histogram")[0]["counts"]) == 50
    assert lines(script, "half", "histogram")[0]["counts"][0] == 9
    assert [pixels_of(images(script, name)[0]).shape for name in ("first", "last")] == [(8, 9, 3)] * 2


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("sides", [(1, 2), (31, 17)])
def test_an_image_comes_back_bit_for_bit(channels: int, sides: tuple[int, int]):
    pixels = np.random.default_rng(0).integers(0, 256, (*sides, channels), np.uint8)
    for given_pixels in (pixels, np.asfortranarray(pixels), pixels[::-1]):
        media = media_of(given_pixels)
        assert media.kind == "image"
        read = np.asarray(Image.open(io.BytesIO(media.content)))
        assert (read.reshape(given_pixels.shape) == given_pixels).all()


@given(st.lists(st.floats(), min_size=2, max_size=200))
def test_a_histogram_counts_every_value(values: list[float]):
    found = histogram(np.array(values))
    finite = [value for value in values if np.isfinite(value)]
    assert len(found["counts"]) == BINS and sum(found["counts"]) == len(finite)
    assert found["nan"] + found["infinite"] == len(values) - len(finite)
    assert (found["low"], found["high"]) == ((min(finite), max(finite)) if finite else (0, 0))


def test_a_histogram_is_numpy_s():
    values = np.random.default_rng(1).normal(size=3_000_000).astype(np.float32)
    found = histogram(values)
    expected, _ = np.histogram(values.astype(np.float64), BINS)
    assert np.abs(np.array(found["counts"]) - expected).max() <= 2  # at the edges of bins
    assert histogram(np.array([True, False, True]))["counts"][0] == 1


def test_what_is_too_large_empty_or_unknown_is_left_out_and_said_once(script: Script):  # noqa: F811
    said = script.run(
        """
import numpy as np
for _ in range(2):
    penstock.log(large=np.zeros((5000, 5000, 3), np.uint8), empty=np.zeros((0, 3)), words=np.array(["a", "b"]))
    penstock.log(long="x" * 100_001, complex=np.zeros(3, complex), loss=1)
"""
    )
    left_out = said.splitlines()
    assert len(left_out) == 5 and not logged(script).exists()
    assert left_out[0].endswith("5,000 x 5,000 pixels are 75 MB, more than 50: log a smaller image")
    assert script.series("loss") == [1, 1]


NAMES = [
    "a/b",
    "a",
    "..",
    ".hidden",
    "a/1.0.png",
    "<b>&",
    "x" * 250,
    "ü" * 250,
    "  ",
    "%2E",
    "a\\b",
    "~",
    "café ☕",
]


def test_names_of_any_characters_are_folders_of_their_own(script: Script):  # noqa: F811
    said = script.run(
        f"for name in {NAMES!r}: penstock.log({{name: 'text'}}); penstock.log({{'no\\nname': 'text'}})"
    )
    assert said.count("control characters") == 1 and len(said.splitlines()) == 1
    assert sorted(path.name for path in logged(script).iterdir()) == sorted(map(folder_name, NAMES))
    assert all(len(lines(script, folder_name(name), "text")) == 1 for name in NAMES)


def test_threads_and_forks_lose_and_mix_nothing(script: Script):  # noqa: F811
    script.run(
        """
import threading
import numpy as np
def work(n):
    for i in range(40):
        penstock.log(image=np.full((2, 2, 3), n, np.uint8), text=f"{n} {i}", step=i)
for _ in range(2):
    if not os.fork():
        work(os.getpid() % 256)
        sys.exit()
threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
for t in threads: t.start()
for t in threads: t.join()
os.wait(); os.wait()
"""
    )
    assert len(images(script, "image")) == len(lines(script, "text", "text")) == 200
    assert sorted({path.name.split(".")[1] for path in images(script, "image")}).__len__() == 3
    assert all(len(np.unique(pixels_of(path))) == 1 for path in images(script, "image"))


def test_of_many_the_newest_are_kept_and_the_older_thinned_out_which_is_said(script: Script):  # noqa: F811
    said = script.run(
        f"""
import time
import numpy as np
from penstock.runs.inside.run import _here
for i in range({3 * MOST}): penstock.log(image=np.zeros((1, 2, 3), np.uint8), text=str(i), step=i)
while _here.recorder._waiting: time.sleep(0.02)  # as the script ends, a slow disk has five seconds
"""
    )
    assert said.count("every second of the older ones is removed") == 2
    found = [int(path.name.split(".")[0]) for path in images(script, "image")]
    assert found == [each["step"] for each in lines(script, "text", "text")]
    assert (
        found[0] == 0 and len(found) <= MOST and found[-MOST // 2 :] == list(range(3 * MOST - MOST // 2, 3 * MOST))
    )


def test_a_kill_amid_images_leaves_whole_ones_only(script: Script):  # noqa: F811
    text = """
import numpy as np, penstock
pixels = np.random.default_rng(0).integers(0, 256, (600, 600, 3), np.uint8)
for i in range(100_000): penstock.log(image=pixels, text="x" * 1000, step=i)
"""
    for enough in (1, 7, 20):
        with subprocess.Popen([sys.executable, "-c", text], env=script.environment) as process:
            while len(list(logged(script).glob("image/*.png"))) < enough:
                assert process.poll() is None
            process.kill()
    found = images(script, "image")
    assert len(found) >= 20
    for path in found:
        assert pixels_of(path).shape == (600, 600, 3)
    assert {path.suffix for path in logged(script).rglob("*.*")} == {".png", ".jsonl"}


def test_a_disk_that_takes_no_image_fails_no_script(script: Script):  # noqa: F811
    said = script.run_anew(
        """
import resource, signal
import numpy as np
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
pixels = np.random.default_rng(0).integers(0, 256, (100, 100, 3), np.uint8)
for i in range(3): penstock.log(image=pixels, loss=i)
for i in range(40): penstock.log(text="x" * 1000)
"""
    )
    assert said.count("'image' is left out: the store cannot use") == 1
    assert not images(script, "image") and script.series("loss") == [0, 1, 2]
    (text,) = (logged(script) / "text").iterdir()
    assert text.stat().st_size == 20_000 and len(text.read_text().splitlines()) > 10
    assert not list(script.store.folder_of(script.id).glob("*.half"))


def test_nothing_heavy_is_imported_for_numbers_and_texts(script: Script):  # noqa: F811
    assert not script.run_anew(
        "penstock.log(a=1, b='text')\nassert not {'numpy', 'PIL', 'matplotlib'} & set(sys.modules)"
    )
    assert os.listdir(logged(script)) == ["b"]
